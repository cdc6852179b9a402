#include "train/unused_patterns.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <functional>

#include "models/name_patterns.h"

namespace switchyard {

std::vector<std::string> unused_patterns(const Config& config, const std::vector<ParameterSpec>& specs) {
  std::vector<std::string> lines;
  const auto look = [&](const char* key, const std::string& pattern,
                        const std::function<bool(const std::string& name)>& fits) {
    if (std::ranges::none_of(specs, [&](const ParameterSpec& spec) { return fits(spec.name); }))
      lines.push_back(fmt::format("warning: {}: '{}' names no weight of this model, such as {}", key, pattern,
                                  specs.back().name));
  };
  for (const char* key : {"trainable_parameters_mask", "adamw_mask"}) {
    for (const std::string& pattern : config.get_strings(key)) {
      const NamePatterns patterns(key, {pattern});
      look(key, pattern, [&](const std::string& name) { return patterns.find_in(name); });
    }
  }
  for (const std::string& pattern : config.get_strings("weight_decay_exclude"))
    look("weight_decay_exclude", pattern,
         [&](const std::string& name) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
  return lines;
}

}  // namespace switchyard
