// Ops whose result at an element follows from the operands at that element: a formula (formulas-inl.h), which
// drivers run on every device. Internal to kernels/.
//
// A new op: its formula, a line for each way in a list of kernels.h, and a function that names its operands:
//
//   SWITCHYARD_PORTABLE_KERNEL(kClamp, clamp, 2);  // 2 operations an element
//   void clamp(ThreadPool& pool, float bound, const TensorView& x, const TensorView& out) {
//     run_elements(pool, kClamp, {.in = {&x}, .out = {&out}, .number = bound});
//   }
#pragma once

#include "core/thread_pool.h"
#include "kernels/element/kernels.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {

namespace elements_detail {

void on_threads(ThreadPool& pool, const ElementArgs& args, ElementKernel* kernel);
template <ElementKernel* kernel>
void on_cpu(ThreadPool& pool, const ElementArgs& args) {
  on_threads(pool, args, kernel);
}
Work work_of(const ElementArgs& args, double flops);
template <int flops>
Work work(const ElementArgs& args) {
  return work_of(args, flops);
}
inline const TensorView& first(const ElementArgs& args) {
  return *args.out[0];
}

}  // namespace elements_detail

// The kernel of an op with `flops` operations an element.
template <int flops>
constexpr Kernel<ElementArgs> element_kernel(const char* name, Kernel<ElementArgs>::Rows rows) {
  return {name, elements_detail::work<flops>, elements_detail::first, rows};
}

// The kernel with its table, for a formula with one row for all CPUs, and for one with vectors.
#define SWITCHYARD_PORTABLE_KERNEL(kernel, op, flops)                                              \
  constexpr Implementation<ElementArgs> kernel##Rows[] = {                                         \
      {"cuda", Gpu::any, gpu::op}, {"portable", Isa::ref, elements_detail::on_cpu<portable::op>}}; \
  constexpr Kernel<ElementArgs> kernel = element_kernel<flops>(#op, kernel##Rows)
#define SWITCHYARD_ELEMENT_KERNEL(kernel, op, flops)                                   \
  constexpr Implementation<ElementArgs> kernel##Rows[] = {                             \
      {"cuda", Gpu::any, gpu::op}, SWITCHYARD_SIMD_ROWS(elements_detail::on_cpu, op)}; \
  constexpr Kernel<ElementArgs> kernel = element_kernel<flops>(#op, kernel##Rows)

// Checks the operands, and computes the op. Bit-identical for any number of threads.
void run_elements(ThreadPool& pool, const Kernel<ElementArgs>& kernel, const ElementArgs& args);

}  // namespace switchyard
