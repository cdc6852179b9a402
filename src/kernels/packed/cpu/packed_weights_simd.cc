// Packing and unpacking of weights, 16 outputs at a time. Both round as the reference does: this file is
// compiled so that a product and a sum stay two operations.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed/cpu/packed_weights_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/packed/cpu/packed_lanes-inl.h"
#include "kernels/packed/packed_weights.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;
using packed_lanes::Format;
using packed_lanes::kStep;

template <DType packed, typename T>
void unpack_rows(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  using F = Format<packed>;
  const typename F::Table table = F::table();
  constexpr auto kBytes = static_cast<std::int64_t>(size_of(packed));
  constexpr std::int64_t kScales = scales_of(packed);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::byte* block = rows.blocks + r * rows.stride * kBytes;
    T* const dense = static_cast<T*>(rows.dense) + r * block_inputs(packed) * rows.leading;
    for (std::int64_t c = 0; c < rows.columns; ++c, block += kBytes) {
      const std::byte* group = block + header_bytes(packed);
      for (std::int64_t g = 0; g < groups_of(packed); ++g, group += group_bytes(packed)) {
        for (std::int64_t output = 0; output < kBlockOutputs; output += kStep) {
          T* const out = dense + g * kGroupInputs * rows.leading + c * kBlockOutputs + output;
          for (std::int64_t part = 0; part < kScales; ++part) {
            const V scale = F::scale(block, g * kScales + part, output);
            packed_lanes::for_numbers<packed>(table, group, part, output,
                                              [&](std::int64_t input, auto, V number) HWY_ATTR {
                                                V value = hn::Mul(scale, number);
                                                if constexpr (has_offset(packed))
                                                  value = hn::Add(value, F::offset(block, g, output));
                                                lanes::store(value, out + input * rows.leading);
                                              });
          }
        }
      }
    }
  }
}

using Ints = hn::RebindToSigned<D>;
using Int = hn::Vec<Ints>;

// 32 values of kStep outputs.
struct Group {
  V of[kGroupInputs];
};

// A group's numbers and the bits of its scale and offset.
struct Numbers {
  Int of[kGroupInputs];
  V scale, offset;  // as rounded to float16, or 2^exponent
};

// x rounded to float16 and back, as float_to_half rounds.
HWY_INLINE V through_half(V x) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  return hn::PromoteTo(D(), hn::DemoteTo(narrow, x));
}

HWY_INLINE V largest_magnitude(const Group& group) {
  V largest = hn::Zero(D());
  for (const V x : group.of) largest = hn::Max(largest, hn::Abs(x));
  return largest;
}

// Zero where the scale is.
HWY_INLINE Int rounded(V x, V scale, float least, float most) {
  const D d;
  const V quotient = hn::Clamp(hn::Div(x, scale), hn::Set(d, least), hn::Set(d, most));
  return hn::IfThenElseZero(hn::RebindMask(Ints(), hn::Ne(scale, hn::Zero(d))), hn::NearestInt(quotient));
}

HWY_INLINE Numbers nearest_int8(const Group& group) {
  const D d;
  Numbers result;
  result.offset = hn::Zero(d);
  result.scale = through_half(hn::Div(largest_magnitude(group), hn::Set(d, 127.0f)));
  for (std::int64_t i = 0; i < kGroupInputs; ++i)
    result.of[i] = rounded(group.of[i], result.scale, -127, 127);
  return result;
}

HWY_INLINE Numbers nearest_int4(const Group& group) {
  const D d;
  V extreme = hn::Zero(d);
  for (const V x : group.of) extreme = hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Abs(extreme)), x, extreme);
  V best = hn::Zero(d), gain = hn::Zero(d);
  for (int t = 0; t < 17; ++t) {
    const V inverse = hn::Div(hn::Set(d, -8.0f + 0.125f * static_cast<float>(t - 5)), extreme);
    V products = hn::Zero(d), squares = hn::Zero(d);
    for (const V x : group.of) {
      const V q = hn::Round(hn::Clamp(hn::Mul(x, inverse), hn::Set(d, -8.0f), hn::Set(d, 7.0f)));
      products = hn::Add(products, hn::Mul(x, q));
      squares = hn::Add(squares, hn::Mul(q, q));
    }
    const V more = hn::Div(hn::Mul(products, products), squares);
    const auto better = hn::Gt(more, gain);  // false where the group is zeros: 0 / 0
    gain = hn::IfThenElse(better, more, gain);
    best = hn::IfThenElse(better, hn::Div(products, squares), best);
  }
  Numbers result;
  result.offset = hn::Zero(d);
  result.scale = through_half(best);
  for (std::int64_t i = 0; i < kGroupInputs; ++i) result.of[i] = rounded(group.of[i], result.scale, -8, 7);
  return result;
}

