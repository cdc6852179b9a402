// MemoryAccount: the bytes that one rank's tensors occupy, and their peak.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace switchyard {

// The point within a step that a rank has reached.
struct Place {
  std::string_view phase;   // "forward", "backward", "gradients", "optimizer"
  std::string_view op;      // name of the running op, "" between ops
  std::int64_t layer = -1;  // index of the decoder layer, -1 outside of layers
};

class MemoryAccount {
 public:
  void charge(std::int64_t bytes);  // thread safe; negative releases
  std::int64_t in_use() const { return in_use_.load(); }
  std::int64_t peak() const { return peak_.load(); }
  void reset_peak() { peak_.store(in_use_.load()); }

  // From now on, a new peak records the place that `place` returns. Only for an account of one thread.
  void watch(std::function<Place()> place) { place_ = std::move(place); }
  const Place& peak_place() const { return peak_place_; }

 private:
  std::atomic<std::int64_t> in_use_{0}, peak_{0};
  std::function<Place()> place_;
  Place peak_place_;
};

}  // namespace switchyard
