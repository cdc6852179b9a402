#include "kernels/cuda/emulator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/fiber.h"

namespace switchyard::gpu::emulator {
namespace {

constexpr int kLanes = 32;
constexpr std::size_t kStackBytes = 256 << 10;

Order order_of_environment() {
  const char* const text = std::getenv("SWITCHYARD_EMULATED_ORDER");
  if (text == nullptr) return Order::forward;
  const std::string_view word = text;
  if (word == "forward") return Order::forward;
  if (word == "reverse") return Order::reverse;
  if (word == "random") return Order::random;
  fail_usage("[emulator] SWITCHYARD_EMULATED_ORDER={}: expected forward, reverse or random", word);
}

std::atomic<Order>& order() {
  static std::atomic<Order> now{order_of_environment()};
  return now;
}

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

enum class State { ready, at_barrier, in_exchange, done };

struct Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::done;
  std::int64_t exchanges = 0;
  std::deque<std::vector<Copy>> groups;  // on their way
  std::vector<Copy> open_group;
};

// What the threads of a warp give: two sets, which take turns, for a thread may give to the next exchange
// before another has read the last.
struct Warp {
  alignas(64) std::byte given[2][kLanes][kExchangeBytes];
};

struct SharedArray {
  const void* declaration;
  std::size_t bytes;
  std::unique_ptr<std::byte[]> memory;
};

// The emulated GPU of one thread of the process.
class Machine {
 public:
  ~Machine() {
    ending_ = true;
    for (Thread& thread : threads_) thread.fiber->resume();
  }

  void run(const Grid& grid, const std::function<void()>& body) {
    CHECK(body_ == nullptr, "a kernel starts a kernel");
    CHECK(grid.threads > 0 && grid.threads % kLanes == 0 && grid.threads <= 1024, "blocks of {} threads",
          grid.threads);
    if (grid.blocks <= 0 || grid.blocks_y <= 0 || grid.blocks_z <= 0) return;
    body_ = &body;
    grow(grid.threads);
    const std::int64_t count = grid.blocks * grid.blocks_y * grid.blocks_z;
    const Order now = order();
    std::vector<int> threads(static_cast<std::size_t>(grid.threads));
    std::iota(threads.begin(), threads.end(), 0);
    if (now == Order::reverse) std::reverse(threads.begin(), threads.end());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t block = now == Order::forward ? i : count - 1 - i;
      here_ = {.thread = 0,
               .threads = grid.threads,
               .block = block % grid.blocks,
               .blocks = grid.blocks,
               .block_y = static_cast<int>(block / grid.blocks % grid.blocks_y),
               .block_z = static_cast<int>(block / grid.blocks / grid.blocks_y),
               .dynamic_shared = nullptr};
      arrays_.clear();
      if (grid.shared_bytes > 0) here_.dynamic_shared = shared_array(&grid, grid.shared_bytes);
      run_block(threads, now);
    }
    arrays_.clear();
    body_ = nullptr;
  }

  const Here& here() const { return here_; }

  void* shared_array(const void* declaration, std::size_t bytes) {
    for (const SharedArray& array : arrays_) {
      if (array.declaration == declaration && array.bytes == bytes) return array.memory.get();
    }
    // From the heap, so that the address sanitizer guards its ends.
    auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memset(memory.get(), 0xff, bytes);
    arrays_.push_back({declaration, bytes, std::move(memory)});
    return arrays_.back().memory.get();
  }

  void wait(State state) {
    Thread& thread = current();
    thread.state = state;
    thread.fiber->suspend();
  }

  const void* exchange(const void* mine, std::size_t bytes, int lane) {
    CHECK(bytes <= kExchangeBytes, "{} bytes", bytes);
    Thread& thread = current();
    const auto turn = static_cast<std::size_t>(thread.exchanges++ % 2);
    if (bytes > 0) std::memcpy(warp().given[turn][here_.thread % kLanes], mine, bytes);
    wait(State::in_exchange);
    return exchanged(lane);
  }
  const void* exchanged(int lane) {
    const auto turn = static_cast<std::size_t>((current().exchanges - 1) % 2);
    return warp().given[turn][lane];
  }

