// Tokenizer::encode_with_places: the tokens' own bytes are laid along the text.
#include <algorithm>
#include <utility>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

// The bytes of a token. Special tokens give their text.
struct TokenText {
  std::string bytes;
  bool special;
};

std::vector<TokenText> texts_of(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::vector<TokenText> texts;
  for (const std::int32_t& id : ids) {
    if (std::optional<std::string> bytes = tokenizer.token_bytes(id))
      texts.push_back({std::move(*bytes), false});
    else
      texts.push_back({tokenizer.decode_all(std::span(&id, 1)), true});
  }
  return texts;
}

// Lays tokens along a text, part by part: a special token, or what stands between two of them. Each step
// compares all bytes of its part, so that an end is either right or not found.
class Alignment {
 public:
  Alignment(std::string_view text, const std::vector<TokenText>& tokens) : text_(text), tokens_(tokens) {}

  std::optional<std::vector<std::size_t>> ends() {
    for (std::size_t i = 0; i < tokens_.size();) {
      if (!(tokens_[i].special ? place_special(i) : place_part(i))) return {};
    }
    if (at_ < text_.size() && !special_takes_rest()) return {};
    return std::move(ends_);
  }

 private:
  bool rest_begins(std::string_view with) const { return text_.substr(at_).starts_with(with); }

  // The place behind white space, which the special token before or after it took away.
  std::size_t behind_white() const {
    return std::min(text_.find_first_not_of(kWhiteSpace, at_), text_.size());
  }

  bool place_special(std::size_t& i) {
    const std::string& bytes = tokens_[i].bytes;
    if (bytes.empty()) return false;
    if (!rest_begins(bytes)) at_ = behind_white();
    if (!rest_begins(bytes)) return false;
    ends_.push_back(at_ += bytes.size());
    after_special_ = true;
    ++i;
    return true;
  }

  // The tokens from `i` on up to the next special one.
  bool place_part(std::size_t& i) {
    std::size_t end = i;
    std::string part;
    for (; end < tokens_.size() && !tokens_[end].special; ++end) part += tokens_[end].bytes;
    const std::size_t before = at_;
    bool added_space = false;
    if (!fits(part, end)) {
      added_space = part.starts_with(' ') && fits(std::string_view(part).substr(1), end);
      if (!added_space && !take_white_before(part, end)) return false;
    }
    if (at_ > before && !ends_.empty()) ends_.back() = at_;
    for (std::size_t first = i; i < end; ++i)
      ends_.push_back(at_ += tokens_[i].bytes.size() - (added_space && i == first ? 1 : 0));
    return true;
  }

  // True when `part` stands here, followed by the next special token or the end of the text.
  bool fits(std::string_view part, std::size_t next) const {
    if (!rest_begins(part)) return false;
    const std::string_view rest = text_.substr(at_ + part.size());
    const std::size_t white = std::min(rest.find_first_not_of(kWhiteSpace), rest.size());
    if (next == tokens_.size()) return rest.empty();
    return rest.starts_with(tokens_[next].bytes) || rest.substr(white).starts_with(tokens_[next].bytes);
  }

  // A special token may have taken the white space behind it; then its part does not begin with any.
  bool take_white_before(std::string_view part, std::size_t next) {
    const std::size_t before = std::exchange(at_, behind_white());
    if (after_special_ && part.find_first_of(kWhiteSpace) != 0 && fits(part, next)) return true;
    at_ = before;
    return false;
  }

  // White space at the end of the text, behind a special token.
  bool special_takes_rest() {
    if (!after_special_ || !tokens_.back().special || behind_white() < text_.size()) return false;
    ends_.back() = at_ = text_.size();
    return true;
  }

  std::string_view text_;
  const std::vector<TokenText>& tokens_;
  std::vector<std::size_t> ends_;
  std::size_t at_ = 0;
  bool after_special_ = false;
};

// Moves ends within a text's normal form to the text, character by character: one character as a reader sees
// it, with its marks, has a normal form of its own. The tokens of a character
// that changes share its bytes.
class NormalPlaces {
 public:
  NormalPlaces(const std::string& text, NormalForm form) {
    std::size_t begin = 0;
    for (const std::size_t end : grapheme_ends(text)) {
      const std::string character = text.substr(begin, end - begin), normal = normal_form(character, form);
      characters_.push_back(
          {begin, end, normal_.size(), normal_.size() + normal.size(), normal == character});
      normal_ += normal;
      begin = end;
    }
  }
  // The characters' normal forms, joined: the text's, unless some work on each other.
  const std::string& normal() const { return normal_; }

  std::optional<std::vector<std::size_t>> in_text(const std::vector<std::size_t>& ends) const {
    std::vector<std::size_t> moved;
    std::size_t before = 0;
    auto character = characters_.begin();
    for (const std::size_t end : ends) {
      while (character != characters_.end() && character->normal_end < end) ++character;
      const std::size_t place = character == characters_.end() ? end : place_of(*character, end);
      // A token without a byte of its own would be on no side of a range's end.
      if (end > before && !moved.empty() && place <= moved.back()) return {};
      moved.push_back(place);
      before = end;
    }
    return moved;
  }

 private:
  struct Character {
    std::size_t begin, end, normal_begin, normal_end;
    bool same;
  };

  static std::size_t place_of(const Character& c, std::size_t end) {
    if (end == c.normal_end) return c.end;
    if (c.same) return c.begin + (end - c.normal_begin);
    return c.begin + (end - c.normal_begin) * (c.end - c.begin) / (c.normal_end - c.normal_begin);
  }

  std::vector<Character> characters_;
  std::string normal_;
};

// The ends of tokens in a text, or in one of its normal forms and from there in the text.
std::optional<std::vector<std::size_t>> ends_of(const std::string& text,
                                                const std::vector<TokenText>& tokens) {
  if (auto ends = Alignment(text, tokens).ends()) return ends;
  for (const NormalForm form : {NormalForm::nfc, NormalForm::nfkc, NormalForm::nfd, NormalForm::nfkd}) {
    const std::string normal = normal_form(text, form);
    if (normal == text) continue;
    const NormalPlaces places(text, form);
    if (places.normal() != normal) continue;
    if (const auto ends = Alignment(normal, tokens).ends()) return places.in_text(*ends);
  }
  return {};
}

}  // namespace

std::optional<PlacedTokens> Tokenizer::encode_with_places(std::string_view text,
                                                          std::span<const TextRange> plain) const {
  PlacedTokens placed{encode_with_special(text, plain), {}};
  std::optional<std::vector<std::size_t>> ends = ends_of(std::string(text), texts_of(*this, placed.ids));
  if (!ends) return {};
  placed.ends = std::move(*ends);
  return placed;
}

}  // namespace switchyard
