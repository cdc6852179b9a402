// fp32 micro-kernel for AVX2 and AVX-512. bf16 operands become fp32 while they are packed.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/product/cpu/gemm_vectors.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/cpu/transpose_lanes-inl.h"
#include "kernels/product/cpu/gemm_block-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Panels: A [depth][kRows], B [depth][kColumns]. Registers: kRows·2 sums, 2 of B, 1 of A: 27 of 32 with
// AVX-512, 15 of 16 with AVX2.
struct F32Kernel {
  using Element = float;
  static constexpr std::int64_t kRows = HWY_MAX_BYTES == 64 ? 12 : 6;
  static constexpr std::int64_t kColumns = 2 * static_cast<std::int64_t>(lanes::kLanes);
  static constexpr std::int64_t kDepthUnit = 1;
  struct Session {
    Session() {}  // user-provided: keeps the object from counting as unused
  };

  // `width` lines (rows of A, columns of B) from `line`, each `depth` long;
  // line_stride and depth_stride in elements.
  template <std::int64_t width, typename T>
  static void pack(const T* x, std::int64_t lines, std::int64_t line_stride, std::int64_t depth,
                   std::int64_t depth_stride, float* out) {
    if (line_stride == 1) {
      for (std::int64_t l = 0; l < depth; ++l, x += depth_stride, out += width) {
        if (lines == width) {
          for (std::int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(x[i]);
        } else {
          for (std::int64_t i = 0; i < width; ++i) out[i] = i < lines ? static_cast<float>(x[i]) : 0.0f;
        }
      }
      return;
    }
    std::int64_t i = 0;
    for (; i + 4 <= std::min(lines, width); i += 4)
      lanes::transpose_four(x + i * line_stride, line_stride, depth, out + i, width);
    for (; i < width; ++i) {
      for (std::int64_t l = 0; l < depth; ++l) {
        out[l * width + i] = i < lines ? static_cast<float>(x[i * line_stride + l]) : 0.0f;
      }
    }
  }

  template <std::int64_t width>
  static void pack_any(const void* x, DType dtype, bool lines_contiguous, std::int64_t ld, std::int64_t line,
                       std::int64_t lines, std::int64_t k_begin, std::int64_t k_end, float* out) {
    const std::int64_t line_stride = lines_contiguous ? 1 : ld, depth_stride = lines_contiguous ? ld : 1;
    const std::int64_t offset = line * line_stride + k_begin * depth_stride;
    const std::int64_t valid = std::min(width, lines - line), depth = k_end - k_begin;
    if (dtype == DType::f32) {
      pack<width>(static_cast<const float*>(x) + offset, valid, line_stride, depth, depth_stride, out);
    } else {
      pack<width>(static_cast<const bfloat16*>(x) + offset, valid, line_stride, depth, depth_stride, out);
    }
  }

  static void pack_a(const GemmProblem& p, std::int64_t row, std::int64_t row_end, std::int64_t k_begin,
                     std::int64_t k_end, float* out) {
    pack_any<kRows>(p.a, p.dtype, p.transpose_a, p.lda, row, row_end, k_begin, k_end, out);
  }

  static void pack_b(const GemmProblem& p, std::int64_t column, std::int64_t column_end, std::int64_t k_begin,
                     std::int64_t k_end, float* out) {
    pack_any<kColumns>(p.b, p.dtype, !p.transpose_b, p.ldb, column, column_end, k_begin, k_end, out);
  }

  static void multiply(std::int64_t depth, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, bool add,
                       float* HWY_RESTRICT tile) {
    const lanes::D d;
    lanes::V left[kRows], right[kRows];
#pragma GCC unroll 12
    for (std::int64_t i = 0; i < kRows; ++i) {
      left[i] = add ? hn::Load(d, tile + i * kColumns) : hn::Zero(d);
      right[i] = add ? hn::Load(d, tile + i * kColumns + lanes::kLanes) : hn::Zero(d);
    }
    for (std::int64_t l = 0; l < depth; ++l, a += kRows, b += kColumns) {
      const auto b_left = hn::Load(d, b);
      const auto b_right = hn::Load(d, b + lanes::kLanes);
#pragma GCC unroll 12
      for (std::int64_t i = 0; i < kRows; ++i) {
        const auto a_i = hn::Set(d, a[i]);
        left[i] = hn::MulAdd(a_i, b_left, left[i]);
        right[i] = hn::MulAdd(a_i, b_right, right[i]);
      }
    }
#pragma GCC unroll 12
    for (std::int64_t i = 0; i < kRows; ++i) {
      hn::Store(left[i], d, tile + i * kColumns);
      hn::Store(right[i], d, tile + i * kColumns + lanes::kLanes);
    }
  }
};

}  // namespace

void gemm_block_f32(const GemmProblem& problem, const GemmBlock& block) {
  compute_block<F32Kernel>(problem, block);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void gemm_block_avx2(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX2::gemm_block_f32(problem, block);
}
void gemm_block_avx512(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX3::gemm_block_f32(problem, block);
}

}  // namespace switchyard::cpu
#endif
