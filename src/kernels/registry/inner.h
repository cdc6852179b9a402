// Lists of CPU functions that another kernel's loop calls, or that have no pool: an op whose work is handed
// out by its caller. An op that hands out its own work has a Kernel (registry/kernel.h).
#pragma once

#include "kernels/registry/kernel.h"

namespace switchyard {

// `refuse` returns null to accept, or the reason not to; a null function accepts everything.
template <typename Run, typename Shape>
struct InnerImplementation {
  const char* name;
  Isa isa;
  Run* run;
  const char* (*refuse)(const Shape&) = nullptr;
  static constexpr bool on_gpu = false;
  static constexpr Gpu gpu = Gpu::any;
};

// The first of the list that the machine and the shape allow; the last must accept everything. Recorded.
template <typename Run, typename Shape, std::size_t count>
Run* choose(const char* op, const InnerImplementation<Run, Shape> (&list)[count], const Shape& shape) {
  using Row = InnerImplementation<Run, Shape>;
  return registry::choose(op, op, std::span<const Row>(list), false,
                          [&](const Row& row) { return row.refuse == nullptr ? nullptr : row.refuse(shape); })
      .run;
}

}  // namespace switchyard
