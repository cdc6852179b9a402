// Messages for the failure of a rank.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "core/error.h"
#include "parallel/comm/position.h"

namespace switchyard {

// A collective that failed; its message names the rank's place.
class CollectiveError : public Error {
 public:
  explicit CollectiveError(const std::string& message) : Error(Kind::runtime, message) {}
};

// Returns the message of a failure that ended a rank at `position`, followed by that place, unless the
// message already has it or the failure is the user's mistake.
inline std::string message_with_place(const std::exception& failure, const Position& position) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr)
    return "[memory] out of memory; make the model or the batch smaller" + to_string(position);
  const auto* error = dynamic_cast<const Error*>(&failure);
  const bool usage = error != nullptr && error->kind() == Error::Kind::usage;
  const bool said = usage || dynamic_cast<const CollectiveError*>(&failure) != nullptr;
  return failure.what() + (said ? "" : to_string(position));
}

}  // namespace switchyard
