#include "convert/fold.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

struct Parsed {
  std::size_t index;
  std::vector<std::int64_t> numbers;
};

bool is_number(const std::string& part) {
  return !part.empty() && part.size() < 10 && (part == "0" || part[0] != '0') &&
         std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Splits "a.3.b" into {"a.", ".b"} and 3. There is one text more than numbers.
std::vector<std::string> split(const std::string& name, std::vector<std::int64_t>& numbers) {
  std::vector<std::string> around(1);
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, dot - begin);
    if (is_number(part)) {
      numbers.push_back(std::stoll(part));
      around.emplace_back();
    } else {
      around.back() += part;
    }
    if (dot == name.size()) return around;
    around.back() += '.';
    begin = dot + 1;
  }
}

// "{0-2,5}", or "3" for one number.
std::string range_text(const std::set<std::int64_t>& values) {
  if (values.size() == 1) return std::to_string(*values.begin());
  std::string text = "{";
  for (auto at = values.begin(); at != values.end();) {
    const std::int64_t first = *at;
    std::int64_t last = first;
    while (++at != values.end() && *at == last + 1) last = *at;
    if (text.size() > 1) text += ',';
    text += first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  }
  return text + "}";
}

void fold(const std::vector<std::string>& around, const std::vector<Parsed>& group,
          std::vector<FoldedName>& folded) {
  std::vector<std::set<std::int64_t>> values(around.size() - 1);
  for (const Parsed& p : group) {
    for (std::size_t d = 0; d < values.size(); ++d) values[d].insert(p.numbers[d]);
  }
  std::size_t combinations = 1, mixed = values.size();
  for (std::size_t d = values.size(); d-- > 0;) {
    combinations *= std::min(values[d].size(), group.size() + 1);
    if (values[d].size() > 1) mixed = d;
    if (combinations > group.size()) combinations = group.size() + 1;
  }
  if (combinations == group.size()) {
    FoldedName one;
    for (std::size_t d = 0; d < around.size(); ++d)
      one.name += around[d] + (d < values.size() ? range_text(values[d]) : "");
    for (const Parsed& p : group) one.members.push_back(p.index);
    folded.push_back(std::move(one));
    return;
  }
  std::map<std::int64_t, std::vector<Parsed>> parts;
  for (const Parsed& p : group) parts[p.numbers[mixed]].push_back(p);
  for (const auto& [value, part] : parts) fold(around, part, folded);
}

}  // namespace

std::vector<FoldedName> fold_names(const std::vector<std::string>& names,
                                   const std::vector<std::string>& kinds) {
  CHECK(names.size() == kinds.size(), "{} names, {} kinds", names.size(), kinds.size());
  using Key = std::pair<std::vector<std::string>, std::string>;
  std::map<Key, std::vector<Parsed>> groups;
  std::vector<Key> order;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Parsed parsed{i, {}};
    Key key{split(names[i], parsed.numbers), kinds[i]};
    auto& group = groups[key];
    if (group.empty()) order.push_back(key);
    group.push_back(std::move(parsed));
  }
  std::vector<FoldedName> folded;
  for (const Key& key : order) fold(key.first, groups[key], folded);
  return folded;
}

}  // namespace switchyard
