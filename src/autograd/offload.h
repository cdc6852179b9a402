// Values that a remat policy offloads: between forward and backward they are in the host's pinned memory.
//
// Values leave the device when their remat region ends. In the backward pass, the first request for a value
// of a region starts the copies back for that whole region and for the region before it, so that those values
// have arrived by the time they are read.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "autograd/context.h"
#include "core/offload.h"

namespace switchyard {

struct Value;

// The offloaded values of one remat region.
struct OffloadGroup {
  std::vector<std::weak_ptr<Value>> values;
  std::weak_ptr<OffloadGroup> before;  // the group of the region that ended before
  bool comes_back = false;             // the copies back have begun
};

struct OffloadedValue {
  Tensor host;
  std::optional<ArrivingTensor> arriving;
  std::shared_ptr<OffloadGroup> group;
};

// Copies the value's data, which must be alive, to the host. Holders of the device data should release it.
void offload(Context& context, const std::shared_ptr<Value>& value,
             const std::shared_ptr<OffloadGroup>& group);

// Returns the data of an offloaded value, on the device again.
Tensor bring_back(Context& context, Value& value);

}  // namespace switchyard
