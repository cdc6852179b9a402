// Choice of a kernel's implementation from a list, for ops that are not in a Kernel yet.
#pragma once

#include "kernels/registry/kernel.h"

namespace switchyard {

template <typename Run, typename Shape>
struct ListedRun {
  const char* name;
  Isa isa;
  Run* run;
  const char* (*refuse)(const Shape&) = nullptr;
  static constexpr bool on_gpu = false;
  static constexpr Gpu gpu = Gpu::any;
};

template <typename Run, typename Shape, std::size_t count>
Run* choose(const char* op, const ListedRun<Run, Shape> (&list)[count], const Shape& shape) {
  return registry::choose(
             op, op, std::span<const ListedRun<Run, Shape>>(list), false,
             [&](const auto& row) { return row.refuse == nullptr ? nullptr : row.refuse(shape); })
      .run;
}

}  // namespace switchyard
