// ProtocolAnswer: turns the pieces of a request's texts into the bytes of its answer. The answer is begin(),
// what each add() returns, and end().
#pragma once

#include <cstddef>
#include <string>

#include "core/error.h"
#include "serve/texts.h"

namespace switchyard::serve {

class ProtocolAnswer {
 public:
  explicit ProtocolAnswer(std::size_t texts) : texts_(texts), unfinished_(texts) {}
  virtual ~ProtocolAnswer() = default;
  ProtocolAnswer(const ProtocolAnswer&) = delete;
  ProtocolAnswer& operator=(const ProtocolAnswer&) = delete;

  // Returns whether the bytes are a stream of events, which are sent as they come.
  virtual bool is_stream() const = 0;
  virtual std::string begin() { return ""; }
  virtual std::string add(const Piece& piece) = 0;
  virtual std::string end() = 0;
  // The status of HTTP, which an answer that is no stream knows at its end.
  virtual int status() const { return 200; }

  // How many texts it tells.
  std::size_t texts() const { return texts_; }
  bool is_finished() const { return unfinished_ == 0; }
  // Returns whether the server gave a text up. Then the answer has no end.
  bool is_abandoned() const { return abandoned_; }

 protected:
  // Each add() calls it first.
  void count(const Piece& piece) {
    CHECK(piece.choice < texts_ && unfinished_ > 0,
          "a piece of text {}, of which an answer of {} knows nothing", piece.choice, texts_);
    if (!piece.finish) return;
    --unfinished_;
    abandoned_ = abandoned_ || *piece.finish == Finish::abandoned;
  }

 private:
  const std::size_t texts_;
  std::size_t unfinished_;
  bool abandoned_ = false;
};

}  // namespace switchyard::serve
