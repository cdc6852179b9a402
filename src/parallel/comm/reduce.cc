#include "parallel/comm/reduce.h"

#include "core/error.h"
#include "kernels/pointwise/rank_sum.h"

namespace switchyard {
namespace {

constexpr std::string_view kWidened = "bfloat16 as float32";

template <typename Sum, typename T>
void sum_as(std::span<const void* const> inputs, void* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    auto sum = static_cast<Sum>(static_cast<const T*>(inputs[0])[i]);
    for (const void* input : inputs.subspan(1)) sum += static_cast<Sum>(static_cast<const T*>(input)[i]);
    static_cast<T*>(out)[i] = static_cast<T>(sum);
  }
}

}  // namespace

void sum_in_order(std::string_view type, std::span<const void* const> inputs, void* out, std::int64_t count) {
  if (type == "float32") return rank_sum(DType::f32, inputs, DType::f32, out, count);
  if (type == "bfloat16") return rank_sum(DType::bf16, inputs, DType::bf16, out, count);
  if (type == kWidened) return rank_sum(DType::bf16, inputs, DType::f32, out, count);
  if (type == "float64") return sum_as<double, double>(inputs, out, count);
  CHECK(type == "int32", "{}", type);
  sum_as<std::int64_t, std::int32_t>(inputs, out, count);
}

std::int64_t element_bytes(std::string_view type) {
  CHECK(type == "float32" || type == "bfloat16" || type == kWidened || type == "int32" || type == "float64",
        "{}", type);
  return type == "float64" ? 8 : type == "bfloat16" || type == kWidened ? 2 : 4;
}

std::int64_t sum_bytes(std::string_view type) {
  return type == kWidened ? 4 : element_bytes(type);
}

}  // namespace switchyard
