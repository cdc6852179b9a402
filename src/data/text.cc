#include <fmt/format.h>

#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/encode.h"
#include "data/text_files.h"
#include "data/token_stream.h"

namespace switchyard {
namespace {

std::shared_ptr<const TokenStream> tokenize(const std::vector<std::string>& documents,
                                            const Tokenizer& tokenizer, const TextOptions& options,
                                            ThreadPool& pool) {
  auto stream = std::make_shared<StoredTokens>();
  for (const auto& ids : encode_documents(documents, tokenizer, {options.add_bos, options.add_eos}, pool))
    stream->add_document(ids);
  return stream;
}

}  // namespace

SplitData make_text(const std::string& paths, const Tokenizer& tokenizer, const PackingOptions& packing,
                    const TextOptions& options, ThreadPool& pool) {
  if (!(options.eval_fraction >= 0 && options.eval_fraction < 1))
    fail_usage("[data] eval_fraction={}: expected 0 <= it < 1", options.eval_fraction);
  const std::vector<std::string> files = find_text_files(paths);
  if (files.empty())
    fail_usage("[data] data_path={}: expected files with text, found none (hidden ones do not count)", paths);
  const SplitText split = split_text(files, {options.column, options.eval_fraction});
  const auto train = tokenize(split.train, tokenizer, options, pool);
  SplitData data;
  data.train = make_training_rows(train, packing, ShuffleKind::drawn, paths);
  if (options.eval_fraction > 0) {
    const auto eval = tokenize(split.eval, tokenizer, options, pool);
    if (eval->tokens() < 2)
      fail_usage("[data] data_path={}: the held-out text has no two tokens; give more text", paths);
    data.eval = make_held_out_rows(eval, packing);
  }
  return data;
}

}  // namespace switchyard
