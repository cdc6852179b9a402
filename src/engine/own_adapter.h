// Adapters of our own runs: checkpoints that hold an adapter alone, and say in adapter/form.json which
// weights it changes, how, and of which base.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save.h"
#include "config/config.h"
#include "models/families/peft.h"

namespace switchyard {

// Hashes the files of weights at `path`, a folder or a file: their names and sizes, and the first and last
// MiB of each, as 16 hexadecimal digits. "" for an empty path.
std::string weights_hash(const std::string& path);
// True when the checkpoint, or the newest one of the run, holds an adapter alone.
bool holds_adapter(const CheckpointFolder& checkpoint);
// Returns where the base's weights were when the adapter was trained; "" for weights that were drawn.
std::string base_path_of(const CheckpointFolder& checkpoint);
// The file that makes it so, for a run of the config.
ExtraFile adapter_file(const Config& config, const ModelConfig& model, const Adapter& adapter);
// Error(usage) when the checkpoint's adapter was trained on another base than the config's, by the hash of
// its architecture or of the files' first and last MiB.
void check_base(const CheckpointFolder& checkpoint, const Config& config, const ModelConfig& model);
// Reads a folder of PEFT, or a run that trained an adapter, for the model of the config. The factors have
// adapter_scale in them. Error(usage).
PeftAdapter read_adapter(const std::string& path, const Config& config, const ModelConfig& model);
// True when the base has names and shapes of Hugging Face, which PEFT's are made of.
bool has_peft_names(const Config& config, const ModelConfig& model);
// Writes the adapter of a checkpoint, or of the newest one of a run, into `folder` as PEFT has it. Returns
// the number of adapted weights. Error(usage) where it holds none.
std::size_t write_as_peft(const std::string& path, const std::string& folder, PeftForm form);
// Reads the adapter of a checkpoint. Error(usage) when it is no adapter of the model.
PeftAdapter read_own_adapter(const std::string& path, const Config& config, const ModelConfig& model);

}  // namespace switchyard
