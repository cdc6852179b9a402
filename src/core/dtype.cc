#include "core/dtype.h"

#include "core/error.h"

namespace switchyard {

DType parse_float_dtype(std::string_view text, std::string_view key) {
  if (text == "float32" || text == "f32") return DType::f32;
  if (text == "bfloat16" || text == "bf16") return DType::bf16;
  fail_usage("[config] {}={}: expected float32 or bfloat16", key, text);
}

std::optional<DType> packed_dtype(std::string_view name) {
  for (const PackedFormat& format : kPackedFormats) {
    if (format.packable && format.name == name) return format.dtype;
  }
  return std::nullopt;
}

}  // namespace switchyard
