#include "checkpoint/gptq.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/half.h"
#include "kernels/packed/packed_block.h"

namespace switchyard {
namespace {

constexpr std::int64_t kInWord = 8;
constexpr int kZero = 8;

// Entries need not be aligned.
template <typename T>
T entry_at(const SafetensorsFile::Entry& entry, std::int64_t i) {
  T value;
  std::memcpy(&value, entry.bytes.data() + i * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

std::int64_t group_of(const GptqWeight& w, std::int64_t input) {
  return w.groups.dtype.empty() ? input / (w.inputs() / w.scales.shape[0])
                                : entry_at<std::int32_t>(w.groups, input);
}

// Scale `i` of the tensor.
float scale_at(const GptqWeight& w, std::int64_t i) {
  const auto bits = entry_at<std::uint16_t>(w.scales, i);
  return w.scales.dtype == "F16" ? half_to_float(bits)
                                 : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float scale_at(const GptqWeight& w, std::int64_t input, std::int64_t output) {
  return scale_at(w, group_of(w, input) * w.outputs() + output);
}

std::string problem_of_shape(const char* part, const SafetensorsFile::Entry& entry, const char* dtype,
                             const Shape& shape) {
  if (entry.dtype == dtype && entry.shape == shape) return {};
  return fmt::format("its {} is {} {}, expected {} {}", part, entry.dtype, to_string(entry.shape), dtype,
                     to_string(shape));
}

int number_at(const GptqWeight& w, std::int64_t input, std::int64_t output) {
  const auto word = entry_at<std::uint32_t>(w.numbers, input / kInWord * w.outputs() + output);
  return static_cast<int>(word >> 4 * (input % kInWord) & 15) - kZero;
}

}  // namespace

bool is_gptq_form(const nlohmann::json& quantization) {
  const auto text = [&](const char* key) {
    const auto value = quantization.find(key);
    return value != quantization.end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  const std::string method = text("quant_method");
  return method == "gptq" || method == "gptqmodel" ||
         (method == "auto-round" && text("packing_format") == "auto_round:auto_gptq");
}

std::string gptq_problem(GptqWeight& w) {
  if (w.numbers.dtype != "I32" || w.numbers.shape.size() != 2)
    return fmt::format("its qweight is {} {}, expected I32 [in / 8, out]", w.numbers.dtype,
                       to_string(w.numbers.shape));
  const std::int64_t inputs = w.inputs(), outputs = w.outputs();
  const std::int64_t groups = w.scales.shape.size() == 2 ? w.scales.shape[0] : 0;
  if (groups == 0 || inputs % groups != 0 || inputs / groups % kGroupInputs != 0 || outputs % kInWord != 0)
    return fmt::format("its scales are {} of {}, expected a group of a multiple of {} inputs for each row",
                       to_string(w.scales.shape), to_string(w.shape()), kGroupInputs);
  const bool bfloats = w.scales.dtype == "BF16";
  if (std::string p = problem_of_shape("scales", w.scales, bfloats ? "BF16" : "F16", {groups, outputs});
      !p.empty())
    return p;
  for (std::int64_t i = 0; bfloats && w.half_scales && i < groups * outputs; ++i) {
    const float scale = scale_at(w, i);
    w.half_scales = half_to_float(float_to_half(scale)) == scale;
  }
  if (std::string p = problem_of_shape("qzeros", w.zeros, "I32", {groups, outputs / kInWord}); !p.empty())
    return p;
  for (std::int64_t i = 0; i < groups * outputs / kInWord; ++i) {
    if (entry_at<std::uint32_t>(w.zeros, i) != 0x11111111u * static_cast<std::uint32_t>(w.stored_zero))
      return fmt::format(
          "it is asymmetric (its qzeros are not all {}, the middle); only symmetric GPTQ is read",
          w.stored_zero);
  }
  if (w.groups.dtype.empty()) return {};
  if (std::string p = problem_of_shape("g_idx", w.groups, "I32", {inputs}); !p.empty()) return p;
  for (std::int64_t i = 0; i < inputs; ++i) {
    const auto group = entry_at<std::int32_t>(w.groups, i);
    if (group < 0 || group >= groups)
      return fmt::format("its g_idx has group {} of input {}, expected 0 to {}", group, i, groups - 1);
    w.in_order = w.in_order && group == entry_at<std::int32_t>(w.groups, i - i % kGroupInputs);
  }
  return {};
}

std::optional<std::int64_t> gptq_infinite_scale(const GptqWeight& w, std::int64_t begin, std::int64_t end) {
  for (std::int64_t group = 0; group < w.scales.shape[0]; ++group) {
    for (std::int64_t output = begin; output < end; ++output) {
      const std::int64_t i = group * w.outputs() + output;
      if (!std::isfinite(scale_at(w, i))) return i;
    }
  }
  return std::nullopt;
}

Tensor gptq_rows(const GptqWeight& w, std::int64_t begin, std::int64_t end) {
  CHECK(0 <= begin && begin <= end && end <= w.outputs(), "rows [{}, {}) of {}", begin, end,
        to_string(w.shape()));
  Tensor out(DType::f32, {end - begin, w.inputs()});
  float* to = out.data<float>();
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t i = 0; i < w.inputs(); ++i) {
      *to++ = scale_at(w, i, row) * static_cast<float>(number_at(w, i, row));
    }
  }
  return out;
}

bool is_whole_blocks(const GptqWeight& w) {
  return w.in_order && w.half_scales && w.outputs() % kBlockOutputs == 0 &&
         w.inputs() % block_inputs(DType::packed_int4) == 0;
}

Tensor gptq_blocks(const GptqWeight& w) {
  CHECK(is_whole_blocks(w), "{} in blocks", to_string(w.shape()));
  const Tensor blocks(DType::packed_int4, {w.inputs() / kGroupInputs, w.outputs() / kBlockOutputs});
  std::byte* block = blocks.raw();
  for (std::int64_t first = 0; first < w.inputs(); first += kGroupInputs) {
    for (std::int64_t output = 0; output < w.outputs(); ++output) {
      PackedGroup group;
      group.scale = float_to_half(scale_at(w, first, output));
      for (std::int64_t i = 0; i < kGroupInputs; ++i)
        group.numbers[static_cast<std::size_t>(i)] =
            static_cast<std::int8_t>(number_at(w, first + i, output));
      write_group(DType::packed_int4, group,
                  block + output / kBlockOutputs * static_cast<std::int64_t>(size_of(DType::packed_int4)),
                  output % kBlockOutputs);
    }
    block += w.outputs() / kBlockOutputs * static_cast<std::int64_t>(size_of(DType::packed_int4));
  }
  return blocks;
}

}  // namespace switchyard
