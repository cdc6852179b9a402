// How long making a grammar may take: a schema of some hundred bytes can ask for years.
#pragma once

#include <chrono>

namespace switchyard::grammar {

// While a WorkLimit lives, check() on its thread throws GrammarError once the limit's time is over. A limit
// within another limit changes nothing.
class WorkLimit {
 public:
  explicit WorkLimit(std::chrono::milliseconds most = std::chrono::seconds(2));
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;
  static void check();

 private:
  bool outermost_;
};

}  // namespace switchyard::grammar
