#include "emulator/emulator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>

#include "core/device.h"
#include "core/error.h"
#include "core/graph_recording.h"
#include "emulator/async.h"
#include "emulator/machine.h"

namespace switchyard::gpu::emulator {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::uint32_t kSharedBytes = 227 << 10;  // that a block of an H100 can have
constexpr std::uint32_t kSharedAlignment = 1024;   // of dynamic shared memory: 128-byte swizzle repeats

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

}  // namespace

void FreeAligned::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{kSharedAlignment});
}

Machine::Machine() : async_(std::make_unique<Async>(*this)) {}

Machine::~Machine() {
  ending_ = true;
  for (Thread& thread : threads_) thread.fiber->resume();
}

void Machine::run(const Grid& grid, const std::function<void()>& body) {
  CHECK(body_ == nullptr, "a kernel starts a kernel");
  CHECK(grid.threads > 0 && grid.threads % kLanes == 0 && grid.threads <= 1024, "blocks of {} threads",
        grid.threads);
  CHECK(grid.cluster >= 1 && grid.cluster <= 8 && grid.blocks % grid.cluster == 0,
        "{} blocks in clusters of {}", grid.blocks, grid.cluster);
  if (grid.blocks <= 0 || grid.blocks_y <= 0 || grid.blocks_z <= 0) return;
  grid_ = grid;
  body_ = &body;
  count_ = static_cast<std::size_t>(grid.threads * grid.cluster);
  grow();
  const std::int64_t clusters = grid.blocks / grid.cluster * grid.blocks_y * grid.blocks_z;
  const Order now = order();
  std::vector<int> threads(count_);
  std::iota(threads.begin(), threads.end(), 0);
  if (now == Order::reverse) std::reverse(threads.begin(), threads.end());
  for (std::int64_t i = 0; i < clusters; ++i) {
    begin_cluster((now == Order::forward ? i : clusters - 1 - i) * grid.cluster);
    run_cluster(threads);
    end_cluster();
  }
  arrays_.clear();
  body_ = nullptr;
}

