// The trace of a run: events nest, and every collective that the counters know is in it.
#include <map>
#include <set>

#include "child.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class Trace : public ProgramTest {
 protected:
  json events_of(const Arguments& arguments) const {
    train(Arguments{"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2",
                    "enable_tensorboard=false", "profiler=xplane", "steps=4"} +
          arguments);
    return json::parse(read("out/run/trace.json"))["traceEvents"];
  }
};

double begin_of(const json& event) {
  return event["ts"].get<double>();
}
double end_of(const json& event) {
  return begin_of(event) + event["dur"].get<double>();
}

// Events of one thread are one inside the other or apart.
void expect_nested(const json& events) {
  constexpr double kRounding = 0.002;  // microseconds
  std::map<std::pair<int, int>, std::vector<json>> threads;
  for (const json& event : events) {
    if (event["ph"] == "X") threads[{event["pid"], event["tid"]}].push_back(event);
  }
  for (auto& [thread, list] : threads) {
    std::stable_sort(list.begin(), list.end(), [](const json& a, const json& b) {
      return begin_of(a) != begin_of(b) ? begin_of(a) < begin_of(b) : end_of(a) > end_of(b);
    });
    std::vector<const json*> open;
    for (const json& event : list) {
      while (!open.empty() && end_of(*open.back()) <= begin_of(event) + kRounding) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end_of(event), end_of(*open.back()) + kRounding) << event << " in " << *open.back();
      }
      open.push_back(&event);
    }
  }
}

// (kind, axis) -> calls and bytes of rank 0 in the step.
using Totals = std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>>;

Totals collectives_in(const json& events, int step) {
  json whole;
  for (const json& event : events) {
    if (event["pid"] == 0 && event.value("cat", "") == "step" && event["args"]["step"] == step) whole = event;
  }
  Totals totals;
  for (const json& event : events) {
    if (event["pid"] != 0 || event.value("cat", "") != "collective") continue;
    if (begin_of(event) < begin_of(whole) || begin_of(event) > end_of(whole)) continue;
    auto& [calls, bytes] = totals[{event["name"], event["args"]["axis"]}];
    calls += 1;
    bytes += event["args"]["bytes"].get<std::int64_t>();
  }
  return totals;
}

Totals counted(const json& summary) {
  Totals totals;
  for (const json& c : summary["collectives"]) {
    auto& [calls, bytes] = totals[{c["kind"], c["axis"]}];
    calls += c["count"].get<std::int64_t>();
    bytes += c["bytes"].get<std::int64_t>();
  }
  return totals;
}

TEST_F(Trace, HoldsEveryStepOpAndCollective) {
  for (const char* overlap : {"off", "on"}) {
    SCOPED_TRACE(overlap);
    const json events = events_of({std::string("overlap_communication=") + overlap});
    expect_nested(events);
    const json summary = json::parse(read("out/run/summary.json"));
    EXPECT_EQ(collectives_in(events, 3), counted(summary));
    EXPECT_EQ(summary["trace"], "out/run/trace.json");
    EXPECT_FALSE(summary["ops"].empty());

    std::map<std::string, int> of_rank_3;
    int background = 0;
    for (const json& event : events) {
      if (event["pid"] == 3 && event["ph"] == "X") ++of_rank_3[event["cat"]];
      background += event["tid"] == 1 && event["ph"] == "X" ? 1 : 0;
    }
    EXPECT_EQ(of_rank_3["step"], 3) << "steps 1 to 3";
    for (const char* category : {"phase", "forward", "backward", "recompute", "collective"})
      EXPECT_GT(of_rank_3[category], 0) << category;
    EXPECT_EQ(background > 0, std::string(overlap) == "on");
  }
}

TEST_F(Trace, HoldsTheKernelsOfAGpu) {
  const json events = events_of({"device=cuda_emulated", "profiler_steps=1", "base_num_decoder_layers=1"});
  expect_nested(events);
  std::map<int, json> steps;
  std::set<std::string> ops;
  for (const json& event : events) {
    if (event["ph"] != "X" || event["tid"] != 0) continue;
    if (event["cat"] == "step")
      steps[event["pid"]] = event;
    else if (event["cat"] != "phase" && event["cat"] != "collective")
      ops.insert(event["name"]);
  }
  int kernels = 0;
  for (const json& event : events) {
    if (event["ph"] != "X" || event["tid"] != 2) continue;
    ++kernels;
    EXPECT_EQ(event["cat"], "kernel");
    const std::string op = event["name"];
    EXPECT_TRUE(op.empty() || ops.count(op) == 1) << event;
    const json& step = steps[event["pid"]];
    EXPECT_GE(begin_of(event), begin_of(step)) << event;
    EXPECT_LE(end_of(event), end_of(step)) << event;
  }
  EXPECT_GT(kernels, 4 * 50);
}

TEST_F(Trace, StepsAreChosenByTheReferencesKeys) {
  const json events = events_of({"skip_first_n_steps_for_profiler=2", "profiler_steps=1"});
  std::vector<int> steps;
  for (const json& event : events) {
    if (event["pid"] == 0 && event.value("cat", "") == "step") steps.push_back(event["args"]["step"]);
  }
  EXPECT_EQ(steps, std::vector<int>{2});
  std::filesystem::remove_all(path("out"));
  expect_no_training({"profiler=xplane", "skip_first_n_steps_for_profiler=3"},
                     {"skip_first_n_steps_for_profiler=3", "3 steps"});
}

TEST_F(Trace, NobodyAskedForOne) {
  train({});
  EXPECT_FALSE(std::filesystem::exists(path("out/run/trace.json")));
}

}  // namespace
}  // namespace switchyard::cli_test
