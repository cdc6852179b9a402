// Files that go with the weights: those of the tokenizer, and the generation settings.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save.h"

namespace switchyard {

// The files of a Hugging Face folder, and its config.json, which a conversion back reads for everything that
// is not part of the model. Names are those in a checkpoint: "tokenizer/tokenizer.json".
std::vector<ExtraFile> files_of_hub(const std::string& folder);

// The files below a checkpoint's tokenizer/, named without that
// folder. Error(usage) when a file's hash differs from the manifest's.
std::vector<ExtraFile> files_of_checkpoint(const CheckpointFolder& checkpoint);

}  // namespace switchyard
