#include "dist/comm/reduce.h"

#include <algorithm>
#include <array>

#include "core/dtype.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Sums go through a tile that stays in the L1 cache. Full tiles have a constant length, which is what lets
// the compiler vectorise the loops without run-time checks.
constexpr std::int64_t kTile = 1024;

template <typename Sum, typename T>
void first(Sum* __restrict sum, const T* __restrict in, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(in[i]);
}

template <typename Sum, typename T>
void add(Sum* __restrict sum, const T* __restrict in, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<Sum>(in[i]);
}

template <typename Sum, typename T>
void store(const Sum* __restrict sum, T* __restrict out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(sum[i]);
}

template <typename Sum, typename T>
[[gnu::always_inline]] inline void sum_tile(std::span<const void* const> inputs, T* out, std::int64_t begin,
                                            std::int64_t count) {
  alignas(64) std::array<Sum, kTile> sum;
  first(sum.data(), static_cast<const T*>(inputs[0]) + begin, count);
  for (const void* input : inputs.subspan(1)) add(sum.data(), static_cast<const T*>(input) + begin, count);
  store(sum.data(), out + begin, count);
}

template <typename Sum, typename T>
void sum_as(std::span<const void* const> inputs, void* out, std::int64_t count) {
  std::int64_t begin = 0;
  for (; begin + kTile <= count; begin += kTile) sum_tile<Sum>(inputs, static_cast<T*>(out), begin, kTile);
  if (begin < count) sum_tile<Sum>(inputs, static_cast<T*>(out), begin, count - begin);
}

}  // namespace

void sum_in_order(std::string_view type, std::span<const void* const> inputs, void* out, std::int64_t count) {
  if (type == "float32") return sum_as<float, float>(inputs, out, count);
  if (type == "bfloat16") return sum_as<float, bfloat16>(inputs, out, count);
  if (type == "float64") return sum_as<double, double>(inputs, out, count);
  CHECK(type == "int32", "{}", type);
  sum_as<std::int64_t, std::int32_t>(inputs, out, count);
}

std::int64_t element_bytes(std::string_view type) {
  CHECK(type == "float32" || type == "bfloat16" || type == "int32" || type == "float64", "{}", type);
  return type == "float64" ? 8 : type == "bfloat16" ? 2 : 4;
}

}  // namespace switchyard
