// Tokens of all rows of a batch to their slots in one kernel: a warp takes a vector.
#include "kernels/attention/append_tokens.h"
#include "kernels/attention/cuda/int8_vector.h"
#include "kernels/attention/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

struct Strides {
  std::int64_t outer, token, head;
  GPU_FUNCTION static std::int64_t at(const Strides& s, std::int64_t i, std::int64_t t, std::int64_t h) {
    return i * s.outer + t * s.token + h * s.head;
  }
};

struct Appended {
  std::int64_t batch, tokens, heads, dim;
  Strides x, values, scales;
};

// `scales`: null where numbers are kept as they are.
template <typename T, typename V>
GPU_KERNEL append_vectors(Appended p, const T* x, const std::int32_t* rows, V* values, float* scales) {
  const std::int64_t vector = block_index() * kWarps + thread_index() / kWarp, lane = thread_index() % kWarp;
  if (vector >= p.batch * p.tokens * p.heads) return;
  const std::int64_t h = vector % p.heads, s = vector / p.heads % p.tokens, b = vector / p.heads / p.tokens;
  const std::int32_t slot = rows[b * 3], at = rows[b * 3 + 1], tokens = rows[b * 3 + 2];
  if (slot < 0 || s >= tokens) return;
  const T* const from = x + Strides::at(p.x, b, s, h);
  V* const to = values + Strides::at(p.values, slot, at + s, h);
  if constexpr (sizeof(V) == 1) {
    const float scale = vector_to_int8(from, to, p.dim);
    if (lane == 0) scales[Strides::at(p.scales, slot, at + s, h)] = scale;
  } else {
    for (std::int64_t d = lane; d < p.dim; d += kWarp) to[d] = from[d];
  }
}

}  // namespace

void append_tokens(const AppendTokensArgs& a) {
  const auto strides = [](const TensorView& x) { return Strides{x.stride(0), x.stride(1), x.stride(2)}; };
  Appended p{a.x.dim(0), a.x.dim(1), a.x.dim(2), a.x.dim(3), strides(a.x), strides(a.values), {}};
  if (a.scales.defined()) p.scales = strides(a.scales);
  const Launch how{.blocks = divide_up(p.batch * p.tokens * p.heads, kWarps), .threads = kThreads};
  const auto* const rows = a.rows_there.device_data<std::int32_t>();
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    const T* const x = a.x.device_data<T>();
    if (a.scales.defined())
      launch(how, append_vectors<T, std::int8_t>, p, x, rows, a.values.device_data<std::int8_t>(),
             a.scales.device_data<float>());
    else
      launch(how, append_vectors<T, T>, p, x, rows, a.values.device_data<T>(), static_cast<float*>(nullptr));
  });
}

}  // namespace switchyard::gpu
