#include "train/run_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "data/text_files.h"
#include "data/token_folder.h"
#include "engine/carried_files.h"

namespace switchyard {
namespace {

// The files that went with the weights from which the run starts or goes on.
std::vector<ExtraFile> files_of_weights(const Config& config, const ResumePoint& resume,
                                        std::string* source) {
  std::vector<ExtraFile> files;
  for (const FoundCheckpoint& candidate : resume.candidates) {
    try {
      *source = candidate.path;
      files = carried_files(candidate.path);
      break;
    } catch (const Error&) {  // restore_newest() tells of what is damaged
    }
  }
  // Checkpoints of older versions have a tokenizer alone, without a config.json.
  const std::string first = config.get_string("load_parameters_path");
  std::error_code ignored;
  const bool states_ends =
      std::ranges::any_of(files, [](const ExtraFile& file) { return file.name.ends_with("/config.json"); });
  if (states_ends || first.empty() || !std::filesystem::exists(first, ignored)) return files;
  *source = first;
  return carried_files(first);
}

}  // namespace

std::vector<ExtraFile> carried_extras(const Config& config, const ResumePoint& resume, const RunData& data,
                                      std::vector<std::string>* notes) {
  std::string source;
  std::vector<ExtraFile> weights = files_of_weights(config, resume, &source);
  RunTokenizer tokenizer;
  if (data.tokenizer != nullptr) {
    tokenizer = {config.get_string("tokenizer_type"), config.get_string("tokenizer_path"),
                 data.tokenizer->eos()};
    if (config.get_string("dataset_type") == "tokenized") {  // which carries its own
      const std::string folder = split_paths(config.get_string("data_path"))[0];
      tokenizer.type = read_token_folder(folder).tokenizer_type;
      tokenizer.path = tokenizer_path_in(tokenizer.type, folder + "/tokenizer");
    }
  }
  return carried_by_run(std::move(weights), source, tokenizer, notes);
}

}  // namespace switchyard
