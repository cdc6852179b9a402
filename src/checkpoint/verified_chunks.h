// VerifiedChunks: records which chunks of a checkpoint have been verified, for all threads that read it. It
// also keeps the content of the last few, since ranks that need parts of the same chunks read them at about
// the same time.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace switchyard {

class VerifiedChunks {
 public:
  using Content = std::shared_ptr<const std::byte[]>;

  explicit VerifiedChunks(std::size_t chunks) : states_(chunks, State::unknown) {}

  // Runs `verify`, which returns the chunk's content or nothing, unless it has succeeded for this chunk
  // before. One thread at a time runs it, others wait. An exception goes only to the thread that ran it: the
  // next one tries again.
  struct Outcome {
    bool ran;         // true when this call ran `verify`
    Content content;  // null when it is no longer kept
  };
  Outcome once(std::size_t chunk, const std::function<Content()>& verify);
  std::int64_t verified() const;  // number of chunks so far

 private:
  enum class State : std::uint8_t { unknown, busy, verified };
  static constexpr std::size_t kKept = 4;  // kept contents, of 4 MiB each

  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::vector<State> states_;
  std::array<std::pair<std::size_t, Content>, kKept> kept_;
  std::size_t next_ = 0;  // index in kept_ of the next to replace
};

}  // namespace switchyard
