// Reshard: moves an array from one sharding to another; the only communicating op of dense parallelism.
//
// The plan is a chain of steps, each over one mesh axis: slice (whole -> split,
// free), reduce-scatter (partial -> split), all-to-all (split dim i -> split
// dim j), all-gather (split -> whole), all-reduce (partial -> whole). The
// gradient of each step is the reverse step, with whole and partial exchanged.
#pragma once

#include <string>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

struct ReshardStep {
  enum class Kind { slice, reduce_scatter, all_to_all, all_gather, all_reduce };
  Kind kind;
  Axes axes;                 // one axis, or several neighbouring axes moved at once (major to minor)
  std::size_t from_dim = 0;  // all_gather, all_to_all
  std::size_t to_dim = 0;    // slice, reduce_scatter, all_to_all
};

// The steps from `from` to `to`. `to.partial` must be contained in `from.partial` (CHECK).
std::vector<ReshardStep> plan_reshard(const Sharding& from, const Sharding& to);

// The leading axes of `axes`, up to the first one that splits a dim of `taken`.
Axes axes_before(const Axes& axes, const Sharding& taken);

// Returns x with the sharding `to`; x itself when it already has it. Dims must be divisible (CHECK).
Array reshard(Context& context, const Array& x, const Sharding& to);

// Starts the first gather of reshard(x, to), to overlap it with other work; no effect when its first step is
// no gather, or when gathers are not started ahead.
void start_reshard(Context& context, const Array& x, const Sharding& to);

// Reshards x as the axis rules say for these logical names ("" = no name).
Array constrain(Context& context, const Array& x, std::initializer_list<std::string_view> logical_dims);

// Reshards x so that it is whole on every rank.
Array replicate(Context& context, const Array& x);

}  // namespace switchyard
