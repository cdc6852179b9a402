// Grammar: which tokens may come next so that a text keeps a JSON schema, a regular expression, or a tool's
// form of call. Schemas and the like become rules here (schema_rules.cc, regex.cc, parts_rules.cc), after
// what they would not keep was refused (schema_check.cc); xgrammar compiles the rules and
// matches texts (xgrammar/).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace switchyard::grammar {

using Json = nlohmann::ordered_json;

// Says which keyword of a schema, or what of an expression, is not kept, and where it stands, in one line.
struct GrammarError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns whether this build has grammars. Without, all functions below throw GrammarError that says so.
bool is_built_in();

// The texts of a tokenizer's ids, made once for a model.
class Vocabulary {
 public:
  // `vocab`: tokens that the model has logits for. `ends`: ids that end a text.
  Vocabulary(const Tokenizer& tokenizer, std::int64_t vocab, std::span<const std::int32_t> ends);
  // `tokens`: the bytes of each id; none for ids that are never text. `special`: the texts of such ids,
  // each of which is one token.
  Vocabulary(std::vector<std::optional<std::string>> tokens, std::span<const std::int32_t> ends,
             std::map<std::string, std::int32_t> special = {});
  class Impl;
  class Kept;
  std::shared_ptr<const Impl> impl() const { return impl_; }
  Kept& kept() const { return *kept_; }

 private:
  std::shared_ptr<const Impl> impl_;
  // The last grammars. They hold impl_, which must not hold them.
  std::shared_ptr<Kept> kept_;
};

// Parts of a text that must come one after the other (a tool call in a model's own form). Where their exact
// texts have one of a special token, it is that token that must come.
struct FreeText {
  std::string until;  // any text that does not contain it, then it
};
struct ExactText {
  std::string text;
};
struct SchemaText {
  Json schema;  // JSON that keeps the schema
};
// A value between tags: a text stands as it is, without quotes, and does not have `tag`;
// any other value is JSON.
struct TaggedText {
  Json schema;
  bool is_text;     // whatever stands there is read as a text
  std::string tag;  // the first text of `end` but for white space
  std::string end;  // behind the value
};
struct Part;
struct Choice {
  std::vector<std::vector<Part>> of;  // one of these sequences
};
struct Repeat {
  std::vector<Part> of;
  std::string separator;
  bool may_be_none = false;  // else one or more
};
struct Part {
  std::variant<FreeText, ExactText, SchemaText, TaggedText, Choice, Repeat> is;
};

// Immutable; shared by the texts of all requests. Making one takes milliseconds. GrammarError.
class Grammar {
 public:
  static std::shared_ptr<const Grammar> of_json_schema(const Vocabulary& vocabulary, const Json& schema);
  static std::shared_ptr<const Grammar> of_json_object(const Vocabulary& vocabulary);
  static std::shared_ptr<const Grammar> of_regex(const Vocabulary& vocabulary, std::string_view regex);
  static std::shared_ptr<const Grammar> of_choice(const Vocabulary& vocabulary,
                                                  const std::vector<std::string>& texts);
  static std::shared_ptr<const Grammar> of_parts(const Vocabulary& vocabulary,
                                                 const std::vector<Part>& parts);
  class Impl;
  const Impl& impl() const { return *impl_; }
  explicit Grammar(std::unique_ptr<const Impl> impl);
  ~Grammar();

 private:
  std::unique_ptr<const Impl> impl_;
};

// The state of one text. Not for several threads at once.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

  // Sets bit t of `bits` (bit t%32 of word t/32, as many words as the model's vocabulary needs) where token t
  // may come next, and clears all others. An end is allowed only where the text may end.
  void mask(std::span<std::uint32_t> bits);
  // Takes a token. Returns false, and changes nothing, where it is not allowed.
  bool accept(std::int32_t token);
  // Takes bytes, as tokens of them would be. Returns false, and changes nothing, where they are not allowed.
  bool accept_text(std::string_view bytes);
  // Returns the tokens with which a text that ends with `tail` has the whole `marker`, and bytes behind it
  // that are not allowed here, where white space may be left out.
  std::vector<std::int32_t> forbidden_beyond(std::string_view marker, std::string_view tail) const;
  // Returns whether the text may end here.
  bool may_end() const;
  // Returns a copy in the same state.
  Matcher fork() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::grammar
