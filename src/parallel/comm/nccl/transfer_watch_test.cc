// The watch waits for transfers in order, at their places, beside the thread that adds them; a failure of one
// ends the run there. Tests of wait_until() cover the deadlines.
#include "parallel/comm/nccl/transfer_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

// What a channel between processes was asked for. Read it once the watch is gone.
struct Asked {
  std::vector<std::string> places, failures;
};

class PatientChannel : public ProcessBackend {
 public:
  explicit PatientChannel(Asked& asked) : asked_(asked) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  int process_of(int rank) const override { return rank; }
  Position& position() override { return position_; }
  std::shared_ptr<void> shared(const std::string&,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return make();
  }
  double carry_out(const ProcessGroup&, const CollectiveCall&, const Operands&) override { return 0; }
  double agree(const ProcessGroup&, const CollectiveCall&, const Operands&) override { return 0; }
  void wait_until(const ProcessGroup& group, const CollectiveCall& call,
                  const std::function<bool()>& done) override {
    asked_.places.push_back(to_string(call) + " among " + std::to_string(group.size()) +
                            to_string(position_));
    while (!done()) std::this_thread::yield();
  }
  std::unique_ptr<ProcessBackend> second_process_channel() override { return nullptr; }
  void failed(const std::exception& failure) override { asked_.failures.push_back(failure.what()); }

 private:
  Asked& asked_;
  Position position_;
};

std::shared_ptr<StartedCollective> transfer_of(std::int64_t bytes, std::int64_t step) {
  const auto started = std::make_shared<StartedCollective>(ProcessGroup{{0, 1}, 0, "data"});
  started->call = {.kind = Collective::all_gather, .axis = started->group.axis, .size = bytes};
  started->step = step;
  started->layer = 7;
  started->phase = "forward";
  return started;
}

TEST(TransferWatch, WaitsForOneAfterTheOther) {
  Asked asked;
  std::atomic<bool> first_may_end{false}, first_ended{false}, second_came_early{false};
  std::atomic<int> second_asked{0};
  {
    TransferWatch watch(std::make_unique<PatientChannel>(asked));
    watch.add(transfer_of(10, 3), [&] {
      if (first_may_end) first_ended = true;
      return first_ended.load();
    });
    watch.add(transfer_of(20, 4), [&] {
      if (!first_ended) second_came_early = true;
      return ++second_asked == 5;
    });
    EXPECT_FALSE(first_ended) << "add() waits for nothing";
    first_may_end = true;
  }
  EXPECT_FALSE(second_came_early);
  EXPECT_EQ(second_asked, 5) << "the watch ends when all is done";
  EXPECT_EQ(asked.places, (std::vector<std::string>{
                              "all_gather over 'data' of 10 bytes among 2 in layer 7, step 3 (forward)",
                              "all_gather over 'data' of 20 bytes among 2 in layer 7, step 4 (forward)"}));
  EXPECT_TRUE(asked.failures.empty());
}

TEST(TransferWatch, AFailureEndsTheRunFromTheWatch) {
  Asked asked;
  {
    TransferWatch watch(std::make_unique<PatientChannel>(asked));
    watch.add(transfer_of(10, 3), []() -> bool { fail_runtime("[cuda] a kernel failed"); });
  }
  EXPECT_EQ(asked.failures, std::vector<std::string>{"[cuda] a kernel failed"});
}

TEST(TransferWatch, KeepsNoTransferThatIsDone) {
  Asked asked;
  TransferWatch watch(std::make_unique<PatientChannel>(asked));
  auto started = transfer_of(10, 3);
  const std::weak_ptr<StartedCollective> kept = started;
  watch.add(std::move(started), [] { return true; });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!kept.expired() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace switchyard
