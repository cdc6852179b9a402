#include "emulator/async.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "emulator/async_parts.h"

namespace switchyard::gpu::emulator {
namespace {

Pace pace_of_environment() {
  const char* const text = std::getenv("SWITCHYARD_EMULATED_PACE");
  if (text == nullptr) return Pace::late;
  const std::string_view word = text;
  if (word == "late") return Pace::late;
  if (word == "early") return Pace::early;
  if (word == "random") return Pace::random;
  fail_usage("[emulator] SWITCHYARD_EMULATED_PACE={}: expected late, early or random", word);
}

std::atomic<Pace>& chosen_pace() {
  static std::atomic<Pace> now{pace_of_environment()};
  return now;
}

std::atomic<bool>& checked() {
  static std::atomic<bool> now{std::getenv("SWITCHYARD_EMULATED_PROXY") != nullptr};
  return now;
}

}  // namespace

Pace pace() {
  return chosen_pace();
}
void set_pace(Pace now) {
  chosen_pace() = now;
}
void set_proxies_checked(bool now) {
  checked() = now;
}
bool proxies_are_checked() {
  return checked();
}

// ---- Named barriers

namespace {

Named& arrive_at_named(int id, int threads) {
  CHECK(id > 0 && id < kNamedBarriers, "[emulator] a named barrier {}: 1 to {} are free", id,
        kNamedBarriers - 1);
  Named& named = parts().named[static_cast<std::size_t>(here().rank)][static_cast<std::size_t>(id)];
  CHECK(named.came == 0 || named.threads == threads, "[emulator] named barrier {} of {} threads and of {}",
        id, named.threads, threads);
  named.threads = threads;
  if (++named.came == threads) {
    named.came = 0;
    ++named.generation;
  }
  return named;
}

}  // namespace

void named_barrier(int id, int threads) {
  Named& named = arrive_at_named(id, threads);
  if (named.came == 0) return;  // this thread was the last
  wait_until("a named barrier", [&named, before = named.generation] { return named.generation != before; });
}

void named_arrive(int id, int threads) {
  arrive_at_named(id, threads);
}

// ---- The cluster

Async::Async(Machine& of) : machine_(of), parts_(std::make_unique<Parts>()) {
  pace();  // refuses a wrong environment before any thread runs
}
Async::~Async() = default;

void Async::begin() {
  const std::size_t threads = machine_.threads().size();
  const auto blocks = static_cast<std::size_t>(machine_.grid().cluster);
  const bool fits = parts_->beside.size() == threads && parts_->named.size() == blocks;
  if (!std::exchange(parts_->is_used, false) && fits) return;
  parts_->beside.assign(threads, {});
  parts_->multiplied.assign((threads + kGroupThreads - 1) / kGroupThreads, 0);
  parts_->named.assign(blocks, {});
  parts_->copies.clear();
  parts_->barriers.clear();
}

void Async::end() {
  if (!parts_->is_used) return;
  CHECK(parts_->copies.empty(), "[emulator] a block ends before {} of its copies", parts_->copies.size());
  for (const std::uint64_t* barrier : parts_->barriers)
    CHECK(phases_at(barrier).chunks == 0, "[emulator] a block ends with a barrier that waits for {} bytes",
          phases_at(barrier).chunks * kChunkBytes);
  for (Beside& thread : parts_->beside) {
    CHECK(thread.products.empty() && thread.open_products.empty(),
          "[emulator] a block ends with products on their way");
    CHECK(thread.open_stores.empty(), "[emulator] a block ends with stores of no group");
    for (StoreGroup& group : thread.stores) {
      CHECK(group.is_read || group.stores.empty(), "[emulator] a block ends before its stores are read");
      group.write();
    }
  }
  // A block has the registers that it starts with, in units of 8 a thread, of 64 Ki: setmaxnreg moves them
  // among its warps, and waits for ever for more.
  const auto threads = static_cast<int>(machine_.threads().size());
  const int threads_of_block = threads / machine_.grid().cluster,
            registers_of_block = (64 << 10) / threads_of_block / 8 * 8 * threads_of_block;
  int registers = 0, asked = 0;
  for (const Thread& thread : machine_.threads()) {
    registers += thread.here.registers;
    asked += thread.here.registers > 0 ? 1 : 0;
  }
  CHECK(asked == 0 || asked == threads, "[emulator] {} of {} threads say how many registers they have", asked,
        threads);
  CHECK(registers <= registers_of_block * machine_.grid().cluster,
        "[emulator] a cluster's threads ask for {} registers, its blocks have {} each", registers,
        registers_of_block);
}

bool Async::advance() {
  if (!parts_->is_used) return false;
  auto& copies = parts_->copies;
  if (copies.empty()) {
    for (Beside& thread : parts_->beside) {
      for (StoreGroup& group : thread.stores) {
        if (group.is_read) continue;
        group.read();
        return true;
      }
    }
    return false;
  }
  const auto which = machine_.random()() % 3 == 0   ? machine_.random()() % copies.size()
                     : machine_.random()() % 2 == 0 ? 0
                                                    : copies.size() - 1;
  const auto at = copies.begin() + static_cast<std::ptrdiff_t>(which);
  const std::function<void()> land = std::move(*at);
  copies.erase(at);
  land();
  return true;
}

void Async::maybe_advance() {
  if (pace() == Pace::random && machine_.random()() % 4 == 0) advance();
}

std::string Async::report() {
  std::string text;
  for (std::size_t i = 0; i < parts_->barriers.size(); ++i) {
    const Phases now = phases_at(parts_->barriers[i]);
    text += fmt::format("; barrier {}: {} of {} arrivals and {} bytes missing, parity {}", i, now.pending,
                        now.expected, now.chunks * kChunkBytes, now.parity);
  }
  return text;
}

}  // namespace switchyard::gpu::emulator
