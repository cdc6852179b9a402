// Inbox: the door between whoever wants texts and the model's thread. Any thread may call any function,
// unless said otherwise.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "texts/limits.h"
#include "texts/observer.h"
#include "texts/text.h"

namespace switchyard::texts {

class Inbox {
 public:
  // The observer must outlive the inbox.
  explicit Inbox(const Limits& limits, Observer& observer = Observer::none());

  // `full`: not all of the texts may wait, or the inbox is closed. too_many_of_key: their key has too many.
  enum class Submitted { yes, full, too_many_of_key };
  // Queues all texts of a request or none; texts for which the model has nothing to do are answered at once.
  // `key` is of whoever asks; -1: nobody's, which has no limit of its own.
  Submitted submit(std::vector<WantedText> texts, std::int64_t key = -1);
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
  void finished(const WantedText& text);
  // While the inbox is held, take() returns nothing: so those texts that run come to an end.
  void hold(bool held);
  // Returns whether the inbox is closed and no text is running.
  bool is_done() const;

 private:
  void leaves(const WantedText& text);

  const std::int64_t slots_, most_waiting_, most_of_key_;
  Observer& observer_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable came_;
  std::deque<WantedText> waiting_;
  std::map<std::int64_t, std::int64_t> texts_of_key_;  // that run or wait
  std::int64_t running_ = 0;
  bool closed_ = false, held_ = false;
};

}  // namespace switchyard::texts