HWY_INLINE Numbers nearest_int4a(const Group& group) {
  const D d;
  V least = group.of[0], most = group.of[0];
  for (const V x : group.of) least = hn::Min(least, x), most = hn::Max(most, x);
  Numbers result;
  result.offset = through_half(least);
  result.scale = through_half(hn::Div(hn::Sub(most, result.offset), hn::Set(d, 15.0f)));
  for (std::int64_t i = 0; i < kGroupInputs; ++i)
    result.of[i] = rounded(hn::Sub(group.of[i], result.offset), result.scale, 0, 15);
  return result;
}

void store_numbers(bool bytes, const Int (&numbers)[kGroupInputs], std::byte* words, std::int64_t output) {
  const Ints d;
  const std::int64_t in_word = bytes ? 4 : 8;
  const int bits = bytes ? 8 : 4;
  for (std::int64_t u = 0; u < kGroupInputs / in_word; ++u, words += kWordBytes) {
    Int word = hn::Zero(d);
    for (std::int64_t i = 0; i < in_word; ++i) {
      const Int number = hn::And(numbers[packed_lanes::input_of(bytes, u, i)], hn::Set(d, (1 << bits) - 1));
      word = hn::Or(word, hn::ShiftLeftSame(number, static_cast<int>(i) * bits));
    }
    hn::StoreU(word, d, reinterpret_cast<std::int32_t*>(words + 4 * output));
  }
}

HWY_INLINE void store_halves(V x, std::byte* halves, std::int64_t output) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, x), narrow, reinterpret_cast<hwy::float16_t*>(halves) + output);
}

template <typename T>
void pack_group(DType packed, const T* dense, std::int64_t leading, std::byte* block, std::int64_t output) {
  Group group;
  for (std::int64_t i = 0; i < kGroupInputs; ++i) group.of[i] = lanes::load(dense + i * leading + output);
  const Numbers numbers = packed == DType::packed_int8   ? nearest_int8(group)
                          : packed == DType::packed_int4 ? nearest_int4(group)
                                                         : nearest_int4a(group);
  store_halves(numbers.scale, block, output);
  if (packed == DType::packed_int4a) store_halves(numbers.offset, block + 2 * kBlockOutputs, output);
  store_numbers(has_bytes(packed), numbers.of, block + header_bytes(packed), output);
}

template <typename T>
void pack_rows(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  const auto bytes = static_cast<std::int64_t>(size_of(rows.packed));
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t c = 0; c < rows.columns; ++c) {
      const T* const dense =
          static_cast<const T*>(rows.dense) + r * kGroupInputs * rows.leading + c * kBlockOutputs;
      for (std::int64_t output = 0; output < kBlockOutputs; output += kStep)
        pack_group(rows.packed, dense, rows.leading, rows.blocks + (r * rows.stride + c) * bytes, output);
    }
  }
}

}  // namespace

void pack_block_rows_simd(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  rows.dtype == DType::f32 ? pack_rows<float>(rows, begin, end) : pack_rows<bfloat16>(rows, begin, end);
}

void unpack_block_rows_simd(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  packed_lanes::with_packed(rows.packed, [&](auto packed) {
    rows.dtype == DType::f32 ? unpack_rows<packed.value, float>(rows, begin, end)
                             : unpack_rows<packed.value, bfloat16>(rows, begin, end);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(pack_block_rows, (const BlockRows& rows, I begin, I end), (rows, begin, end))
SWITCHYARD_SIMD_EXPORT(unpack_block_rows, (const BlockRows& rows, I begin, I end), (rows, begin, end))

}  // namespace switchyard::cpu
#endif
