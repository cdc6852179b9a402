// VerifiedChunks: which chunks of a checkpoint have been compared with their hashes, for all threads that
// read it; and the content of the last few, since ranks that take parts of the same chunks do so at about one
// time.
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

  // Runs `verify`, which gives the chunk's content or nothing, unless it has succeeded for this chunk before;
  // one thread at a time does, others wait for it. What it throws goes to the caller alone: the next one
  // tries again.
  struct Outcome {
    bool ran;         // whether this call ran it
    Content content;  // null where it is not at hand
  };
  Outcome once(std::size_t chunk, const std::function<Content()>& verify);
  std::int64_t verified() const;  // chunks so far

 private:
  enum class State : std::uint8_t { unknown, busy, verified };
  static constexpr std::size_t kKept = 4;  // contents, of 4 MiB each

  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::vector<State> states_;
  std::array<std::pair<std::size_t, Content>, kKept> kept_;
  std::size_t next_ = 0;  // of kept_, to be replaced
};

}  // namespace switchyard
