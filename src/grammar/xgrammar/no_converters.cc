// Stands for xgrammar's converters of JSON schemas, Lark and structural tags, two fifths of its build. Here
// src/grammar/ makes the rules and xgrammar takes them as text, so that nothing calls a converter.
#include <stdexcept>

#include "json_schema_converter.h"
#include "lark_converter.h"
#include "structural_tag.h"

namespace xgrammar {
namespace {

[[noreturn]] void fail_converter() {
  throw std::logic_error("xgrammar's converters are not in this build");
}

}  // namespace

Grammar JSONSchemaToGrammar(const std::string&, bool, std::optional<int>,
                            std::optional<std::pair<std::string, std::string>>, bool, std::optional<int>,
                            bool, JSONFormat, std::vector<std::string>) {
  fail_converter();
}

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  fail_converter();
}

Result<Grammar, StructuralTagError> StructuralTagToGrammar(const std::string&,
                                                           const std::optional<TokenizerInfo>&) {
  fail_converter();
}

}  // namespace xgrammar
