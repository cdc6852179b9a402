#include "kernels/attention/attention_sinks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/checks.h"
#include "kernels/attention/kernels.h"
#include "kernels/pointwise/float_elements.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTokensOfSinks = 64;  // of a thread's piece, and of a partial sum

struct SinkSizes {
  std::int64_t batch, length, heads, width;

  std::int64_t tokens() const { return batch * length; }
  // The place of the lse of a token's first head; the next head's is `length` further.
  std::int64_t lse_at(std::int64_t token) const { return token / length * heads * length + token % length; }
};

SinkSizes sizes_of(const TensorView& out) {
  return {out.dim(0), out.dim(1), out.dim(2), out.dim(3)};
}

template <typename T>
void scale_vector(T* x, std::int64_t width, float factor) {
  for (std::int64_t d = 0; d < width; ++d) x[d] = static_cast<T>(static_cast<float>(x[d]) * factor);
}

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

void sinks_of_tokens(ThreadPool& pool, const ApplySinksArgs& args) {
  const SinkSizes s = sizes_of(args.out);
  const float* const sinks = args.sinks.kernel_data<float>();
  float* const lse = args.lse.kernel_data<float>();
  with_elements(args.out.dtype(), [&]<typename T>(T) {
    T* const out = args.out.kernel_data<T>();
    pool.for_range(s.tokens(), kTokensOfSinks, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin; token < end; ++token) {
        for (std::int64_t n = 0; n < s.heads; ++n) {
          float& sum = lse[s.lse_at(token) + n * s.length];
          const float before = sum, sink = sinks[n];
          if (before == kNoKeys) {
            sum = sink;
            continue;
          }
          // A NaN stays one.
          const float difference = sink - before;
          sum = difference > 0 ? sink + std::log1p(std::exp(-difference))
                               : before + std::log1p(std::exp(difference));
          scale_vector(out + (token * s.heads + n) * s.width, s.width, 1 / (1 + std::exp(difference)));
        }
      }
    });
  });
}

void gradients_of_tokens(ThreadPool& pool, const SinkGradientsArgs& args) {
  const SinkSizes s = sizes_of(args.out);
  const float *const sinks = args.sinks.kernel_data<float>(), *const lse = args.lse.kernel_data<float>();
  float* const dsinks = args.dsinks.kernel_data<float>();
  const std::int64_t pieces = (s.tokens() + kTokensOfSinks - 1) / kTokensOfSinks;
  const UnchargedScope uncharged;  // scratch, as a thread's
  Buffer buffer(static_cast<std::size_t>(pieces * s.heads) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());  // [pieces][N]
  with_elements(args.out.dtype(), [&]<typename T>(T) {
    const T *const out = args.out.kernel_data<T>(), *const dout = args.dout.kernel_data<T>();
    pool.for_range(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        float* const sum = sums + piece * s.heads;
        std::fill_n(sum, s.heads, 0.0f);
        const std::int64_t last = std::min(s.tokens(), (piece + 1) * kTokensOfSinks);
        for (std::int64_t token = piece * kTokensOfSinks; token < last; ++token) {
          for (std::int64_t n = 0; n < s.heads; ++n) {
            const std::int64_t at = (token * s.heads + n) * s.width;
            sum[n] += std::exp(sinks[n] - lse[s.lse_at(token) + n * s.length]) *
                      dot_product(out + at, dout + at, s.width);
          }
        }
      }
    });
  });
  for (std::int64_t n = 0; n < s.heads; ++n) {
    float sum = 0;
    for (std::int64_t piece = 0; piece < pieces; ++piece) sum += sums[piece * s.heads + n];
    dsinks[n] = -sum;
  }
}

Work apply_work(const ApplySinksArgs& args) {
  return {.dtype = args.out.dtype(),
          .flops = static_cast<double>(args.out.size()),
          .bytes = 2 * static_cast<double>(args.out.bytes() + args.lse.bytes())};
}

Work gradients_work(const SinkGradientsArgs& args) {
  return {.dtype = args.out.dtype(),
          .flops = 2 * static_cast<double>(args.out.size()),
          .bytes = static_cast<double>(args.out.bytes() + args.dout.bytes() + args.lse.bytes())};
}

constexpr Implementation<ApplySinksArgs> kAppliers[] = {{"cuda", Gpu::any, gpu::apply_sinks},
                                                        {"portable", Isa::ref, sinks_of_tokens}};
constexpr Implementation<SinkGradientsArgs> kAttentionSinksGradients[] = {
    {"cuda", Gpu::any, gpu::sink_gradients}, {"portable", Isa::ref, gradients_of_tokens}};
constexpr Kernel<ApplySinksArgs> kApplySinks{"apply_sinks", apply_work, &ApplySinksArgs::out, kAppliers};
constexpr Kernel<SinkGradientsArgs> kSinkGradients{"sink_gradients", gradients_work, &SinkGradientsArgs::out,
                                                   kAttentionSinksGradients};

void check(const char* op, const TensorView& sinks, const TensorView& out, const TensorView& lse) {
  CHECK(out.rank() == 4 && is_float(out.dtype()) && out.is_contiguous(), "[{}] out {} of {}", op,
        to_string(out.shape()), name_of(out.dtype()));
  const SinkSizes s = sizes_of(out);
  check_view(op, "sinks", sinks, DType::f32, {s.heads});
  check_view(op, "lse", lse, DType::f32, {s.batch, s.heads, s.length});
}

}  // namespace

void apply_sinks(ThreadPool& pool, const ApplySinksArgs& args) {
  check("apply_sinks", args.sinks, args.out, args.lse);
  run(pool, kApplySinks, args);
}

void sink_gradients(ThreadPool& pool, const SinkGradientsArgs& args) {
  constexpr const char* kOp = "sink_gradients";
  check(kOp, args.sinks, args.out, args.lse);
  check_view(kOp, "dout", args.dout, args.out.dtype(), args.out.shape());
  check_view(kOp, "dsinks", args.dsinks, DType::f32, args.sinks.shape());
  run(pool, kSinkGradients, args);
}

}  // namespace switchyard
