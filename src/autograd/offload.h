// Values that a remat policy offloads: between forward and backward they lie in pinned memory of the host.
//
// They leave the device when their remat region ends. In the backward pass the first one of a region that is
// asked for starts the way back of all of its region and of the region before it, so that those are there by
// the time that they are read.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "autograd/context.h"
#include "core/offload.h"

namespace switchyard {

struct Value;

// Of one region.
struct OffloadGroup {
  std::vector<std::weak_ptr<Value>> values;
  std::weak_ptr<OffloadGroup> before;  // of the region that ended before
  bool comes_back = false;             // the way back has begun
};

struct OffloadedValue {
  Tensor host;
  std::optional<ArrivingTensor> arriving;
  std::shared_ptr<OffloadGroup> group;
};

// Copies the value's data, which must be alive, to the host. Whoever holds it on the device should let go.
void offload(Context& context, const std::shared_ptr<Value>& value,
             const std::shared_ptr<OffloadGroup>& group);

// The data of an offloaded value, on the device again.
Tensor bring_back(Context& context, Value& value);

}  // namespace switchyard
