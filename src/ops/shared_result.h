// Tensors of which the ranks of one process have one copy, each charged for it as if it were its own. They
// are read-only: what all read, none may change in place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "autograd/context.h"
#include "core/tensor.h"

namespace switchyard {

// Whether ranks see each other's tensors: threads of one process, with data.
bool shares_memory(const Context& context);

// Memory for one, charged to nobody.
std::shared_ptr<Buffer> shared_buffer(const Context& context, std::size_t bytes);

// `buffer`, for which this rank is charged `bytes` until it lets go of it, and for a moment `also`.
std::shared_ptr<Buffer> charged_here(const Context& context, std::shared_ptr<Buffer> buffer,
                                     std::size_t bytes, std::size_t also = 0);

// This rank is charged `bytes`, and no longer.
void charge_for_a_moment(const Context& context, std::size_t bytes);

// What all ranks along `axes` would make alike, from what they share: one tensor, of which each rank makes
// the elements [begin, end) of `out`, a view of all elements in a row. Every one of those ranks calls it, at
// the same place of its program.
using MakeShare = std::function<void(const TensorView& out, std::int64_t begin, std::int64_t end)>;
Tensor made_together(Context& context, const Axes& axes, DType dtype, const Shape& shape,
                     const MakeShare& make);

}  // namespace switchyard
