// WordPiece: takes the longest token from the left each time; tokens inside a word have a prefix. A word that
// cannot be covered, or is too long, becomes one unknown token.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/json_file.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

class WordPiece : public PieceModel {
 public:
  WordPiece(Vocabulary vocabulary, std::int32_t unknown, std::string prefix, std::int64_t longest_word)
      : vocabulary_(std::move(vocabulary)),
        unknown_(unknown),
        prefix_(std::move(prefix)),
        longest_word_(longest_word) {
    for (const auto& [text, id] : vocabulary_) longest_token_ = std::max(longest_token_, text.size());
  }

  void encode(const std::string& piece, std::vector<std::int32_t>& ids) const override {
    std::vector<std::size_t> ends;  // of characters
    for_characters(piece,
                   [&](std::string_view c) { ends.push_back((ends.empty() ? 0 : ends.back()) + c.size()); });
    const std::size_t kept = ids.size();
    if (static_cast<std::int64_t>(ends.size()) <= longest_word_ && cover(piece, ends, ids)) return;
    ids.resize(kept);
    ids.push_back(unknown_);
  }

 private:
  bool cover(const std::string& piece, const std::vector<std::size_t>& ends,
             std::vector<std::int32_t>& ids) const {
    std::string token;
    for (std::size_t begin = 0; begin < piece.size();) {
      auto end = std::upper_bound(ends.begin(), ends.end(), begin + longest_token_);
      bool found = false;
      while (!found && end != ends.begin() && *(end - 1) > begin) {
        token = begin > 0 ? prefix_ : "";
        token.append(piece, begin, *(end - 1) - begin);
        const auto id = vocabulary_.find(token);
        found = id != vocabulary_.end();
        if (found) {
          ids.push_back(id->second);
          begin = *(end - 1);
        }
        --end;
      }
      if (!found) return false;
    }
    return true;
  }

  Vocabulary vocabulary_;
  std::int32_t unknown_;
  std::string prefix_;
  std::int64_t longest_word_;  // characters
  std::size_t longest_token_ = 0;
};

}  // namespace

LoadedModel make_word_piece(const JsonReader& entry) {
  Vocabulary vocabulary = read_vocabulary(entry);
  const std::string text = entry.text("unk_token", "[UNK]");
  const auto unknown = vocabulary.find(text);
  if (unknown == vocabulary.end()) entry.fail("unk_token " + in_quotes(text) + " is not in the vocabulary");
  const std::int64_t longest = entry.integer("max_input_chars_per_word", 0, 1 << 30, 100);
  return {std::make_unique<WordPiece>(vocabulary, unknown->second,
                                      entry.text("continuing_subword_prefix", "##"), longest),
          vocabulary};
}

}  // namespace switchyard
