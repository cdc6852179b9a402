// What every protocol does with the pieces of a request's texts.
#pragma once

#include <string>

#include "serve/text.h"

namespace switchyard::serve {

// Turns pieces into the bytes of an answer: one JSON object, or a stream of events. The answer is begin(),
// what each add() returns, and end().
class ProtocolAnswer {
 public:
  ProtocolAnswer() = default;
  ProtocolAnswer(const ProtocolAnswer&) = delete;
  ProtocolAnswer& operator=(const ProtocolAnswer&) = delete;
  virtual ~ProtocolAnswer() = default;

  virtual bool is_stream() const = 0;
  virtual std::string begin() = 0;
  // Returns what may be sent now: events, or nothing.
  virtual std::string add(const Piece& piece) = 0;
  virtual std::string end() = 0;
  virtual bool is_finished() const = 0;
  // Returns whether the server gave a text up. Then the answer has no end.
  virtual bool is_abandoned() const = 0;
};

}  // namespace switchyard::serve
