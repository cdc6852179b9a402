// Vectors in 8 bits: a warp takes a vector. The same bits as on the CPU.
#include "kernels/attention/cuda/int8_vector.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

// A vector's first element in an array of [tokens, heads].
struct Place {
  std::int64_t token, head;
  GPU_FUNCTION static std::int64_t at(const Place& strides, std::int64_t t, std::int64_t h) {
    return t * strides.token + h * strides.head;
  }
};

struct Int8Vectors {
  std::int64_t tokens, heads, dim;
  Place x, values, scales;
};

template <typename T>
GPU_KERNEL vectors_to_int8(Int8Vectors p, const T* x, std::int8_t* values, float* scales) {
  const std::int64_t vector = block_index() * kWarps + thread_index() / kWarp, lane = thread_index() % kWarp;
  if (vector >= p.tokens * p.heads) return;
  const std::int64_t t = vector / p.heads, h = vector % p.heads;
  const float scale = vector_to_int8(x + Place::at(p.x, t, h), values + Place::at(p.values, t, h), p.dim);
  if (lane == 0) scales[Place::at(p.scales, t, h)] = scale;
}

template <typename T>
GPU_KERNEL vectors_from_int8(Int8Vectors p, T* x, const std::int8_t* values, const float* scales) {
  const std::int64_t vector = block_index() * kWarps + thread_index() / kWarp;
  if (vector >= p.tokens * p.heads) return;
  const std::int64_t t = vector / p.heads, h = vector % p.heads;
  const float scale = scales[Place::at(p.scales, t, h)];
  for (std::int64_t d = thread_index() % kWarp; d < p.dim; d += kWarp)
    x[Place::at(p.x, t, h) + d] =
        from_float<T>(scale * static_cast<float>(values[Place::at(p.values, t, h) + d]));
}

Int8Vectors vectors_of(const Int8VectorsArgs& a) {
  const auto place = [](const TensorView& x) { return Place{x.stride(0), x.stride(1)}; };
  return {a.x.dim(0), a.x.dim(1), a.x.dim(2), place(a.x), place(a.values), place(a.scales)};
}

Launch of_vectors(const Int8Vectors& p) {
  return {.blocks = divide_up(p.tokens * p.heads, kWarps), .threads = kThreads};
}

}  // namespace

void to_int8(const Int8VectorsArgs& a) {
  const Int8Vectors p = vectors_of(a);
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    launch(of_vectors(p), vectors_to_int8<T>, p, a.x.device_data<T>(), a.values.device_data<std::int8_t>(),
           a.scales.device_data<float>());
  });
}

void from_int8(const Int8VectorsArgs& a) {
  const Int8Vectors p = vectors_of(a);
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    launch(of_vectors(p), vectors_from_int8<T>, p, a.x.device_data<T>(), a.values.device_data<std::int8_t>(),
           a.scales.device_data<float>());
  });
}

}  // namespace switchyard::gpu
