#include "train/run_data.h"

#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "core/cores.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "data/epochs.h"
#include "data/mixture.h"
#include "data/text_files.h"
#include "data/token_folder.h"
#include "train/sft_data.h"

namespace switchyard {
namespace {

// The weights in data_mixture_weights; empty for a single data set.
std::vector<double> mixture_weights(const Config& config, std::size_t parts) {
  std::vector<double> weights;
  for (const std::string& text : config.get_strings("data_mixture_weights")) {
    double weight = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), weight);
    if (status != std::errc() || end != text.data() + text.size() || !(weight > 0) || !std::isfinite(weight))
      fail_usage("[data] data_mixture_weights: expected numbers above 0, got {}", text);
    weights.push_back(weight);
  }
  if (!weights.empty() && (weights.size() != parts || parts > 1024)) {
    fail_usage(
        "[data] data_mixture_weights: {} weights, expected one for each of the {} parts of data_path (at "
        "most 1024)",
        weights.size(), parts);
  }
  return weights;
}

// One data set, or one for each part of data_path in the
// shares of data_mixture_weights. `make(paths, packing)`.
template <typename Make>
SplitData mix(const Config& config, PackingOptions packing, const Make& make) {
  const std::string paths = config.get_string("data_path");
  const std::vector<std::string> parts = split_paths(paths);
  const std::vector<double> weights = mixture_weights(config, parts.size());
  if (weights.empty()) return make(paths, packing);
  packing.batch = 1;  // the parts fill batches together
  std::vector<std::unique_ptr<Dataset>> train, eval;
  for (const std::string& part : parts) {
    SplitData data = make(part, packing);
    train.push_back(std::move(data.train));
    if (data.eval) eval.push_back(std::move(data.eval));
  }
  SplitData data;
  data.train = make_mixture(std::move(train), weights);
  if (!eval.empty()) data.eval = make_concatenation(std::move(eval));
  return data;
}

// A model that begins with weights of its own is made as wide as its tokenizer. Weights that are read may be
// of a model whose tokenizer got more ids later: then no text may have one of those, which is
// looked for in the texts.
void require_vocabulary(const Config& config, std::int64_t vocab, std::int64_t needed, const char* what) {
  const bool reads = !config.is_none("load_parameters_path") || !config.is_none("load_full_state_path");
  if (needed <= vocab || reads) return;
  fail_usage("[data] vocab_size={}: {} has {} ids; set vocab_size={} or more", vocab, what, needed, needed);
}

// The tokenizer that all folders were made with.
std::unique_ptr<Tokenizer> shared_tokenizer(const Config& config, std::int64_t vocab) {
  const std::vector<std::string> folders = split_paths(config.get_string("data_path"));
  const TokenFolderInfo first = read_token_folder(folders[0]);
  require_vocabulary(config, vocab, first.vocabulary, "the data set");
  for (const std::string& folder : folders) {
    if (read_token_folder(folder).tokenizer_hash != first.tokenizer_hash)
      fail_usage("[data] data_path={}: made with another tokenizer than {}", folder, folders[0]);
  }
  if (config.is_set_by_user("tokenizer_path") && !config.is_none("tokenizer_path")) {
    const auto files =
        tokenizer_files(config.get_string("tokenizer_type"), config.get_string("tokenizer_path"));
    if (tokenizer_files_hash(files) != first.tokenizer_hash) {
      fail_usage(
          "[data] tokenizer_path={}: not the tokenizer that {} was made with; leave tokenizer_path out",
          config.get_string("tokenizer_path"), folders[0]);
    }
  }
  return folder_tokenizer(folders[0], first);
}

SplitData conversations_of_run(const Config& config, std::int64_t vocab, const PackingOptions& packing,
                               bool evaluates, RunData& data) {
  const SftEncoder encoder(config, *data.tokenizer, vocab, false);
  ThreadPool pool(usable_cores());
  const std::string eval_paths = config.get_string("eval_data_path");
  const double fraction = evaluates && eval_paths.empty() ? config.get_float("eval_fraction") : 0;
  SplitData split = mix(config, packing, [&](const std::string& paths, const PackingOptions& options) {
    std::string report;
    SplitData part =
        make_conversations(read_conversations(paths, *encoder.lines, pool), paths, options, fraction, report);
    data.report += (data.report.empty() ? "[data] " : "\n[data] ") + report;
    return part;
  });
  if (evaluates && !eval_paths.empty())
    split.eval = make_held_out_conversations(read_conversations(eval_paths, *encoder.lines, pool), eval_paths,
                                             packing);
  return split;
}

