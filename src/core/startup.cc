#include "core/startup.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace switchyard {
namespace {

const Startup::Clock::time_point kProgramBegan = Startup::Clock::now();

}  // namespace

Startup Startup::of_program() {
  return Startup(kProgramBegan);
}

void Startup::mark(std::string_view part) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const auto found = std::ranges::find(parts_, part, &std::pair<std::string, double>::first);
  if (found == parts_.end())
    parts_.emplace_back(part, seconds);
  else
    found->second += seconds;
}

nlohmann::json to_json(const Startup& startup) {
  nlohmann::json seconds = nlohmann::json::object();
  for (const auto& [part, spent] : startup.parts()) seconds[part] = spent;
  return seconds;
}

}  // namespace switchyard
