#include "models/finite.h"

#include <cmath>
#include <cstring>

namespace switchyard {
namespace {

bool is_finite(const Tensor& x, std::size_t i) {
  if (x.dtype() == DType::f32) return std::isfinite(x.span<float>()[i]);
  constexpr std::uint16_t kInfinity = 0x7f80;  // of bfloat16
  std::uint16_t bits = 0;
  std::memcpy(&bits, x.raw() + i * sizeof bits, sizeof bits);
  return (bits & kInfinity) != kInfinity;
}

}  // namespace

double count_not_finite(Context& context, const Array& array) {
  const Tensor& own = array.tensor();
  const Tensor x =
      read_back(context, own, "outputs", [&] { return Memory().zeros(own.dtype(), own.shape()); });
  double count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_elements(x.shape())); ++i)
    count += is_finite(x, i) ? 0 : 1;
  return count;
}

}  // namespace switchyard
