// MemoryAccount: the bytes that one rank's tensors take, and the most they ever took.
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
  void charge(std::int64_t bytes);  // thread safe; negative gives back
  std::int64_t in_use() const { return in_use_.load(); }
  std::int64_t peak() const { return peak_.load(); }
  void reset_peak() { peak_.store(in_use_.load()); }

  // From now on a new peak remembers what `place` says then. Only for an account of one thread.
  void watch(std::function<Place()> place) { place_ = std::move(place); }
  const Place& peak_place() const { return peak_place_; }

 private:
  std::atomic<std::int64_t> in_use_{0}, peak_{0};
  std::function<Place()> place_;
  Place peak_place_;
};

}  // namespace switchyard
