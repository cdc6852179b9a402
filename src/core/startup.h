// Startup: where the seconds of a program's start go, part by part.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// Each second since the beginning counts to one part, so the parts' sum is the time from the beginning to the
// last mark. Of one thread at a time.
class Startup {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Startup(Clock::time_point begin = Clock::now()) : last_(begin) {}
  static Startup of_program();  // begins when the program did

  // The time since the last mark was spent on `part`; a part may be marked again.
  void mark(std::string_view part);
  // Seconds, in the order of the parts' first marks.
  const std::vector<std::pair<std::string, double>>& parts() const { return parts_; }

 private:
  Clock::time_point last_;
  std::vector<std::pair<std::string, double>> parts_;
};

// The parts and their seconds, as one object.
nlohmann::json to_json(const Startup& startup);

}  // namespace switchyard
