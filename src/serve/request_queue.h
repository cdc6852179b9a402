// RequestQueue: the door between the connections' threads and the model's thread. Any thread may call any
// function, unless said otherwise.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "serve/limits.h"
#include "serve/statistics.h"
#include "serve/text.h"

namespace switchyard::serve {

class RequestQueue {
 public:
  // Counts refused and abandoned texts in `statistics`, which must outlive the queue.
  RequestQueue(const Limits& limits, Statistics& statistics);

  // Queues all texts of a request; texts for which the model has nothing to do are answered at once. Returns
  // false, and queues none, when not all of them may wait, or after close().
  bool submit(std::vector<WantedText> texts);
  // Takes no more texts and abandons those that wait.
  void close();
  bool is_closed() const;
  std::int64_t running() const;
  std::int64_t waiting() const;

  // The model's thread calls what follows. Waits up to `seconds` for a text or for close().
  void wait(double seconds);
  // Returns the text that has waited longest, if there is one and a slot is free. The text counts as running
  // until finished(). Drops texts that nobody wants any more.
  std::optional<WantedText> take();
  void finished();
  // Returns whether the queue is closed and no text is running.
  bool is_done() const;

 private:
  const std::int64_t slots_, most_waiting_;
  Statistics& statistics_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable came_;
  std::deque<WantedText> waiting_;
  std::int64_t running_ = 0;
  bool closed_ = false;
};

}  // namespace switchyard::serve
