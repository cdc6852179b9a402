// Blocks of packed weights (kernels/packed_block.h) in registers whose lanes are outputs. Included once per
// instruction set, inside a file that uses hwy/foreach_target.h.
#include "core/dtype.h"
#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/packed_block.h"

#if defined(SWITCHYARD_PACKED_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_PACKED_LANES_INL_H_
#undef SWITCHYARD_PACKED_LANES_INL_H_
#else
#define SWITCHYARD_PACKED_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace packed_lanes {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;
using Words = hn::RebindToSigned<D>;
using Word = hn::Vec<Words>;

constexpr auto kStep = static_cast<std::int64_t>(lanes::kLanes);
static_assert(kBlockOutputs % kStep == 0);

// The word of kStep outputs from `output` on.
HWY_INLINE Word load_word(const std::byte* words, std::int64_t output) {
  return hn::LoadU(Words(), reinterpret_cast<const std::int32_t*>(words + 4 * output));
}

HWY_INLINE V load_halves(const std::byte* halves, std::int64_t first) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  return hn::PromoteTo(D(), hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(halves) + first));
}

// Input of the i-th number of word u.
constexpr std::int64_t input_of(bool bytes, std::int64_t u, std::int64_t i) {
  return bytes ? 4 * u + i : 8 * u + i / 2 + 4 * (i % 2);
}

// The i-th number of a word as a signed integer of `bits` bits, which are the i-th of the word from below.
template <int bits, int i>
HWY_INLINE V signed_number(Word word) {
  constexpr int kAbove = 32 - bits * (i + 1);
  if constexpr (kAbove > 0) word = hn::ShiftLeft<kAbove>(word);
  return hn::ConvertTo(D(), hn::ShiftRight<32 - bits>(word));
}

#if HWY_TARGET <= HWY_AVX3
// The entry of a table of 16 that the four lowest bits of each lane name; the bits above do not count.
HWY_INLINE V lookup(V table, Word index) {
  return V{_mm512_permutexvar_ps(index.raw, table.raw)};
}
#endif

// What each type has: kBytes, a number being a byte; a Table, made once by table(), and number<i>(table,
// word); scale(), and where kOffset, offset().
template <DType packed>
struct Format;

template <>
struct Format<DType::packed_int8> {
  static constexpr bool kBytes = true, kOffset = false;
  struct Table {};
  static HWY_INLINE Table table() { return {}; }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word) {
    return signed_number<8, i>(word);
  }
  static HWY_INLINE V scale(const std::byte* block, std::int64_t output) {
    return load_halves(block, output);
  }
};

template <>
struct Format<DType::packed_int4> {
  static constexpr bool kBytes = false, kOffset = false;
#if HWY_TARGET <= HWY_AVX3
  using Table = V;
  static HWY_INLINE Table table() {
    return V{_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)};
  }
  template <int i>
  static HWY_INLINE V number(const Table& table, Word word) {
    return lookup(table, hn::ShiftRight<4 * i>(word));
  }
#else
  struct Table {};
  static HWY_INLINE Table table() {
    return {};
  }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word) {
    return signed_number<4, i>(word);
  }
#endif
  static HWY_INLINE V scale(const std::byte* block, std::int64_t output) {
    return load_halves(block, output);
  }
};

template <>
struct Format<DType::packed_int4a> {
  static constexpr bool kBytes = false, kOffset = true;
  struct Table {};
  static HWY_INLINE Table table() { return {}; }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word) {
    return hn::ConvertTo(D(), hn::And(hn::ShiftRight<4 * i>(word), hn::Set(Words(), 15)));
  }
  static HWY_INLINE V scale(const std::byte* block, std::int64_t output) {
    return load_halves(block, output);
  }
  static HWY_INLINE V offset(const std::byte* block, std::int64_t output) {
    return load_halves(block + 2 * kBlockOutputs, output);
  }
};

template <>
struct Format<DType::packed_mxfp4> {
  static constexpr bool kBytes = false, kOffset = false;
#if HWY_TARGET <= HWY_AVX3
  using Table = V;
  static HWY_INLINE Table table() {
    return V{_mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6)};
  }
  template <int i>
  static HWY_INLINE V number(const Table& table, Word word) {
    return lookup(table, hn::ShiftRight<4 * i>(word));
  }
#else
  using Table = V;  // of the magnitudes
  static HWY_INLINE Table table() {
    return hn::LoadU(D(), kFp4.data());
  }
  template <int i>
  static HWY_INLINE V number(const Table& table, Word word) {
    const auto index = hn::IndicesFromVec(D(), hn::And(hn::ShiftRight<4 * i>(word), hn::Set(Words(), 7)));
    const auto sign = hn::BitCast(D(), hn::ShiftLeft<28 - 4 * i>(word));
    return hn::CopySign(hn::TableLookupLanes(table, index), sign);
  }
#endif
  static HWY_INLINE V scale(const std::byte* block, std::int64_t output) {
    const hn::Rebind<std::uint8_t, D> narrow;
    const Words words;
    const auto exponent =
        hn::PromoteTo(words, hn::LoadU(narrow, reinterpret_cast<const std::uint8_t*>(block) + output));
    const auto smallest = hn::Set(words, 0x00400000);  // 2^-127
    return hn::BitCast(
        D(), hn::IfThenElse(hn::Eq(exponent, hn::Zero(words)), smallest, hn::ShiftLeft<23>(exponent)));
  }
};

// body(i as a constant) for 0 <= i < count.
template <int count, typename Body, int i = 0>
HWY_INLINE void for_constants(const Body& body) {
  if constexpr (i < count) {
    body(std::integral_constant<int, i>());
    for_constants<count, Body, i + 1>(body);
  }
}

// body(input, numbers of that input) for kStep outputs of a block from `output` on.
template <DType packed, typename Body>
HWY_INLINE void for_numbers(const typename Format<packed>::Table& table, const std::byte* block,
                            std::int64_t output, const Body& body) {
  using F = Format<packed>;
  constexpr int kNumbers = F::kBytes ? 4 : 8;
  const std::byte* words = block + header_bytes(packed);
  for (std::int64_t u = 0; u < kBlockInputs / kNumbers; ++u, words += kWordBytes) {
    const Word word = load_word(words, output);
    for_constants<kNumbers>([&](auto i) HWY_ATTR {
      body(input_of(F::kBytes, u, i.value), i, F::template number<i.value>(table, word));
    });
  }
}

// body(packed as a constant).
template <typename Body>
HWY_INLINE void with_packed(DType packed, const Body& body) {
  switch (packed) {
    case DType::packed_int8:
      return body(std::integral_constant<DType, DType::packed_int8>());
    case DType::packed_int4:
      return body(std::integral_constant<DType, DType::packed_int4>());
    case DType::packed_int4a:
      return body(std::integral_constant<DType, DType::packed_int4a>());
    default:
      return body(std::integral_constant<DType, DType::packed_mxfp4>());
  }
}

}  // namespace packed_lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
