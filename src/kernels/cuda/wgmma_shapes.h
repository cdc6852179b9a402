// wgmma's instruction for each number of columns (PTX ISA: wgmma.mma_async m64nNk16, bfloat16, sums in
// float). For nvcc alone; wgmma.h has the functions that kernels call.
#pragma once

#include <cstdint>

namespace switchyard::gpu::wgmma_detail {

template <int columns>
struct Shape;

// The sums as operands of inline PTX, eight at a time, and their places in it.
#define GPU_SUMS(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define GPU_PLACES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GPU_PLACES_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define GPU_PLACES_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define GPU_PLACES_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define GPU_PLACES_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define GPU_PLACES_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define GPU_PLACES_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define GPU_PLACES_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define GPU_PLACES_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define GPU_PLACES_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define GPU_PLACES_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define GPU_PLACES_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define GPU_PLACES_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define GPU_PLACES_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define GPU_PLACES_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define GPU_PLACES_15 "%120, %121, %122, %123, %124, %125, %126, %127"

// `registers`, `sums`: of columns / 2 sums. n0 and on: the numbers of the operands that follow them.
#define GPU_WGMMA(columns, registers, sums, n0, n1, n2, n3, n4, n5, n6)                                     \
  template <>                                                                                               \
  struct Shape<columns> {                                                                                   \
    template <int transpose_a, int transpose_b>                                                             \
    __device__ static void by_address(float (&d)[columns / 2], std::uint64_t a, std::uint64_t b, int add) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" n2 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns  \
                   "k16.f32.bf16.bf16 {" registers "}, %" n0 ", %" n1 ", p, 1, 1, %" n3 ", %" n4 "; }"      \
                   : sums                                                                                   \
                   : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));                         \
    }                                                                                                       \
    template <int transpose_b>                                                                              \
    __device__ static void by_registers(float (&d)[columns / 2], const std::uint32_t* a, std::uint64_t b,   \
                                        int add) {                                                          \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" n5 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns  \
                   "k16.f32.bf16.bf16 {" registers "}, {%" n0 ", %" n1 ", %" n2 ", %" n3 "}, %" n4          \
                   ", p, 1, 1, %" n6 "; }"                                                                  \
                   : sums                                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(transpose_b));       \
    }                                                                                                       \
  };

#define GPU_FOUR_SUMS "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define GPU_PLACES_TO_1 GPU_PLACES_0
#define GPU_SUMS_TO_1 GPU_SUMS(0)
#define GPU_PLACES_TO_2 GPU_PLACES_TO_1 ", " GPU_PLACES_1
#define GPU_SUMS_TO_2 GPU_SUMS_TO_1, GPU_SUMS(8)
#define GPU_PLACES_TO_4 GPU_PLACES_TO_2 ", " GPU_PLACES_2 ", " GPU_PLACES_3
#define GPU_SUMS_TO_4 GPU_SUMS_TO_2, GPU_SUMS(16), GPU_SUMS(24)
#define GPU_PLACES_TO_5 GPU_PLACES_TO_4 ", " GPU_PLACES_4
#define GPU_SUMS_TO_5 GPU_SUMS_TO_4, GPU_SUMS(32)
#define GPU_PLACES_TO_6 GPU_PLACES_TO_5 ", " GPU_PLACES_5
#define GPU_SUMS_TO_6 GPU_SUMS_TO_5, GPU_SUMS(40)
#define GPU_PLACES_TO_8 GPU_PLACES_TO_6 ", " GPU_PLACES_6 ", " GPU_PLACES_7
#define GPU_SUMS_TO_8 GPU_SUMS_TO_6, GPU_SUMS(48), GPU_SUMS(56)
#define GPU_PLACES_TO_10 GPU_PLACES_TO_8 ", " GPU_PLACES_8 ", " GPU_PLACES_9
#define GPU_SUMS_TO_10 GPU_SUMS_TO_8, GPU_SUMS(64), GPU_SUMS(72)
#define GPU_PLACES_TO_12 GPU_PLACES_TO_10 ", " GPU_PLACES_10 ", " GPU_PLACES_11
#define GPU_SUMS_TO_12 GPU_SUMS_TO_10, GPU_SUMS(80), GPU_SUMS(88)
#define GPU_PLACES_TO_16 \
  GPU_PLACES_TO_12 ", " GPU_PLACES_12 ", " GPU_PLACES_13 ", " GPU_PLACES_14 ", " GPU_PLACES_15
#define GPU_SUMS_TO_16 GPU_SUMS_TO_12, GPU_SUMS(96), GPU_SUMS(104), GPU_SUMS(112), GPU_SUMS(120)

GPU_WGMMA(8, "%0, %1, %2, %3", GPU_FOUR_SUMS, "4", "5", "6", "7", "8", "9", "10")
GPU_WGMMA(16, GPU_PLACES_TO_1, GPU_SUMS_TO_1, "8", "9", "10", "11", "12", "13", "14")
GPU_WGMMA(32, GPU_PLACES_TO_2, GPU_SUMS_TO_2, "16", "17", "18", "19", "20", "21", "22")
GPU_WGMMA(64, GPU_PLACES_TO_4, GPU_SUMS_TO_4, "32", "33", "34", "35", "36", "37", "38")
GPU_WGMMA(80, GPU_PLACES_TO_5, GPU_SUMS_TO_5, "40", "41", "42", "43", "44", "45", "46")
GPU_WGMMA(96, GPU_PLACES_TO_6, GPU_SUMS_TO_6, "48", "49", "50", "51", "52", "53", "54")
GPU_WGMMA(128, GPU_PLACES_TO_8, GPU_SUMS_TO_8, "64", "65", "66", "67", "68", "69", "70")
GPU_WGMMA(160, GPU_PLACES_TO_10, GPU_SUMS_TO_10, "80", "81", "82", "83", "84", "85", "86")
GPU_WGMMA(192, GPU_PLACES_TO_12, GPU_SUMS_TO_12, "96", "97", "98", "99", "100", "101", "102")
GPU_WGMMA(256, GPU_PLACES_TO_16, GPU_SUMS_TO_16, "128", "129", "130", "131", "132", "133", "134")

#undef GPU_WGMMA

}  // namespace switchyard::gpu::wgmma_detail
