// Tensors that the ranks of one process share in one copy; each rank is charged for the whole. They are
// read-only: no rank may change them in place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "autograd/context.h"
#include "core/tensor.h"

namespace switchyard {

// True when ranks can read each other's tensors: threads of one process, with data.
bool shares_memory(const Context& context);

// Memory for one shared tensor, charged to no rank.
std::shared_ptr<Buffer> shared_buffer(const Context& context, std::size_t bytes);

// Returns `buffer`, charged to this rank until the rank releases it; `also` is charged only briefly.
std::shared_ptr<Buffer> charged_here(const Context& context, std::shared_ptr<Buffer> buffer,
                                     std::size_t bytes, std::size_t also = 0);

// Charges this rank `bytes` and releases them at once, so that its peak includes them.
void charge_for_a_moment(const Context& context, std::size_t bytes);

// Builds one shared tensor that all ranks along `axes` would otherwise compute alike: each rank computes
// elements [begin, end) of `out`, a view of all elements in one row. Every one of those ranks must call it at
// the same point of its program.
using MakeShare = std::function<void(const TensorView& out, std::int64_t begin, std::int64_t end)>;
Tensor made_together(Context& context, const Axes& axes, DType dtype, const Shape& shape,
                     const MakeShare& make);

}  // namespace switchyard
