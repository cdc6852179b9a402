// The list of an op whose implementations are one Highway source, and its scalar reference.
#pragma once

#include "kernels/dispatch.h"

#if defined(__x86_64__)
#define SWITCHYARD_SIMD_LIST(op)                                                    \
  {"avx512", Isa::avx512, cpu::op##_avx512}, {"avx2", Isa::avx2, cpu::op##_avx2}, { \
    "ref", Isa::ref, ref::op                                                        \
  }
#else
#define SWITCHYARD_SIMD_LIST(op) \
  { "ref", Isa::ref, ref::op }
#endif
