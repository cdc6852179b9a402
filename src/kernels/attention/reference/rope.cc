// The scalar truth of rope.h, in double, one pair at a time.
#include "kernels/attention/rope_problem.h"
#include "kernels/pointwise/reference/reference_element.h"

namespace switchyard::ref {
namespace {

template <typename T>
void rotate(const RopeProblem& p, std::int64_t token) {
  const std::int64_t half = p.dim / 2;
  for (std::int64_t h = 0; h < p.heads; ++h) {
    const std::int64_t head = token * p.token_stride + h * p.head_stride;
    const T* const x = static_cast<const T*>(p.x) + head;
    T* const y = static_cast<T*>(p.y) + head;
    for (std::int64_t i = 0; i < half; ++i) {
      const std::int64_t first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + half;
      const double a = reference::to_double(x[first]), b = reference::to_double(x[second]),
                   c = reference::to_double(p.cos[token * half + i]),
                   sine = reference::to_double(p.sin[token * half + i]), s = p.inverse ? -sine : sine;
      y[first] = reference::from_double<T>(a * c - b * s);
      y[second] = reference::from_double<T>(b * c + a * s);
    }
  }
}

}  // namespace

void rope(const RopeProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token)
    p.dtype == DType::f32 ? rotate<float>(p, token) : rotate<bfloat16>(p, token);
}

}  // namespace switchyard::ref
