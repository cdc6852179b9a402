// The rows of an op whose vector implementations are one Highway source, beside its reference, and the
// definitions of their names.
#pragma once

#include "kernels/registry/inner.h"

// Rows of a table: driver<kernel> of each.
#if defined(__x86_64__)
#define SWITCHYARD_SIMD_ROWS(driver, op)                                                            \
  {"avx512", Isa::avx512, driver<cpu::op##_avx512>}, {"avx2", Isa::avx2, driver<cpu::op##_avx2>}, { \
    "ref", Isa::ref, driver<ref::op>                                                                \
  }
#define SWITCHYARD_SIMD_INNER(op)                                                   \
  {"avx512", Isa::avx512, cpu::op##_avx512}, {"avx2", Isa::avx2, cpu::op##_avx2}, { \
    "ref", Isa::ref, ref::op                                                        \
  }
#else
#define SWITCHYARD_SIMD_ROWS(driver, op) \
  { "ref", Isa::ref, driver<ref::op> }
#define SWITCHYARD_SIMD_INNER(op) \
  { "ref", Isa::ref, ref::op }
#endif

// At the end of the source: op_avx2 and op_avx512, which call op_simd of their target. `parameters` and
// `arguments` in brackets.
#define SWITCHYARD_SIMD_EXPORT(op, parameters, arguments) \
  void op##_avx2 parameters {                             \
    N_AVX2::op##_simd arguments;                          \
  }                                                       \
  void op##_avx512 parameters {                           \
    N_AVX3::op##_simd arguments;                          \
  }
