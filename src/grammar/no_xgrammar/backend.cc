// A build without xgrammar: whoever asks for a grammar is told how to get one.
#include "grammar/backend.h"

namespace switchyard::grammar {

namespace {

[[noreturn]] void refuse() {
  throw GrammarError(
      "this build has no grammars (scripts/install_dependencies.sh fetches xgrammar; then configure the "
      "build "
      "again)");
}

}  // namespace

bool is_built_in() {
  return false;
}

class Vocabulary::Impl {};
class Grammar::Impl {};
class Matcher::Impl {};

Vocabulary::Vocabulary(std::vector<std::optional<std::string>>, std::span<const std::int32_t>,
                       std::map<std::string, std::int32_t>) {
  refuse();
}

std::shared_ptr<const Grammar> compiled(const Vocabulary&, const std::string&) {
  refuse();
}

const std::map<std::string, std::int32_t>& special_tokens(const Vocabulary&) {
  refuse();
}

Grammar::Grammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Grammar::~Grammar() = default;
Matcher::Matcher(std::shared_ptr<const Grammar>) {
  refuse();
}
Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
void Matcher::mask(std::span<std::uint32_t>) {
  refuse();
}
bool Matcher::accept(std::int32_t) {
  refuse();
}
bool Matcher::accept_text(std::string_view) {
  refuse();
}
std::vector<std::int32_t> Matcher::forbidden_beyond(std::string_view, std::string_view) const {
  refuse();
}
bool Matcher::may_end() const {
  refuse();
}
Matcher Matcher::fork() const {
  refuse();
}

}  // namespace switchyard::grammar
