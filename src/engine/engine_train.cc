// Engine::train(): a whole training run, which tells of itself in the thread that called.
#include <condition_variable>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "engine/engine_impl.h"
#include "train/run.h"

namespace switchyard {
namespace {

// The run's news lie here until the caller's thread has taken them.
class Desk : public RunObserver {
 public:
  void line(const std::string& text) override { put({.line = text}); }
  void progress(std::int64_t, const std::string&) override {}
  void metrics(std::int64_t step, const StepMetrics& metrics) override {
    put({.metrics = to_json_line(step, metrics)});
  }
  int asked_to_stop() override { return stop_ ? SIGINT : 0; }
  bool takes_signals() const override { return false; }

  // Calls what the caller wants to hear, until `run` is over.
  void hear(const TrainCalls& calls, std::future<RunReport>& run) {
    constexpr std::chrono::milliseconds kBetween(50);
    std::unique_lock lock(mutex_);
    while (true) {
      came_.wait_for(lock, kBetween, [&] { return told_ || over_; });
      if (told_) {
        const Told told = *told_;
        lock.unlock();
        keep_going(calls, told);
        lock.lock();
        told_.reset();
        taken_.notify_one();
      } else if (over_) {
        break;
      } else {
        lock.unlock();
        keep_going(calls, {});
        lock.lock();
      }
    }
    lock.unlock();
    if (thrown_) {
      run.wait();
      std::rethrow_exception(thrown_);
    }
  }

  void end() {
    const std::scoped_lock lock(mutex_);
    over_ = true;
    came_.notify_one();
  }

  bool was_stopped() const { return stop_; }

 private:
  struct Told {
    std::string line = {}, metrics = {};  // one of them, or none
  };

  // Waits until the caller has heard it.
  void put(Told told) {
    std::unique_lock lock(mutex_);
    told_ = std::move(told);
    came_.notify_one();
    taken_.wait(lock, [&] { return !told_; });
  }

  void keep_going(const TrainCalls& calls, const Told& told) {
    if (thrown_) return;
    try {
      bool goes_on = true;
      if (!told.line.empty()) {
        if (calls.line) calls.line(told.line);
      } else if (!told.metrics.empty()) {
        if (calls.after_step) goes_on = calls.after_step(told.metrics);
      } else if (calls.between) {
        goes_on = calls.between();
      }
      if (!goes_on) stop_ = true;
    } catch (...) {
      thrown_ = std::current_exception();
      stop_ = true;
    }
  }

  std::mutex mutex_;  // guards the members up to `over_`
  std::condition_variable came_, taken_;
  std::optional<Told> told_;
  bool over_ = false;
  std::exception_ptr thrown_;  // of the caller's thread
  std::atomic<bool> stop_{false};
};

}  // namespace

TrainedRun Engine::train(const std::string& data, std::int64_t steps, const TrainCalls& calls) {
  Impl& own = *impl_;
  own.refuse_packed("train", "open the engine with weight_format=dense");
  if (own.has_gradients)
    fail_usage("[engine] train: gradients of forward_backward() wait for optimizer_step()");
  Config config = own.config;
  if (!data.empty()) {
    config.set("data_path", data, "train");
    config.derive_dataset_type();
    if (config.get_string("dataset_type") == "synthetic")
      fail_usage("[engine] train: data={}: dataset_type=synthetic reads none; open the engine without it",
                 data);
  }
  if (steps >= 0) config.set("steps", steps, "train");
  const TrainConfig training = own.training();
  std::int64_t done = 0;
  const RunPlace place{
      .run = [&](const std::function<void(Context&)>& run) { own.loop->run(run); },
      .trainer = [&](Context& context) -> Trainer& { return own.trainer(context, training); },
      .steps = [&](Context& context) -> std::int64_t& { return own.state(context)->steps; }};
  Desk desk;
  std::future<RunReport> run = std::async(std::launch::async, [&] {
    struct AtEnd {
      Desk& desk;
      ~AtEnd() { desk.end(); }
    } const at_end{desk};
    return run_training(config, *own.processes, desk, Startup(), &place);
  });
  desk.hear(calls, run);
  RunReport report = run.get();
  own.loop->run([&](Context& context) {
    if (own.speaks(context)) done = own.state(context)->steps;
  });
  const std::string metrics = config.get_string("metrics_file");
  return {.folder = report.folder,
          .metrics_file = metrics.empty() ? report.folder + "/metrics.jsonl" : metrics,
          .lines = std::move(report.lines),
          .sample = std::move(report.sample),
          .steps = done,
          .stopped = desk.was_stopped()};
}

}  // namespace switchyard
