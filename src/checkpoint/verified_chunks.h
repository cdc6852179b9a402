// VerifiedChunks: which chunks of a checkpoint have been compared with their hashes, for all threads that
// read it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace switchyard {

class VerifiedChunks {
 public:
  explicit VerifiedChunks(std::size_t chunks) : states_(chunks, State::unknown) {}

  // Runs `verify` unless it has succeeded for this chunk before; one thread at a time does, others wait for
  // it. What it throws goes to the caller alone: the next one tries again. Returns whether this call ran it.
  bool once(std::size_t chunk, const std::function<void()>& verify);
  std::int64_t verified() const;  // chunks so far

 private:
  enum class State : std::uint8_t { unknown, busy, verified };

  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::vector<State> states_;
};

}  // namespace switchyard
