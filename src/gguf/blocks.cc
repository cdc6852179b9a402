#include "gguf/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/half.h"

namespace switchyard {
namespace {

using Byte = std::uint8_t;
using Dequantize = void (*)(const Byte* block, float* out);

template <typename T>
T load(const Byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float half_at(const Byte* from) {
  return half_to_float(load<std::uint16_t>(from));
}

std::int8_t signed_at(const Byte* from) {
  return load<std::int8_t>(from);
}

constexpr std::array<std::int8_t, 16> kNonlinear4{-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of fp4 (E2M1).
constexpr std::array<std::int8_t, 16> kTwiceFp4{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 32 values of 4 bits: byte j has element j (low) and element j + 16 (high).
template <typename Value>
void each_nibble(const Byte* qs, float* out, const Value& value) {
  for (int j = 0; j < 16; ++j) {
    out[j] = value(qs[j] & 15, j);
    out[j + 16] = value(qs[j] >> 4, j + 16);
  }
}

// The fifth bit of element i.
int fifth_bit(std::uint32_t high, int i) {
  return static_cast<int>(high >> i & 1) << 4;
}

void f32(const Byte* b, float* out) {
  *out = load<float>(b);
}
void f16(const Byte* b, float* out) {
  *out = half_at(b);
}
void bf16(const Byte* b, float* out) {
  *out = std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(b)) << 16);
}

void q4_0(const Byte* b, float* out) {
  const float d = half_at(b);
  each_nibble(b + 2, out, [&](int q, int) { return d * static_cast<float>(q - 8); });
}
void q4_1(const Byte* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  each_nibble(b + 4, out, [&](int q, int) { return d * static_cast<float>(q) + m; });
}
void q5_0(const Byte* b, float* out) {
  const float d = half_at(b);
  const auto high = load<std::uint32_t>(b + 2);
  each_nibble(b + 6, out,
              [&](int q, int i) { return d * static_cast<float>((q | fifth_bit(high, i)) - 16); });
}
void q5_1(const Byte* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  const auto high = load<std::uint32_t>(b + 4);
  each_nibble(b + 8, out, [&](int q, int i) { return d * static_cast<float>(q | fifth_bit(high, i)) + m; });
}
void q8_0(const Byte* b, float* out) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(signed_at(b + 2 + i));
}
void iq4_nl(const Byte* b, float* out) {
  const float d = half_at(b);
  each_nibble(b + 2, out,
              [&](int q, int) { return d * static_cast<float>(kNonlinear4[static_cast<std::size_t>(q)]); });
}
void mxfp4(const Byte* b, float* out) {
  // 2^(e - 128), of which e = 0 and 1 are subnormal.
  const std::uint32_t e = b[0];
  const float scale = std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  each_nibble(b + 1, out,
              [&](int q, int) { return scale * static_cast<float>(kTwiceFp4[static_cast<std::size_t>(q)]); });
}

// Two bits of element [128 h + 32 k + l] are at qs[32 h + l] >> 2 k, its scale at 8 h + 2 k + (l >= 16).
template <typename Value>
void each_of_two_bits(const Byte* qs, float* out, const Value& value) {
  for (int h = 0; h < 2; ++h) {
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < 32; ++l)
        out[128 * h + 32 * k + l] = value(qs[32 * h + l] >> 2 * k & 3, 8 * h + 2 * k + l / 16, h, k, l);
    }
  }
}

void q2_k(const Byte* b, float* out) {
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  each_of_two_bits(b + 16, out, [&](int q, int scale, int, int, int) {
    const Byte s = b[scale];
    return d * static_cast<float>(s & 15) * static_cast<float>(q) - dmin * static_cast<float>(s >> 4);
  });
}

