// Reshard: moves an array from one sharding to another. The only op that communicates for dense parallelism.
//
// The plan is a chain of steps, each over one mesh axis: slice (whole ->
// split, free), reduce-scatter (partial -> split), all-to-all (split dim i -> split dim j), all-gather (split
// -> whole), all-reduce (partial -> whole). Each step's gradient is the step back with whole and partial
// exchanged.
#pragma once

#include <string>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

struct ReshardStep {
  enum class Kind { slice, reduce_scatter, all_to_all, all_gather, all_reduce };
  Kind kind;
  Axes axes;                 // one axis, or several neighbouring ones moved at once (major to minor)
  std::size_t from_dim = 0;  // all_gather, all_to_all
  std::size_t to_dim = 0;    // slice, reduce_scatter, all_to_all
};

// The chain from `from` to `to`. `to.partial` must be contained in `from.partial` (CHECK).
std::vector<ReshardStep> plan_reshard(const Sharding& from, const Sharding& to);

// The leading axes of `axes`, before the first that splits a dim of `taken`.
Axes axes_before(const Axes& axes, const Sharding& taken);

// x in the sharding `to`; x itself when it has it already. Dims must divide (CHECK).
Array reshard(Context& context, const Array& x, const Sharding& to);

// Starts the gather that reshard(x, to) will begin with, so that it goes on meanwhile; without effect where
// it begins with none, or where gathers are not started ahead.
void start_reshard(Context& context, const Array& x, const Sharding& to);

// x laid out as the rules say for these logical names ("" = no name).
Array constrain(Context& context, const Array& x, std::initializer_list<std::string_view> logical_dims);

// x whole on every rank.
Array replicate(Context& context, const Array& x);

}  // namespace switchyard
