// SentencePiece models, by its own library. Only the choice among a unigram model's ways is made here: the
// library of Debian 12 (0.1.97) compares sums before they are rounded, later ones after it, so that equal
// ways fall differently.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "core/error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram_path.h"

namespace switchyard {
namespace {

// Reads the fields of a serialised protobuf message that the library has accepted already.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}
  // The next field, false at the end. `text` holds a nested message or string, `number` an integer.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field = key >> 3;
    text = {};
    switch (key & 7) {
      case 0:
        number = varint();
        return true;
      case 2:
        text = take(varint());
        return true;
      default:
        take((key & 7) == 1 ? 8 : 4);
        return true;
    }
  }
  std::uint64_t field = 0, number = 0;
  std::string_view text;

 private:
  std::string_view take(std::uint64_t bytes) {
    const std::string_view part = rest_.substr(0, std::min<std::uint64_t>(bytes, rest_.size()));
    rest_.remove_prefix(part.size());
    return part;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    return value;
  }
  std::string_view rest_;
};

// Of ModelProto: pieces (1, with their type in 3) and trainer_spec (2, with the model's type in 3).
struct ModelFacts {
  static constexpr std::uint64_t kUnigram = 1, kUserDefined = 4;
  bool unigram = true;
  std::unordered_set<std::int32_t> user_defined;

  explicit ModelFacts(std::string_view bytes) {
    std::int32_t id = 0;
    for (Message model(bytes); model.next();) {
      if (model.field != 1 && model.field != 2) continue;
      for (Message part(model.text); part.next();) {
        if (part.field != 3) continue;
        if (model.field == 2) unigram = part.number == kUnigram;
        if (model.field == 1 && part.number == kUserDefined) user_defined.insert(id);
      }
      id += model.field == 1;
    }
  }
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, const std::string& name) {
    const auto status = model_.LoadFromSerializedProto(bytes);
    if (!status.ok()) fail_usage("[tokenizer] {}: not a SentencePiece model: {}", name, status.ToString());
    const ModelFacts facts(bytes);
    unigram_ = facts.unigram;
    if (unigram_) lay_out(facts);
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    if (unigram_) return encode_unigram(std::string(text));
    std::vector<int> ids;
    const auto status = model_.Encode(std::string(text), &ids);
    if (!status.ok()) fail_runtime("[tokenizer] SentencePiece: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> known;
    for (std::int32_t id : ids) known.push_back(id >= 0 && id < vocab_size() ? id : model_.unk_id());
    std::string text;
    const auto status = model_.Decode(known, &text);
    if (!status.ok()) fail_runtime("[tokenizer] SentencePiece: {}", status.ToString());
    return text;
  }
  std::int32_t vocab_size() const override { return model_.GetPieceSize(); }
  std::optional<std::int32_t> bos() const override { return existing(model_.bos_id()); }
  std::optional<std::int32_t> eos() const override { return existing(model_.eos_id()); }

 private:
  static std::optional<std::int32_t> existing(int id) { return id < 0 ? std::nullopt : std::optional(id); }

  bool is_text(int id) const { return !model_.IsUnknown(id) && !model_.IsControl(id) && !model_.IsByte(id); }

  // As the library: the lowest and the highest score are those of ordinary pieces; a piece of the user's is
  // better than any way around it; unused ones are passed over.
  void lay_out(const ModelFacts& facts) {
    float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::lowest();
    for (int id = 0; id < vocab_size(); ++id) {
      if (model_.IsByte(id)) bytes_.push_back(id);
      if (!is_text(id) || model_.IsUnused(id) || facts.user_defined.contains(id)) continue;
      lowest = std::min(lowest, model_.GetScore(id));
      highest = std::max(highest, model_.GetScore(id));
    }
    for (int id = 0; id < vocab_size(); ++id) {
      if (!is_text(id) || model_.IsUnused(id)) continue;
      const std::string& piece = model_.IdToPiece(id);
      const bool users = facts.user_defined.contains(id);
      path_.add(
          piece, id,
          users ? static_cast<float>(static_cast<float>(piece.size()) * highest - 0.1) : model_.GetScore(id));
    }
    path_.set_unknown_score(lowest - 10);
    if (bytes_.size() != 256) bytes_.clear();
  }

  // The text as the library normalises it: its pieces joined.
  std::string normalized(const std::string& text) const {
    std::string normal;
    const auto encoded = model_.EncodeAsImmutableProto(text);
    for (std::size_t i = 0; i < encoded.pieces_size(); ++i) {
      const auto piece = encoded.pieces(static_cast<int>(i));
      if (model_.IsByte(static_cast<int>(piece.id()))) {
        const auto byte = std::find(bytes_.begin(), bytes_.end(), static_cast<std::int32_t>(piece.id()));
        normal += static_cast<char>(byte - bytes_.begin());
      } else {
        normal += piece.piece();
      }
    }
    return normal;
  }

  std::vector<std::int32_t> encode_unigram(const std::string& text) const {
    const std::string normal = normalized(text);
    std::vector<std::int32_t> ids;
    bool after_unknown = false;
    for (const auto& part : path_.best(normal)) {
      const bool unknown = part.id < 0;
      if (!unknown) {
        ids.push_back(part.id);
      } else if (!bytes_.empty()) {
        for (std::size_t i = part.begin; i < part.end; ++i)
          ids.push_back(bytes_[static_cast<unsigned char>(normal[i])]);
      } else if (!after_unknown) {
        ids.push_back(model_.unk_id());
      }
      after_unknown = unknown;
    }
    return ids;
  }

  sentencepiece::SentencePieceProcessor model_;
  bool unigram_ = true;
  UnigramPath<float> path_;
  std::vector<std::int32_t> bytes_;  // ids of <0x00> to <0xFF>, in order; empty without them
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(model, name);
}

}  // namespace switchyard
