// What a rank's failure is called in messages.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "core/error.h"
#include "parallel/comm/position.h"

namespace switchyard {

// A collective that failed; its message says where the rank was.
class CollectiveError : public Error {
 public:
  explicit CollectiveError(const std::string& message) : Error(Kind::runtime, message) {}
};

// The message of what ended a rank at `position`, and where that was, unless the message or the user knows
// it.
inline std::string message_with_place(const std::exception& failure, const Position& position) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr)
    return "[memory] out of memory; make the model or the batch smaller" + to_string(position);
  const auto* error = dynamic_cast<const Error*>(&failure);
  const bool usage = error != nullptr && error->kind() == Error::Kind::usage;
  const bool said = usage || dynamic_cast<const CollectiveError*>(&failure) != nullptr;
  return failure.what() + (said ? "" : to_string(position));
}

}  // namespace switchyard
