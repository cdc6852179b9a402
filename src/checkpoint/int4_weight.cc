#include "checkpoint/int4_weight.h"

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

std::int64_t group_of(const Int4Weight& w, std::int64_t input) {
  return w.groups.dtype.empty() ? input / (w.inputs() / w.groups_of_inputs())
                                : entry_at<std::int32_t>(w.groups, input);
}

// Scale `i` of the tensor.
float scale_at(const Int4Weight& w, std::int64_t i) {
  const auto bits = entry_at<std::uint16_t>(w.scales, i);
  return w.scales.dtype == "F16" ? half_to_float(bits)
                                 : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float scale_of(const Int4Weight& w, std::int64_t group, std::int64_t output) {
  return scale_at(w, w.outputs_first ? output * w.groups_of_inputs() + group : group * w.outputs() + output);
}

float scale_at(const Int4Weight& w, std::int64_t input, std::int64_t output) {
  return scale_of(w, group_of(w, input), output);
}

std::string problem_of_shape(const char* part, const SafetensorsFile::Entry& entry, const char* dtype,
                             const Shape& shape) {
  if (entry.dtype == dtype && entry.shape == shape) return {};
  return fmt::format("its {} is {} {}, expected {} {}", part, entry.dtype, to_string(entry.shape), dtype,
                     to_string(shape));
}

int number_at(const Int4Weight& w, std::int64_t input, std::int64_t output) {
  const std::int64_t row = input / kInWord;
  const auto word = entry_at<std::uint32_t>(
      w.numbers, w.outputs_first ? output * (w.inputs() / kInWord) + row : row * w.outputs() + output);
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

std::string compressed_form_problem(const nlohmann::json& quantization) {
  const auto is_absent = [](const nlohmann::json& of, const char* key) {
    return !of.contains(key) || of[key].is_null() || (of[key].is_structured() && of[key].empty());
  };
  if (quantization.value("format", nlohmann::json()) != "pack-quantized") return "format";
  for (const char* key : {"kv_cache_scheme", "sparsity_config"}) {
    if (!is_absent(quantization, key)) return key;
  }
  const nlohmann::json groups = quantization.value("config_groups", nlohmann::json());
  if (!groups.is_object() || groups.empty()) return "config_groups";
  for (const nlohmann::json& group : groups) {
    if (!group.is_object() || is_absent(group, "weights") || !group["weights"].is_object())
      return "config_groups";
    for (const char* key : {"input_activations", "output_activations"}) {
      if (!is_absent(group, key)) return key;  // what is multiplied would be rounded too
    }
    const nlohmann::json& weights = group["weights"];
    const auto is = [&](const char* key, const nlohmann::json& wanted) {
      return weights.value(key, wanted) == wanted;
    };
    if (!weights.contains("num_bits") || !is("num_bits", 4)) return "num_bits";
    if (!is("type", "int")) return "type";
    if (!is("symmetric", true)) return "symmetric";
    if (!is("strategy", "group") && !is("strategy", "channel")) return "strategy";
  }
  return {};
}

namespace {

// Returns how a weight of compressed-tensors differs from their layout; empty: it does not.
std::string compressed_problem(const Int4Weight& w) {
  if (w.numbers.dtype != "I32" || w.numbers.shape.size() != 2)
    return fmt::format("its weight_packed is {} {}, expected I32 [out, in / 8]", w.numbers.dtype,
                       to_string(w.numbers.shape));
  if (std::string p = problem_of_shape("weight_shape", w.stated_shape, "I64", {2}); !p.empty()) return p;
  const Shape stated{entry_at<std::int64_t>(w.stated_shape, 0), entry_at<std::int64_t>(w.stated_shape, 1)};
  if (stated != w.shape())
    return fmt::format("its weight_shape says {}, expected {}, of which weight_packed has the numbers",
                       to_string(stated), to_string(w.shape()));
  const std::int64_t groups = w.scales.shape.size() == 2 ? w.scales.shape[1] : 0;
  if (groups == 0 || w.inputs() % groups != 0 || w.inputs() / groups % kGroupInputs != 0)
    return fmt::format(
        "its weight_scale is {} of {}, expected a group of a multiple of {} inputs for each column",
        to_string(w.scales.shape), to_string(w.shape()), kGroupInputs);
  return problem_of_shape("weight_scale", w.scales, w.scales.dtype == "BF16" ? "BF16" : "F16",
                          {w.outputs(), groups});
}

std::string gptq_problem(const Int4Weight& w) {
  if (w.numbers.dtype != "I32" || w.numbers.shape.size() != 2)
    return fmt::format("its qweight is {} {}, expected I32 [in / 8, out]", w.numbers.dtype,
                       to_string(w.numbers.shape));
  const std::int64_t inputs = w.inputs(), outputs = w.outputs();
  const std::int64_t groups = w.scales.shape.size() == 2 ? w.scales.shape[0] : 0;
  if (groups == 0 || inputs % groups != 0 || inputs / groups % kGroupInputs != 0 || outputs % kInWord != 0)
    return fmt::format("its scales are {} of {}, expected a group of a multiple of {} inputs for each row",
                       to_string(w.scales.shape), to_string(w.shape()), kGroupInputs);
  if (std::string p =
          problem_of_shape("scales", w.scales, w.scales.dtype == "BF16" ? "BF16" : "F16", {groups, outputs});
      !p.empty())
    return p;
  if (std::string p = problem_of_shape("qzeros", w.zeros, "I32", {groups, outputs / kInWord}); !p.empty())
    return p;
  for (std::int64_t i = 0; i < groups * outputs / kInWord; ++i) {
    if (entry_at<std::uint32_t>(w.zeros, i) != 0x11111111u * static_cast<std::uint32_t>(w.stored_zero))
      return fmt::format(
          "it is asymmetric (its qzeros are not all {}, the middle); only symmetric GPTQ is read",
          w.stored_zero);
  }
  return {};
}

}  // namespace

std::string int4_problem(Int4Weight& w) {
  if (std::string p = w.outputs_first ? compressed_problem(w) : gptq_problem(w); !p.empty()) return p;
  const std::int64_t inputs = w.inputs(), groups = w.groups_of_inputs();
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

std::optional<ScalePlace> infinite_scale(const Int4Weight& w, std::int64_t begin, std::int64_t end) {
  for (std::int64_t group = 0; group < w.groups_of_inputs(); ++group) {
    for (std::int64_t output = begin; output < end; ++output) {
      if (!std::isfinite(scale_of(w, group, output))) return ScalePlace{group, output};
    }
  }
  return std::nullopt;
}

Tensor int4_rows(const Int4Weight& w, std::int64_t begin, std::int64_t end) {
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

bool is_whole_blocks(const Int4Weight& w) {
  const auto is_half = [&](std::int64_t i) {
    const float scale = scale_at(w, i);
    return half_to_float(float_to_half(scale)) == scale;
  };
  const std::int64_t scales = w.scales.dtype == "BF16" ? num_elements(w.scales.shape) : 0;
  for (std::int64_t i = 0; i < scales; ++i) {
    if (!is_half(i)) return false;
  }
  return w.in_order && w.outputs() % kBlockOutputs == 0 && w.inputs() % block_inputs(DType::packed_int4) == 0;
}

Tensor int4_blocks(const Int4Weight& w) {
  CHECK(w.outputs() % kBlockOutputs == 0 && w.in_order, "{} in blocks", to_string(w.shape()));
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
