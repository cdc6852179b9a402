#include "grammar/backend.h"

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace switchyard::grammar {

bool is_built_in() {
  return true;
}

namespace {

constexpr std::size_t kept_grammars = 64;
constexpr std::int64_t rule_cache_bytes = 64 << 20;  // masks of rules that several grammars have

// Returns bytes that are never text: no character begins with 0xff, so only the token's id can match.
std::string no_text(std::size_t id) {
  return "\xff" + std::to_string(id);
}

std::vector<std::string> texts_for_xgrammar(const std::vector<std::optional<std::string>>& tokens) {
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    texts.push_back(tokens[id] && !tokens[id]->empty() ? *tokens[id] : no_text(id));
  }
  return texts;
}

}  // namespace

class Vocabulary::Impl {
 public:
  Impl(const std::vector<std::optional<std::string>>& tokens, std::span<const std::int32_t> end_ids,
       std::map<std::string, std::int32_t> special_ids)
      : ends(end_ids.begin(), end_ids.end()),
        special(std::move(special_ids)),
        size(tokens.size()),
        info_(texts_for_xgrammar(tokens), xgrammar::VocabType::RAW, static_cast<int>(tokens.size()), ends),
        compiler_(info_, /*max_threads=*/1, /*cache_enabled=*/true, rule_cache_bytes) {}

  xgrammar::CompiledGrammar compiled(const std::string& ebnf) const {
    return compiler_.CompileGrammar(ebnf, "root");
  }
  // Tokens that may end `marker` and have more behind it.
  const std::vector<std::int32_t>& tokens_beyond(std::string_view marker) const;
  const std::string& text_of(std::int32_t token) const {
    return info_.GetDecodedVocab()[static_cast<std::size_t>(token)];
  }

  const std::vector<std::int32_t> ends;
  const std::map<std::string, std::int32_t> special;
  const std::size_t size;

 private:
  xgrammar::TokenizerInfo info_;
  mutable xgrammar::GrammarCompiler compiler_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<std::int32_t>, std::less<>> beyond_;
};

class Grammar::Impl {
 public:
  Impl(std::shared_ptr<const Vocabulary::Impl> of, xgrammar::CompiledGrammar made, bool has_limits)
      : vocabulary(std::move(of)), grammar(std::move(made)), limited(has_limits) {}
  std::shared_ptr<const Vocabulary::Impl> vocabulary;
  xgrammar::CompiledGrammar grammar;
  bool limited;  // has rules with max_chars, which xgrammar's masks keep and its AcceptToken does not
};

// The last grammars by their text.
class Vocabulary::Kept {
 public:
  std::shared_ptr<const Grammar> find(const std::string& ebnf) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(grammars_, ebnf, &One::first);
    if (found == grammars_.end()) return nullptr;
    grammars_.splice(grammars_.begin(), grammars_, found);
    return found->second;
  }
  void add(const std::string& ebnf, std::shared_ptr<const Grammar> grammar) {
    const std::lock_guard lock(mutex_);
    grammars_.emplace_front(ebnf, std::move(grammar));
    if (grammars_.size() > kept_grammars) grammars_.pop_back();
  }

 private:
  using One = std::pair<std::string, std::shared_ptr<const Grammar>>;
  std::mutex mutex_;
  std::list<One> grammars_;  // the last used first
};

const std::vector<std::int32_t>& Vocabulary::Impl::tokens_beyond(std::string_view marker) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = beyond_.find(marker); known != beyond_.end()) return known->second;
  std::vector<std::int32_t> found;
  for (std::size_t id = 0; id < size; ++id) {
    const std::string& text = info_.GetDecodedVocab()[id];
    const std::size_t whole = text.find(marker);
    bool reaches = whole != std::string::npos && whole + marker.size() < text.size();
    for (std::size_t begin = 1; begin < marker.size() && !reaches; ++begin)
      reaches = text.size() > marker.size() - begin && text.starts_with(marker.substr(begin));
    if (reaches) found.push_back(static_cast<std::int32_t>(id));
  }
  return beyond_.emplace(std::string(marker), std::move(found)).first->second;
}

Vocabulary::Vocabulary(std::vector<std::optional<std::string>> tokens, std::span<const std::int32_t> ends,
                       std::map<std::string, std::int32_t> special)
    : impl_(std::make_shared<const Impl>(tokens, ends, std::move(special))),
      kept_(std::make_shared<Kept>()) {}

