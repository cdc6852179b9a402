// Node: one recorded op. Internal to autograd/.
#pragma once

#include <memory>
#include <vector>

#include "autograd/array.h"
#include "autograd/op.h"

namespace switchyard {

struct Node {
  std::uint64_t id = 0;
  std::int64_t layer = -1;  // Position's layer when the op was recorded
  std::shared_ptr<const Op> op;
  std::vector<ValuePtr> inputs;
  std::vector<std::weak_ptr<Value>> outputs;
  std::vector<ArrayInfo> output_infos;
  std::vector<Tensor> saved_inputs;  // strong references, undefined where not needed or dropped
  std::vector<Tensor> saved_outputs;
};

// Returns the value's data: from a live handle, or recomputed by its producer.
Tensor materialize(Context& context, const ValuePtr& value);

}  // namespace switchyard