void q3_k(const Byte* b, float* out) {
  const float d = half_at(b + 108);
  const Byte* const c = b + 96;
  std::array<int, 16> scales{};
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? c[j] & 15 : c[j - 8] >> 4;
    scales[static_cast<std::size_t>(j)] = (low | (c[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
  }
  each_of_two_bits(b + 32, out, [&](int q, int scale, int h, int k, int l) {
    const int third = (b[l] >> (4 * h + k) & 1) << 2;
    return d * static_cast<float>(scales[static_cast<std::size_t>(scale)]) *
           static_cast<float>((q | third) - 4);
  });
}

// Scale and minimum, of 6 bits each, of sub-block i of 8, from 12 bytes.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum six_bits(const Byte* c, int i) {
  if (i < 4) return {c[i] & 63, c[i + 4] & 63};
  return {(c[i + 4] & 15) | (c[i - 4] >> 6) << 4, c[i + 4] >> 4 | (c[i] >> 6) << 4};
}

// 8 sub-blocks of 32: qs[32 p + l] has [64 p + l], of sub-block 2 p, and [64 p + 32 + l], of sub-block 2 p
// + 1. high(l, i): what bits beside the four add to element l of sub-block i.
template <typename High>
void sub_blocks_of_32(const Byte* b, const Byte* qs, float* out, const High& high) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int i = 0; i < 8; ++i) {
    const auto [scale, minimum] = six_bits(b + 4, i);
    const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = (i % 2 == 0 ? qs[32 * (i / 2) + l] & 15 : qs[32 * (i / 2) + l] >> 4) + high(l, i);
      out[32 * i + l] = s * static_cast<float>(q) - m;
    }
  }
}

void q4_k(const Byte* b, float* out) {
  sub_blocks_of_32(b, b + 16, out, [](int, int) { return 0; });
}
void q5_k(const Byte* b, float* out) {
  sub_blocks_of_32(b, b + 48, out, [&](int l, int i) { return (b[16 + l] >> i & 1) << 4; });
}

