#include "grammar/parts_rules.h"

#include <algorithm>
#include <set>
#include <variant>

#include "grammar/rules.h"
#include "grammar/schema_rules.h"
#include "grammar/tagged_text.h"

namespace switchyard::grammar {

namespace {

// A code point, or a special token (from `first_token` on).
using Symbol = std::uint32_t;
constexpr Symbol first_token = 0x80000000;

class PartsCompiler {
 public:
  PartsCompiler(JsonRules& json, const std::map<std::string, std::int32_t>& special)
      : json_(json), special_(special) {}

  Expression all(const std::vector<Part>& parts) {
    std::vector<Expression> of;
    for (const Part& part : parts) of.push_back(std::visit([&](const auto& is) { return one(is); }, part.is));
    return sequence(std::move(of));
  }

 private:
  Expression one(const ExactText& part) {
    std::vector<Expression> of;
    for (Symbol symbol : symbols_of(part.text)) of.push_back(of_symbol(symbol));
    return sequence(std::move(of));
  }

  Expression one(const SchemaText& part) { return schema_expression(json_, part.schema); }

  Expression one(const TaggedText& part) {
    return tagged_expression(json_, part.schema, part.is_text, part.tag, one(ExactText{part.end}));
  }

  Expression one(const Choice& part) {
    std::vector<Expression> of;
    for (const std::vector<Part>& parts : part.of) of.push_back(all(parts));
    return choice(std::move(of));
  }

  Expression one(const Repeat& part) {
    const Expression item = call(json_.rules().add(all(part.of)));
    Expression some = sequence({item, repeat(sequence({one(ExactText{part.separator}), item}), 0)});
    return part.may_be_none ? optional(std::move(some)) : some;
  }

  // A state for each number of symbols of `until` that the text ends with (Knuth, Morris and Pratt), so that
  // its first occurrence ends the part.
  Expression one(const FreeText& part) {
    const std::vector<Symbol> until = symbols_of(part.until);
    if (until.empty()) return repeat(one_of(CodePoints::all()), 0);
    const std::set<Symbol> symbols(until.begin(), until.end());
    CodePoints alphabet;
    for (Symbol symbol : symbols) {
      if (symbol < first_token) alphabet.add(symbol, symbol);
    }
    std::vector<std::int32_t> states;
    for (std::size_t i = 0; i < until.size(); ++i) states.push_back(json_.rules().reserve());
    for (std::size_t at = 0; at < until.size(); ++at) {
      std::vector<Expression> of;
      for (Symbol symbol : symbols) of.push_back(step(until, states, at, symbol));
      of.push_back(sequence({one_of(alphabet.complement()), call(states[0])}));
      json_.rules().set(states[at], choice(std::move(of)));
    }
    return call(states[0]);
  }

  Expression step(const std::vector<Symbol>& until, const std::vector<std::int32_t>& states, std::size_t at,
                  Symbol symbol) {
    std::vector<Symbol> seen(until.begin(), until.begin() + static_cast<std::ptrdiff_t>(at));
    seen.push_back(symbol);
    std::size_t kept = seen.size();
    while (kept > 0 && !std::equal(until.begin(), until.begin() + static_cast<std::ptrdiff_t>(kept),
                                   seen.end() - static_cast<std::ptrdiff_t>(kept)))
      --kept;
    return sequence({of_symbol(symbol), kept == until.size() ? text("") : call(states[kept])});
  }

  static Expression of_symbol(Symbol symbol) {
    return symbol >= first_token ? token(static_cast<std::int32_t>(symbol - first_token))
                                 : text(utf8_of(symbol));
  }

  // The longest special text at each place is a token.
  std::vector<Symbol> symbols_of(std::string_view from) const {
    std::vector<Symbol> symbols;
    std::string plain;
    const auto flush = [&] {
      for (std::uint32_t point : code_points_of(plain)) symbols.push_back(point);
      plain.clear();
    };
    while (!from.empty()) {
      const std::pair<const std::string, std::int32_t>* longest = nullptr;
      for (const auto& entry : special_) {
        if (!entry.first.empty() && from.starts_with(entry.first) &&
            (longest == nullptr || entry.first.size() > longest->first.size()))
          longest = &entry;
      }
      if (longest == nullptr) {
        plain += from.front();
        from.remove_prefix(1);
        continue;
      }
      flush();
      symbols.push_back(first_token + static_cast<Symbol>(longest->second));
      from.remove_prefix(longest->first.size());
    }
    flush();
    return symbols;
  }

  JsonRules& json_;
  const std::map<std::string, std::int32_t>& special_;
};

}  // namespace

Expression parts_expression(JsonRules& json, const std::vector<Part>& parts,
                            const std::map<std::string, std::int32_t>& special) {
  return PartsCompiler(json, special).all(parts);
}

}  // namespace switchyard::grammar