  Thread& current() { return threads_[static_cast<std::size_t>(here_.thread)]; }

 private:
  Warp& warp() { return warps_[static_cast<std::size_t>(here_.thread / kLanes)]; }

  void grow(int threads) {
    warps_.resize(std::max(warps_.size(), static_cast<std::size_t>(threads / kLanes)));
    while (static_cast<int>(threads_.size()) < threads) {
      const std::size_t index = threads_.size();
      threads_.emplace_back();
      threads_.back().fiber = std::make_unique<Fiber>(
          [this, index] {
            while (!ending_) {
              (*body_)();
              threads_[index].state = State::done;
              threads_[index].fiber->suspend();
            }
          },
          kStackBytes);
    }
  }

  void run_block(std::vector<int>& threads, Order now) {
    const auto mine = [&] { return std::span(threads_).first(threads.size()); };
    for (Thread& thread : mine()) {
      thread.state = State::ready;
      thread.exchanges = 0;
    }
    for (;;) {
      if (now == Order::random) std::shuffle(threads.begin(), threads.end(), random_);
      bool ran = false;
      for (const int index : threads) {
        Thread& thread = threads_[static_cast<std::size_t>(index)];
        if (thread.state != State::ready) continue;
        here_.thread = index;
        thread.fiber->resume();
        ran = true;
      }
      if (release_warps(mine())) continue;
      const auto in = [&](State state) {
        return std::ranges::count_if(mine(), [=](const Thread& t) { return t.state == state; });
      };
      const auto all = static_cast<std::ptrdiff_t>(threads.size());
      if (in(State::done) == all) break;
      CHECK(in(State::at_barrier) == all,
            "[emulator] threads of a block wait for what cannot come: {} at a barrier, {} for their warp, {} "
            "have "
            "ended (something ran: {})",
            in(State::at_barrier), in(State::in_exchange), in(State::done), ran);
      for (Thread& thread : mine()) thread.state = State::ready;
    }
    for (const Thread& thread : mine())
      CHECK(thread.groups.empty() && thread.open_group.empty(), "[emulator] a thread ends before its copies");
  }

  // Lets the warps go on whose threads have all come to an exchange.
  static bool release_warps(std::span<Thread> threads) {
    bool released = false;
    for (std::size_t first = 0; first < threads.size(); first += kLanes) {
      const auto lanes = threads.subspan(first, kLanes);
      const auto waits = [](const Thread& t) { return t.state == State::in_exchange; };
      if (!std::ranges::all_of(lanes, waits)) continue;
      for (const Thread& t : lanes)
        CHECK(t.exchanges == lanes[0].exchanges, "[emulator] threads of a warp are at different exchanges");
      for (Thread& t : lanes) t.state = State::ready;
      released = true;
    }
    return released;
  }

  const std::function<void()>* body_ = nullptr;
  Here here_{};
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<SharedArray> arrays_;
  std::mt19937 random_{1};
  bool ending_ = false;
};

Machine& machine() {
  static thread_local Machine instance;
  return instance;
}

}  // namespace

void run(const Grid& grid, const std::function<void()>& thread) {
  machine().run(grid, thread);
}

void set_order(Order now) {
  order() = now;
}

const Here& here() {
  return machine().here();
}

void* shared_array(const void* declaration, std::size_t bytes) {
  return machine().shared_array(declaration, bytes);
}

void barrier() {
  machine().wait(State::at_barrier);
}

const void* exchange(const void* mine, std::size_t bytes, int lane) {
  return machine().exchange(mine, bytes, lane);
}

const void* exchanged(int lane) {
  return machine().exchanged(lane);
}

void copy_later(void* to, const void* from, std::size_t bytes) {
  machine().current().open_group.push_back({to, from, bytes});
}

void end_group() {
  Thread& thread = machine().current();
  thread.groups.push_back(std::move(thread.open_group));
  thread.open_group.clear();
}

void wait_for_groups(int left) {
  Thread& thread = machine().current();
  while (std::ssize(thread.groups) > left) {
    for (const Copy& copy : thread.groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
    thread.groups.pop_front();
  }
}

}  // namespace switchyard::gpu::emulator
