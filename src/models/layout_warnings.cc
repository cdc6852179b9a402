#include "models/layout_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace switchyard {

std::string name_without_layer(const std::string& parameter) {
  if (layer_of(parameter) < 0) return parameter;
  return "layers.*" + parameter.substr(parameter.find('.', 7));
}

std::vector<std::string> layout_warnings(const AxisRules& rules, std::span<const ParameterSpec> specs) {
  struct Line {
    std::string name, warning;
    std::set<std::int64_t> layers;
  };
  std::vector<Line> lines;
  std::map<std::string, std::size_t> tensors;  // by name without layer: how many there are
  for (const ParameterSpec& spec : specs) {
    const std::string name = name_without_layer(spec.name);
    ++tensors[name];
    for (const std::string& warning : rules.resolve(spec.dims, spec.shape).warnings) {
      const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
        return line.name == name && line.warning == warning;
      });
      Line& line = same == lines.end() ? lines.emplace_back(Line{name, warning, {}}) : *same;
      line.layers.insert(layer_of(spec.name));
    }
  }
  std::vector<std::string> texts;
  for (const Line& line : lines) {
    const bool some = line.layers.size() < tensors[line.name];
    const std::string where = some ? fmt::format(" ({} of {} layers, the first is {})", line.layers.size(),
                                                 tensors[line.name], *line.layers.begin())
                                   : "";
    texts.push_back(fmt::format("{}{}: {}", line.name, where, line.warning));
  }
  return texts;
}

std::vector<std::string> counted_warnings(const std::vector<std::string>& warnings) {
  struct Kind {
    std::string ending, first;
    std::size_t count = 0;
  };
  std::vector<Kind> kinds;
  for (const std::string& warning : warnings) {
    const std::string ending = warning.substr(std::min(warning.find("is not divisible by"), warning.size()));
    const auto same = std::ranges::find(kinds, ending, &Kind::ending);
    if (same == kinds.end() || ending.empty())
      kinds.push_back({ending, warning, 1});
    else
      ++same->count;
  }
  std::vector<std::string> texts;
  for (const Kind& kind : kinds)
    texts.push_back(kind.count == 1 ? kind.first
                                    : fmt::format("{} (and {} more; `switchyard explain` names them)",
                                                  kind.first, kind.count - 1));
  return texts;
}

}  // namespace switchyard