std::shared_ptr<const Grammar> compiled(const Vocabulary& vocabulary, const std::string& ebnf) {
  if (std::shared_ptr<const Grammar> known = vocabulary.kept().find(ebnf)) return known;
  std::shared_ptr<const Grammar> made;
  try {
    // The compiler gets the grammar as text: a parsed grammar it would print and read again, and its printer
    // does not end a \x escape, so that its parser takes a hexadecimal digit behind the escape into it.
    const bool limited = ebnf.find("[max_chars=") != std::string::npos;  // texts have [ escaped
    made = std::make_shared<const Grammar>(
        std::make_unique<const Grammar::Impl>(vocabulary.impl(), vocabulary.impl()->compiled(ebnf), limited));
  } catch (const std::exception& error) {
    throw GrammarError(fmt::format("the grammar does not compile: {}", error.what()));
  }
  vocabulary.kept().add(ebnf, made);
  return made;
}

const std::map<std::string, std::int32_t>& special_tokens(const Vocabulary& vocabulary) {
  return vocabulary.impl()->special;
}

Grammar::Grammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Grammar::~Grammar() = default;

class Matcher::Impl {
 public:
  Impl(std::shared_ptr<const Grammar> of, xgrammar::GrammarMatcher at)
      : grammar(std::move(of)), matcher(std::move(at)) {}
  const Vocabulary::Impl& vocabulary() const { return *grammar->impl().vocabulary; }
  bool is_end(std::int32_t token) const {
    const auto& ends = vocabulary().ends;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
  bool ended = false;
  std::vector<std::uint32_t> last_mask;  // of this state; empty where unknown or not needed
};

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) {
  xgrammar::GrammarMatcher matcher(grammar->impl().grammar);
  impl_ = std::make_unique<Impl>(std::move(grammar), std::move(matcher));
}
Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

void Matcher::mask(std::span<std::uint32_t> bits) {
  const std::size_t words = (impl_->vocabulary().size + 31) / 32;
  CHECK(bits.size() >= words, "{} words for a mask of {}", bits.size(), words);
  std::fill(bits.begin(), bits.end(), 0u);
  if (impl_->ended) {  // nothing but ends may follow
    for (std::int32_t end : impl_->vocabulary().ends)
      bits[static_cast<std::size_t>(end) / 32] |= 1u << (end % 32);
    return;
  }
  auto shape = static_cast<std::int64_t>(words);
  DLTensor tensor{};
  tensor.data = bits.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = &shape;
  impl_->matcher.FillNextTokenBitmask(&tensor);
  if (const std::size_t rest = impl_->vocabulary().size % 32; rest != 0) bits[words - 1] &= (1u << rest) - 1;
  if (impl_->grammar->impl().limited) impl_->last_mask.assign(bits.begin(), bits.begin() + shape);
}

bool Matcher::accept(std::int32_t token) {
  if (token < 0 || static_cast<std::size_t>(token) >= impl_->vocabulary().size) return false;
  if (impl_->is_end(token)) {
    impl_->ended = impl_->ended || may_end();
    return impl_->ended;
  }
  if (impl_->ended) return false;
  if (impl_->grammar->impl().limited) {
    if (impl_->last_mask.empty()) {
      std::vector<std::uint32_t> bits((impl_->vocabulary().size + 31) / 32);
      mask(bits);
    }
    const auto id = static_cast<std::size_t>(token);
    if ((impl_->last_mask[id / 32] >> (id % 32) & 1u) == 0) return false;
  }
  if (!impl_->matcher.AcceptToken(token)) return false;
  impl_->last_mask.clear();
  return true;
}

bool Matcher::accept_text(std::string_view bytes) {
  if (bytes.empty()) return true;
  if (impl_->ended || !impl_->matcher.AcceptString(std::string(bytes))) return false;
  impl_->last_mask.clear();
  return true;
}

std::vector<std::int32_t> Matcher::forbidden_beyond(std::string_view marker, std::string_view tail) const {
  std::vector<std::int32_t> forbidden;
  for (const std::int32_t token : impl_->vocabulary().tokens_beyond(marker)) {
    const std::string text = std::string(tail) + impl_->vocabulary().text_of(token);
    const std::size_t at = text.find(marker);
    if (at == std::string::npos) continue;
    const std::string_view rest = std::string_view(text).substr(at + marker.size());
    const std::string_view bare = rest.substr(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    if (!fork().accept_text(rest) && !fork().accept_text(bare)) forbidden.push_back(token);
  }
  return forbidden;
}

bool Matcher::may_end() const {
  return impl_->ended || impl_->matcher.IsCompleted();
}

Matcher Matcher::fork() const {
  Matcher copy(impl_->grammar);
  copy.impl_->matcher = impl_->matcher.Fork();
  copy.impl_->ended = impl_->ended;
  copy.impl_->last_mask = impl_->last_mask;
  return copy;
}

}  // namespace switchyard::grammar
