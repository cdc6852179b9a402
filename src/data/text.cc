#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/encode.h"
#include "data/text_files.h"
#include "data/token_folder.h"
#include "data/token_stream.h"

namespace switchyard {
namespace {

// Returns the line of `token` in the document, or the document's first line where the token is not found.
std::int64_t line_of(const std::string& token, const std::string& document, const TextPosition& begin) {
  const std::size_t place = token.empty() ? std::string::npos : document.find(token);
  const auto end =
      place == std::string::npos ? document.begin() : document.begin() + static_cast<std::ptrdiff_t>(place);
  return begin.line + 1 + std::count(document.begin(), end, '\n');
}

std::shared_ptr<const DocumentStream> tokenize(const std::vector<std::string>& files,
                                               const std::vector<std::string>& documents,
                                               const std::vector<TextPosition>& begins,
                                               const Tokenizer& tokenizer, const TextOptions& options,
                                               ThreadPool& pool) {
  auto stream = std::make_shared<StoredTokens>();
  std::vector<std::size_t> kept;  // documents that have tokens
  const auto all = encode_documents(documents, tokenizer, {options.add_bos, options.add_eos}, pool);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].empty()) kept.push_back(i);
    stream->add_document(all[i]);
  }
  if (tokenizer.vocab_size() <= options.vocabulary) return stream;
  if (const auto found = first_outside(*stream, options.vocabulary)) {
    const std::size_t i = kept[static_cast<std::size_t>(found->document)];
    // A line end in a JSON record is no line of the file.
    const std::string token =
        has_json_name(files[begins[i].file]) ? "" : tokenizer.decode_all(std::span(&found->id, 1));
    fail_usage("[data] {}:{}: {}", files[begins[i].file], line_of(token, documents[i], begins[i]),
               outside_text(*found, options.vocabulary, &tokenizer));
  }
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
  const SplitText split = split_text(files, {options.column, options.eval_fraction, options.skip_records});
  const auto train = tokenize(files, split.train, split.train_begins, tokenizer, options, pool);
  SplitData data;
  data.train = make_training_rows(train, packing, ShuffleKind::drawn, paths);
  if (options.eval_fraction > 0) {
    const auto eval = tokenize(files, split.eval, split.eval_begins, tokenizer, options, pool);
    if (eval->tokens() < 2)
      fail_usage("[data] data_path={}: the held-out text has no two tokens; give more text", paths);
    data.eval = make_held_out_rows(eval, packing);
  }
  return data;
}

}  // namespace switchyard