void Machine::grow() {
  warps_.resize(std::max(warps_.size(), count_ / kLanes));
  while (threads_.size() < count_) {
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

// `first_block`: of the cluster, in x, then y, then z.
void Machine::begin_cluster(std::int64_t first_block) {
  arrays_.clear();
  arrays_.resize(static_cast<std::size_t>(grid_.cluster));
  for (int rank = 0; rank < grid_.cluster; ++rank) {
    void* const dynamic =
        grid_.shared_bytes > 0 ? made_array(rank, &grid_, grid_.shared_bytes).memory.get() : nullptr;
    for (int i = 0; i < grid_.threads; ++i) {
      const int index = rank * grid_.threads + i;
      Thread& thread = threads_[static_cast<std::size_t>(index)];
      thread.state = State::ready;
      thread.exchanges = 0;
      thread.here = {.thread = i,
                     .threads = grid_.threads,
                     .block = first_block % grid_.blocks + rank,
                     .blocks = grid_.blocks,
                     .block_y = static_cast<int>(first_block / grid_.blocks % grid_.blocks_y),
                     .block_z = static_cast<int>(first_block / grid_.blocks / grid_.blocks_y),
                     .dynamic_shared = dynamic,
                     .rank = rank,
                     .index = index,
                     .registers = 0};
    }
  }
  async_->begin();
}

void Machine::run_cluster(std::vector<int>& threads) {
  const Order now = order();
  for (;;) {
    if (now == Order::random) std::shuffle(threads.begin(), threads.end(), random_);
    for (const int index : threads) {
      if (threads_[static_cast<std::size_t>(index)].state != State::ready) continue;
      current_ = index;
      threads_[static_cast<std::size_t>(index)].fiber->resume();
    }
    async_->maybe_advance();
    if (release_warps() || release_barriers() || release_waiting()) continue;
    if (std::ranges::all_of(this->threads(), [](const Thread& t) { return t.state == State::done; })) return;
    if (async_->advance()) continue;
    CHECK(false, "[emulator] threads of a block wait for what cannot come: {}", who_waits());
  }
}

void Machine::end_cluster() {
  for (const Thread& thread : threads())
    CHECK(thread.groups.empty() && thread.open_group.empty(), "[emulator] a thread ends before its copies");
  async_->end();
}

// Lets the warps go on whose threads have all come to an exchange.
bool Machine::release_warps() {
  bool released = false;
  for (std::size_t first = 0; first < count_; first += kLanes) {
    const auto lanes = threads().subspan(first, kLanes);
    const auto waits = [](const Thread& t) { return t.state == State::in_exchange; };
    if (!std::ranges::all_of(lanes, waits)) continue;
    for (const Thread& t : lanes)
      CHECK(t.exchanges == lanes[0].exchanges, "[emulator] threads of a warp are at different exchanges");
    for (Thread& t : lanes) t.state = State::ready;
    released = true;
  }
  return released;
}

// Lets the blocks go on whose threads are all at the barrier, and the cluster likewise.
bool Machine::release_barriers() {
  bool released = false;
  const auto release = [&](std::span<Thread> of, State state) {
    if (!std::ranges::all_of(of, [=](const Thread& t) { return t.state == state; })) return;
    for (Thread& t : of) t.state = State::ready;
    released = true;
  };
  const auto threads_of_block = static_cast<std::size_t>(grid_.threads);
  for (std::size_t first = 0; first < count_; first += threads_of_block)
    release(threads().subspan(first, threads_of_block), State::at_barrier);
  release(threads(), State::at_cluster_barrier);
  return released;
}

bool Machine::release_waiting() {
  bool released = false;
  for (Thread& thread : threads()) {
    if (thread.state != State::waiting || !thread.is_ready()) continue;
    thread.state = State::ready;
    released = true;
  }
  return released;
}

std::string Machine::who_waits() {
  const auto in = [&](State state) {
    return std::ranges::count_if(threads(), [=](const Thread& t) { return t.state == state; });
  };
  std::string text = fmt::format("{} at a barrier, {} at the cluster's, {} for their warp, {} have ended",
                                 in(State::at_barrier), in(State::at_cluster_barrier), in(State::in_exchange),
                                 in(State::done));
  std::map<std::pair<int, std::string_view>, std::vector<int>> waiting;
  for (const Thread& t : threads()) {
    if (t.state == State::waiting) waiting[{t.here.rank, t.waits_for}].push_back(t.here.thread);
  }
  for (const auto& [what, who] : waiting)
    text += fmt::format("; {} of block {}, the first thread {}, for {}", who.size(), what.first, who.front(),
                        what.second);
  return text + async_->report();
}

SharedArray& Machine::made_array(int rank, const void* declaration, std::size_t bytes) {
  std::vector<SharedArray>& all = arrays(rank);
  const std::uint32_t used =
      all.empty() ? 0 : all.back().address + static_cast<std::uint32_t>(all.back().bytes);
  const std::uint32_t alignment = all.empty() ? kSharedAlignment : 16;
  const std::uint32_t address = (used + alignment - 1) / alignment * alignment;
  CHECK(address + bytes <= kSharedBytes, "[emulator] {} bytes of shared memory, a block has {}",
        address + bytes, kSharedBytes);
  // From the heap, so that the address sanitizer guards its ends.
  std::unique_ptr<std::byte[], FreeAligned> memory(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kSharedAlignment})));
  std::memset(memory.get(), 0xff, bytes);
  std::vector<std::byte> shown;
  if (proxies_are_checked()) shown.assign(bytes, std::byte{0xff});
  return all.emplace_back(SharedArray{declaration, bytes, address, std::move(memory), std::move(shown)});
}

void* Machine::shared_array(const void* declaration, std::size_t bytes) {
  const int rank = current().here.rank;
  for (const SharedArray& array : arrays(rank)) {
    if (array.declaration == declaration && array.bytes == bytes) return array.memory.get();
  }
  return made_array(rank, declaration, bytes).memory.get();
}

