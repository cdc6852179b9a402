// MemoryAccount: the bytes that one rank's tensors take, and the most they ever took.
//
// The memory pool counts the whole process; a thread runs one rank at a time, so what a buffer is charged to
// follows the thread that makes it. An account may be *abstract*: its buffers have a size but no memory behind
// them (reading one is a fault). That is how `plan` runs a step of a model that does not fit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace switchyard {

// Where in a step a rank is.
struct Place {
  std::string_view phase;   // "forward", "backward", "gradients", "optimizer"
  std::string_view op;      // name of the running op, "" between ops
  std::int64_t layer = -1;  // of the decoder, -1 outside of its layers
};

class MemoryAccount {
 public:
  explicit MemoryAccount(bool abstract = false) : abstract_(abstract) {}
  bool abstract() const { return abstract_; }

  void charge(std::int64_t bytes);  // thread safe; negative gives back
  std::int64_t in_use() const { return in_use_.load(); }
  std::int64_t peak() const { return peak_.load(); }
  void reset_peak() { peak_.store(in_use_.load()); }

  // From now on a new peak remembers what `place` says then. Only for an account of one thread.
  void watch(std::function<Place()> place) { place_ = std::move(place); }
  const Place& peak_place() const { return peak_place_; }

 private:
  const bool abstract_;
  std::atomic<std::int64_t> in_use_{0}, peak_{0};
  std::function<Place()> place_;
  Place peak_place_;
};

// What buffers made by this thread are charged to; null: to nothing but the process.
const std::shared_ptr<MemoryAccount>& current_account();
bool charging();  // false inside UnchargedScope

// What the scopes below have set, for a rank that goes on on another thread.
struct Charging {
  std::shared_ptr<MemoryAccount> account;
  bool on = true;
};
void swap_charging(Charging& with);  // this thread's

// While alive, buffers that this thread makes are charged to `account`, until they are freed.
class AccountScope {
 public:
  explicit AccountScope(std::shared_ptr<MemoryAccount> account);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  std::shared_ptr<MemoryAccount> before_;
};

// While alive, buffers that this thread makes are charged to no rank: weights that ranks share, and the
// scratch space of pieces of a parallel loop. Under an abstract account they still have no memory.
class UnchargedScope {
 public:
  UnchargedScope();
  ~UnchargedScope();
  UnchargedScope(const UnchargedScope&) = delete;
  UnchargedScope& operator=(const UnchargedScope&) = delete;

 private:
  bool before_;
};

}  // namespace switchyard
