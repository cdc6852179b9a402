// Files beside the weights that go with them: of the tokenizer, and how to generate.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save.h"

namespace switchyard {

// Of a Hugging Face folder: its own; and its config.json, so that a way back finds what is no part of the
// model. Named as in a checkpoint: "tokenizer/tokenizer.json".
std::vector<ExtraFile> files_of_hub(const std::string& folder);

// Of a checkpoint: those below tokenizer/, named without that folder. Error(usage) for one whose hash is not
// the manifest's.
std::vector<ExtraFile> files_of_checkpoint(const CheckpointFolder& checkpoint);

}  // namespace switchyard