SharedArray& Machine::array_at(int rank, const void* address) {
  const auto* const at = static_cast<const std::byte*>(address);
  for (SharedArray& array : arrays(rank)) {
    if (at >= array.memory.get() && at < array.memory.get() + array.bytes) return array;
  }
  CHECK(false, "[emulator] an address that is not of the block's shared memory");
}

SharedArray& Machine::array_at(int rank, std::uint32_t address) {
  for (SharedArray& array : arrays(rank)) {
    if (address >= array.address && address < array.address + array.bytes) return array;
  }
  CHECK(false, "[emulator] shared memory has nothing at {:#x}", address);
}

void* Machine::cluster_address(const void* shared, int rank) {
  const int own = current().here.rank;
  const SharedArray& mine = array_at(own, shared);
  const auto block = threads().subspan(static_cast<std::size_t>(rank * grid_.threads),
                                       static_cast<std::size_t>(grid_.threads));
  CHECK(rank == own || !std::ranges::all_of(block, [](const Thread& t) { return t.state == State::done; }),
        "[emulator] block {} of the cluster has ended, block {} reaches into it", rank, own);
  const auto offset = static_cast<const std::byte*>(shared) - mine.memory.get();
  for (SharedArray& array : arrays(rank)) {
    if (array.declaration == mine.declaration && array.bytes == mine.bytes)
      return array.memory.get() + offset;
  }
  const void* const declaration = mine.declaration;
  return made_array(rank, declaration, mine.bytes).memory.get() + offset;
}

void Machine::wait(State state) {
  Thread& thread = current();
  thread.state = state;
  thread.fiber->suspend();
}

const void* Machine::exchange(const void* mine, std::size_t bytes, int lane) {
  CHECK(bytes <= kExchangeBytes, "{} bytes", bytes);
  Thread& thread = current();
  const auto turn = static_cast<std::size_t>(thread.exchanges++ % 2);
  if (bytes > 0) std::memcpy(warp().given[turn][thread.here.thread % kLanes], mine, bytes);
  wait(State::in_exchange);
  return exchanged(lane);
}

const void* Machine::exchanged(int lane) {
  const auto turn = static_cast<std::size_t>((current().exchanges - 1) % 2);
  return warp().given[turn][lane];
}

Machine& machine() {
  static thread_local Machine instance;
  return instance;
}

void run(const Grid& grid, const std::function<void()>& thread) {
  if (GraphRecording* const recording = GraphRecording::of_thread())
    return recording->add_kernel([grid, thread] { machine().run(grid, thread); });
  machine().run(grid, thread);
}

void check_argument(int number, const void* argument, std::size_t bytes) {
  for (std::size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    const void* address = nullptr;
    std::memcpy(&address, static_cast<const std::byte*>(argument) + at, sizeof(address));
    const HostBlock block = host_block_of(address);
    CHECK(block.bytes == 0,
          "[emulator] argument {} of a kernel, at byte {}, has the address of a tensor of {} bytes in host "
          "memory; "
          "a GPU does not reach it",
          number, at, block.bytes);
  }
}

void set_order(Order now) {
  order() = now;
}

Here& here() {
  return machine().current().here;
}

void* shared_array(const void* declaration, std::size_t bytes) {
  return machine().shared_array(declaration, bytes);
}

void barrier() {
  machine().wait(State::at_barrier);
}

void cluster_barrier() {
  machine().wait(State::at_cluster_barrier);
}

void* cluster_address(const void* shared, int rank) {
  return machine().cluster_address(shared, rank);
}

std::uint32_t shared_address(const void* shared) {
  const SharedArray& array = machine().array_at(here().rank, shared);
  return array.address +
         static_cast<std::uint32_t>(static_cast<const std::byte*>(shared) - array.memory.get());
}

void wait_until(const char* what, std::function<bool()> ready) {
  if (ready()) return;
  Thread& thread = machine().current();
  thread.waits_for = what;
  thread.is_ready = std::move(ready);
  machine().wait(State::waiting);
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