SplitData preferences_of_run(const Config& config, std::int64_t vocab, const PackingOptions& packing,
                             RunData& data) {
  const SftEncoder encoder(config, *data.tokenizer, vocab, false);
  ThreadPool pool(usable_cores());
  return mix(config, packing, [&](const std::string& paths, const PackingOptions& options) {
    const PairRows rows =
        pair_rows(pairs_of_run(config, paths, encoder, pool), paths, options, max_prompt_of(config));
    data.report += (data.report.empty() ? "[data] " : "\n[data] ") + rows.report;
    SplitData part;
    part.train = make_pairs(rows, paths, options);
    return part;
  });
}

}  // namespace

TextOptions text_options(const Config& config) {
  const std::vector<std::string> columns = config.get_strings("train_data_columns");
  if (columns.size() != 1)
    fail_usage("[data] train_data_columns: expected one key of JSON lines, got {}", columns.size());
  return {.eval_fraction = config.get_float("eval_fraction"),
          .column = columns[0],
          .skip_records = config.get_string("records_without_text") == "skip",
          .add_bos = config.get_bool("add_bos"),
          .add_eos = config.get_bool("add_eos")};
}

namespace {

SplitData texts_of_run(const Config& config, std::int64_t vocab, const PackingOptions& packing,
                       bool evaluates, const Tokenizer& tokenizer) {
  TextOptions text = text_options(config);
  if (!evaluates) text.eval_fraction = 0;
  text.vocabulary = vocab;
  ThreadPool pool(usable_cores());
  return mix(config, packing, [&](const std::string& paths, const PackingOptions& options) {
    return make_text(paths, tokenizer, options, text, pool);
  });
}

}  // namespace

RunData make_run_data(const Config& config, std::int64_t vocab, const BatchSizes& sizes) {
  RunData data;
  const std::string type = config.get_string("dataset_type");
  if (type == "synthetic") {
    data.train = make_synthetic(sizes.step, sizes.sequence, vocab);
    return data;
  }
  if (config.is_none("data_path"))
    fail_usage("[data] dataset_type={}: expected data_path=FILE_OR_FOLDER, got none", type);
  const bool evaluates = config.get_int("eval_interval") > 0;
  const PackingOptions packing{.batch = sizes.step,
                               .sequence = sizes.sequence,
                               .seed = static_cast<std::uint32_t>(config.get_int("data_shuffle_seed")),
                               .shuffle = config.get_bool("enable_data_shuffling"),
                               .pack = config.get_bool("packing"),
                               .truncate = config.get_bool("use_truncation"),
                               .most_documents = config.get_int("max_segments_per_seq")};
  SplitData split;
  if (type == "tokenized") {
    data.tokenizer = shared_tokenizer(config, vocab);
    split = mix(config, packing, [&](const std::string& paths, const PackingOptions& options) {
      return make_tokenized(paths, options, evaluates, {vocab, data.tokenizer.get()});
    });
  } else {
    data.tokenizer = make_tokenizer(config.get_string("tokenizer_type"), config.get_string("tokenizer_path"));
    require_vocabulary(config, vocab, data.tokenizer->vocab_size(), "the tokenizer");
    if (config.get_bool("use_dpo")) {
      split = preferences_of_run(config, vocab, packing, data);
    } else if (config.get_bool("use_sft")) {
      split = conversations_of_run(config, vocab, packing, evaluates, data);
    } else {
      split = texts_of_run(config, vocab, packing, evaluates, *data.tokenizer);
    }
  }
  data.train = std::move(split.train);
  data.eval = std::move(split.eval);
  if (const std::int64_t epochs = config.get_int("num_epoch"); epochs > 0) {
    data.end = epochs * data.train->rows();
    data.train = make_ending(std::move(data.train), data.end);
  }
  return data;
}

void check_prompt(const Config& config, std::int64_t vocab, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || !config.is_set_by_user("prompt")) return;
  for (const std::int32_t id : tokenizer->encode(config.get_string("prompt"))) {
    if (id >= vocab) fail_usage("[train] prompt: {}", outside_text({id, 0}, vocab, tokenizer));
  }
}

}  // namespace switchyard