void q6_k(const Byte* b, float* out) {
  const float d = half_at(b + 208);
  for (int h = 0; h < 2; ++h) {
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < 32; ++l) {
        const Byte low = b[64 * h + 32 * (k & 1) + l];
        const int q = (k < 2 ? low & 15 : low >> 4) | (b[128 + 32 * h + l] >> 2 * k & 3) << 4;
        const float scale = d * static_cast<float>(signed_at(b + 192 + 8 * h + 2 * k + l / 16));
        out[128 * h + 32 * k + l] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

void iq4_xs(const Byte* b, float* out) {
  const float d = half_at(b);
  const auto high = load<std::uint16_t>(b + 2);
  for (int i = 0; i < 8; ++i) {
    const int scale = (b[4 + i / 2] >> 4 * (i & 1) & 15) | (high >> 2 * i & 3) << 4;
    const float s = d * static_cast<float>(scale - 32);
    each_nibble(b + 8 + 16 * i, out + 32 * i,
                [&](int q, int) { return s * static_cast<float>(kNonlinear4[static_cast<std::size_t>(q)]); });
  }
}

// Blocks as groups of packed weights: the same numbers with the same scale.

PackedGroup group_of_halves(const Byte* scale) {
  PackedGroup group;
  group.scale = load<std::uint16_t>(scale);
  return group;
}

template <typename Number>
void each_number(const Byte* qs, PackedGroup& group, const Number& number) {
  for (std::size_t j = 0; j < 16; ++j) {
    group.numbers[j] = static_cast<std::int8_t>(number(qs[j] & 15, static_cast<int>(j)));
    group.numbers[j + 16] = static_cast<std::int8_t>(number(qs[j] >> 4, static_cast<int>(j) + 16));
  }
}

PackedGroup group_of_q4_0(const Byte* b, int) {
  PackedGroup group = group_of_halves(b);
  each_number(b + 2, group, [](int q, int) { return q - 8; });
  return group;
}
PackedGroup group_of_q4_1(const Byte* b, int) {
  PackedGroup group = group_of_halves(b);
  group.offset = load<std::uint16_t>(b + 2);
  each_number(b + 4, group, [](int q, int) { return q; });
  return group;
}
PackedGroup group_of_q5_0(const Byte* b, int) {
  PackedGroup group = group_of_halves(b);
  const auto high = load<std::uint32_t>(b + 2);
  each_number(b + 6, group, [&](int q, int i) { return (q | fifth_bit(high, i)) - 16; });
  return group;
}
PackedGroup group_of_q5_1(const Byte* b, int) {
  PackedGroup group = group_of_halves(b);
  group.offset = load<std::uint16_t>(b + 2);
  const auto high = load<std::uint32_t>(b + 4);
  each_number(b + 8, group, [&](int q, int i) { return q | fifth_bit(high, i); });
  return group;
}
PackedGroup group_of_q8_0(const Byte* b, int) {
  PackedGroup group = group_of_halves(b);
  std::memcpy(group.numbers.data(), b + 2, group.numbers.size());
  return group;
}
PackedGroup group_of_iq4_nl(const Byte* b, int) {
  PackedGroup group = group_of_halves(b);
  each_number(b + 2, group, [](int q, int) { return kNonlinear4[static_cast<std::size_t>(q)]; });
  return group;
}
PackedGroup group_of_mxfp4(const Byte* b, int) {
  PackedGroup group;
  group.scale = b[0];
  // GGUF has no negative zero.
  each_number(b + 1, group, [](int q, int) { return q == 8 ? 0 : q; });
  return group;
}

// Sub-block i of 32 (sub_blocks_of_32).
template <typename High>
PackedGroup sub_block_group(const Byte* b, const Byte* qs, int i, const High& high) {
  PackedGroup group = group_of_halves(b);
  group.offset = load<std::uint16_t>(b + 2);
  const auto [scale, minimum] = six_bits(b + 4, i);
  group.scale_factors.fill(static_cast<std::int16_t>(scale));
  group.offset_factor = static_cast<std::uint8_t>(minimum);
  for (int l = 0; l < 32; ++l) {
    const int q = (i % 2 == 0 ? qs[32 * (i / 2) + l] & 15 : qs[32 * (i / 2) + l] >> 4) + high(l);
    group.numbers[static_cast<std::size_t>(l)] = static_cast<std::int8_t>(q);
  }
  return group;
}
PackedGroup group_of_q4_k(const Byte* b, int i) {
  return sub_block_group(b, b + 16, i, [](int) { return 0; });
}
PackedGroup group_of_q5_k(const Byte* b, int i) {
  return sub_block_group(b, b + 48, i, [&](int l) { return (b[16 + l] >> i & 1) << 4; });
}
// Elements [32 i, 32 i + 32) = [128 h + 32 k ..] of q6_k().
PackedGroup group_of_q6_k(const Byte* b, int i) {
  const int h = i / 4, k = i % 4;
  PackedGroup group = group_of_halves(b + 208);
  for (int l = 0; l < 32; ++l) {
    const Byte low = b[64 * h + 32 * (k & 1) + l];
    const int q = (k < 2 ? low & 15 : low >> 4) | (b[128 + 32 * h + l] >> 2 * k & 3) << 4;
    group.numbers[static_cast<std::size_t>(l)] = static_cast<std::int8_t>(q - 32);
  }
  for (int half = 0; half < 2; ++half)
    group.scale_factors[static_cast<std::size_t>(half)] = signed_at(b + 192 + 2 * i + half);
  return group;
}

using Group = PackedGroup (*)(const Byte* block, int i);  // i: which 32 values of the block
constexpr int kNone = -1;
struct Entry {
  GgufType type;
  Dequantize dequantize;
  std::array<int, 2> scales;  // where a block has float16 scales, in bytes from its beginning
  DType packed = DType::f32;  // f32: none
  Group group = nullptr;
};
constexpr Entry kTypes[] = {
    {{0, "F32", 1, 4}, f32, {kNone, kNone}},
    {{1, "F16", 1, 2}, f16, {kNone, kNone}},
    {{2, "Q4_0", 32, 18}, q4_0, {0, kNone}, DType::packed_int4, group_of_q4_0},
    {{3, "Q4_1", 32, 20}, q4_1, {0, 2}, DType::packed_int4a, group_of_q4_1},
    {{6, "Q5_0", 32, 22}, q5_0, {0, kNone}, DType::packed_int8, group_of_q5_0},
    {{7, "Q5_1", 32, 24}, q5_1, {0, 2}, DType::packed_int5a, group_of_q5_1},
    {{8, "Q8_0", 32, 34}, q8_0, {0, kNone}, DType::packed_int8, group_of_q8_0},
    {{10, "Q2_K", 256, 84}, q2_k, {80, 82}},
    {{11, "Q3_K", 256, 110}, q3_k, {108, kNone}},
    {{12, "Q4_K", 256, 144}, q4_k, {0, 2}, DType::packed_q4_k, group_of_q4_k},
    {{13, "Q5_K", 256, 176}, q5_k, {0, 2}, DType::packed_q5_k, group_of_q5_k},
    {{14, "Q6_K", 256, 210}, q6_k, {208, kNone}, DType::packed_q6_k, group_of_q6_k},
    {{20, "IQ4_NL", 32, 18}, iq4_nl, {0, kNone}, DType::packed_int8, group_of_iq4_nl},
    {{23, "IQ4_XS", 256, 136}, iq4_xs, {0, kNone}},
    {{30, "BF16", 1, 2}, bf16, {kNone, kNone}},
    {{39, "MXFP4", 32, 17}, mxfp4, {kNone, kNone}, DType::packed_mxfp4, group_of_mxfp4},
};

}  // namespace

std::string_view unread_gguf_type(std::uint32_t number) {
  static const std::map<std::uint32_t, std::string_view> names{
      {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
      {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
      {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"}};
  const auto found = names.find(number);
  return found == names.end() ? std::string_view() : found->second;
}

std::string gguf_type_names() {
  std::string names;
  for (const Entry& entry : kTypes) names += (names.empty() ? "" : ", ") + std::string(entry.type.name);
  return names;
}

const GgufType* gguf_type(std::uint32_t number) {
  for (const Entry& entry : kTypes) {
    if (entry.type.number == number) return &entry.type;
  }
  return nullptr;
}

const GgufType* gguf_type(std::string_view name) {
  for (const Entry& entry : kTypes) {
    if (entry.type.name == name) return &entry.type;
  }
  return nullptr;
}

namespace {

const Entry& entry_of(const GgufType& type) {
  const auto found =
      std::ranges::find_if(kTypes, [&](const Entry& entry) { return entry.type.number == type.number; });
  CHECK(found != std::end(kTypes), "GGUF type {}", type.number);
  return *found;
}

}  // namespace

std::optional<std::int64_t> block_of_infinite_scale(const GgufType& type, std::span<const std::byte> blocks) {
  const std::array<int, 2> scales = entry_of(type).scales;
  if (scales[0] == kNone) return std::nullopt;
  const auto count = std::ssize(blocks) / type.bytes;
  CHECK(std::ssize(blocks) == count * type.bytes, "{} bytes of {}", blocks.size(), type.name);
  constexpr unsigned kExponent = 0x7c00;  // all of its bits: infinite, or no number
  const auto* block = reinterpret_cast<const Byte*>(blocks.data());
  for (std::int64_t i = 0; i < count; ++i, block += type.bytes) {
    for (const int at : scales) {
      if (at != kNone && (load<std::uint16_t>(block + at) & kExponent) == kExponent) return i;
    }
  }
  return std::nullopt;
}

void dequantize(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out) {
  const Dequantize values_of_block = entry_of(type).dequantize;
  const auto count = std::ssize(blocks) / type.bytes;
  CHECK(std::ssize(blocks) == count * type.bytes && std::ssize(out) == count * type.values,
        "{} bytes of {} as {} values", blocks.size(), type.name, out.size());
  const auto* block = reinterpret_cast<const Byte*>(blocks.data());
  float* to = out.data();
  for (std::int64_t i = 0; i < count; ++i, block += type.bytes, to += type.values) values_of_block(block, to);
}

std::optional<DType> packed_dtype_of(const GgufType& type) {
  const Entry& entry = entry_of(type);
  return entry.group == nullptr ? std::nullopt : std::optional(entry.packed);
}

std::optional<PackedGroup> packed_group_of(const GgufType& type, const std::byte* block, std::int64_t i) {
  const Entry& entry = entry_of(type);
  CHECK(entry.group != nullptr, "{} has no packed type", type.name);
  const PackedGroup group = entry.group(reinterpret_cast<const Byte*>(block), static_cast<int>(i));
  constexpr int kNoNumber = 255;
  if (entry.packed == DType::packed_mxfp4 && group.scale == kNoNumber) return std::nullopt;
  return group;
}

}  // namespace switchyard
