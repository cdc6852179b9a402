// Code between SWITCHYARD_AMX_BEGIN and SWITCHYARD_AMX_END may use AVX-512 (with BF16) and AMX; dispatch.h
// sees to it that it runs only where the machine has them. Headers are included before it.
#pragma once

#if defined(__x86_64__)
#if defined(__clang__)
#define SWITCHYARD_AMX_BEGIN                                                                   \
  _Pragma(                                                                                     \
      "clang attribute "                                                                       \
      "push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw," \
      "amx-tile,amx-bf16\"))), apply_to = function)")
#define SWITCHYARD_AMX_END _Pragma("clang attribute pop")
#else
// g++ 12's own intrinsics read a variable that they leave uninitialised on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define SWITCHYARD_AMX_BEGIN  \
  _Pragma("GCC push_options") \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw,amx-tile,amx-bf16\")")
#define SWITCHYARD_AMX_END _Pragma("GCC pop_options")
#endif
// The same for single functions.
#define SWITCHYARD_AMX \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw,amx-tile,amx-bf16")))
#define SWITCHYARD_AMX_INLINE SWITCHYARD_AMX __attribute__((always_inline)) inline
#include <immintrin.h>

#include <cstdint>

namespace switchyard::cpu {

// All eight tile registers as 16 rows of 64 bytes, while this lives. Written as assembly: g++ 12 drops the
// stores to the configuration before its _tile_loadconfig at -O2.
class TileSession {
 public:
  TileSession() {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const config;
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~TileSession() { asm volatile("tilerelease" ::: "memory"); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

}  // namespace switchyard::cpu
#endif
