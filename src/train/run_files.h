// The files that checkpoints of a run carry along.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/save.h"
#include "config/config.h"
#include "train/resume.h"
#include "train/run_data.h"

namespace switchyard {

// The files of the weights from which the run starts or goes on, and of its tokenizer
// (engine/carried_files.h). Checkpoints of older versions have no config.json;
// then load_parameters_path is asked. Error(usage).
std::vector<ExtraFile> carried_extras(const Config& config, const ResumePoint& resume, const RunData& data,
                                      std::vector<std::string>* notes);

}  // namespace switchyard
