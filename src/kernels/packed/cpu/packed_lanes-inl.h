// Blocks of packed weights (kernels/packed/packed_block.h) in registers whose lanes are outputs. Included
// once per instruction set, inside a file that uses hwy/foreach_target.h.
#include <algorithm>
#include <type_traits>

#include "core/dtype.h"
#include "hwy/highway.h"
#include "kernels/cpu/blocks_ahead.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/packed/packed_block.h"
#include "kernels/product/cpu/gemm_problem.h"

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

// Lower four bits of a number.
template <int i>
HWY_INLINE Word low_bits(Word word) {
  return hn::And(hn::ShiftRight<4 * i>(word), hn::Set(Words(), 15));
}

// The `bits` bits of `upper` that belong to number i, as bits 4 and up.
template <int bits, int i>
HWY_INLINE Word upper_bits(Word upper) {
  constexpr int kAt = bits * i;
  if constexpr (kAt > 4)
    upper = hn::ShiftRight<kAt - 4>(upper);
  else
    upper = hn::ShiftLeft<4 - kAt>(upper);
  return hn::And(upper, hn::Set(Words(), ((1 << bits) - 1) << 4));
}

// Bytes of kStep outputs, signed or not, as numbers.
template <typename Byte>
HWY_INLINE V load_bytes(const std::byte* bytes, std::int64_t first) {
  const hn::Rebind<Byte, D> narrow;
  const Words words;
  return hn::ConvertTo(D(),
                       hn::PromoteTo(words, hn::LoadU(narrow, reinterpret_cast<const Byte*>(bytes) + first)));
}

// Each type's Format has a Table, made once by table(); number<i>(table, word, upper), where `upper` holds
// the upper bits of the word's numbers from below, if the type has some; scale(block, part, output), where
// `part` counts the scales of a block's groups; with has_offset(packed), offset(block, group, output).
template <DType packed>
struct Format;

struct NoTable {};

// One scale, and perhaps an offset, of the block's only group.
template <DType packed>
struct HalvesHeader {
  static HWY_INLINE V scale(const std::byte* block, std::int64_t, std::int64_t output) {
    return load_halves(block, output);
  }
  static HWY_INLINE V offset(const std::byte* block, std::int64_t, std::int64_t output) {
    return load_halves(block + 2 * kBlockOutputs, output);
  }
};

template <>
struct Format<DType::packed_int8> : HalvesHeader<DType::packed_int8> {
  using Table = NoTable;
  static HWY_INLINE Table table() { return {}; }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word, Word) {
    return signed_number<8, i>(word);
  }
};

template <>
struct Format<DType::packed_int4> : HalvesHeader<DType::packed_int4> {
#if HWY_TARGET <= HWY_AVX3
  using Table = V;
  static HWY_INLINE Table table() {
    return V{_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)};
  }
  template <int i>
  static HWY_INLINE V number(const Table& table, Word word, Word) {
    return lookup(table, hn::ShiftRight<4 * i>(word));
  }
#else
  using Table = NoTable;
  static HWY_INLINE Table table() {
    return {};
  }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word, Word) {
    return signed_number<4, i>(word);
  }
#endif
};

// Numbers from 0 to 15.
struct FourBits {
  using Table = NoTable;
  static HWY_INLINE Table table() { return {}; }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word, Word) {
    return hn::ConvertTo(D(), low_bits<i>(word));
  }
};

// Numbers from 0 to 31.
struct FiveBits {
  using Table = NoTable;
  static HWY_INLINE Table table() { return {}; }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word, Word upper) {
    return hn::ConvertTo(D(), hn::Or(low_bits<i>(word), upper_bits<1, i>(upper)));
  }
};

template <>
struct Format<DType::packed_int4a> : HalvesHeader<DType::packed_int4a>, FourBits {};

template <>
struct Format<DType::packed_int5a> : HalvesHeader<DType::packed_int5a>, FiveBits {};

template <>
struct Format<DType::packed_mxfp4> {
#if HWY_TARGET <= HWY_AVX3
  using Table = V;
  static HWY_INLINE Table table() {
    return V{_mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6)};
  }
  template <int i>
  static HWY_INLINE V number(const Table& table, Word word, Word) {
    return lookup(table, hn::ShiftRight<4 * i>(word));
  }
#else
  using Table = V;  // of the magnitudes
  static HWY_INLINE Table table() {
    return hn::LoadU(D(), kFp4.data());
  }
  template <int i>
  static HWY_INLINE V number(const Table& table, Word word, Word) {
    const auto index = hn::IndicesFromVec(D(), hn::And(hn::ShiftRight<4 * i>(word), hn::Set(Words(), 7)));
    const auto sign = hn::BitCast(D(), hn::ShiftLeft<28 - 4 * i>(word));
    return hn::CopySign(hn::TableLookupLanes(table, index), sign);
  }
#endif
  static HWY_INLINE V scale(const std::byte* block, std::int64_t, std::int64_t output) {
    const hn::Rebind<std::uint8_t, D> narrow;
    const Words words;
    const auto exponent =
        hn::PromoteTo(words, hn::LoadU(narrow, reinterpret_cast<const std::uint8_t*>(block) + output));
    const auto smallest = hn::Set(words, 0x00400000);  // 2^-127
    return hn::BitCast(
        D(), hn::IfThenElse(hn::Eq(exponent, hn::Zero(words)), smallest, hn::ShiftLeft<23>(exponent)));
  }
};

// Float16 numbers for the block, and factors of them for each group.
template <DType packed>
struct FactorsHeader {
  static constexpr std::int64_t kHalves = packed_format(packed).scale_bytes();
  static HWY_INLINE V scale(const std::byte* block, std::int64_t part, std::int64_t output) {
    using Factor = std::conditional_t<packed == DType::packed_q6_k, std::int8_t, std::uint8_t>;
    return hn::Mul(load_halves(block, output),
                   load_bytes<Factor>(block + kHalves + part * kBlockOutputs, output));
  }
  static HWY_INLINE V offset(const std::byte* block, std::int64_t group, std::int64_t output) {
    const std::byte* const factors = block + kHalves + (groups_of(packed) + group) * kBlockOutputs;
    return hn::Neg(
        hn::Mul(load_halves(block + 2 * kBlockOutputs, output), load_bytes<std::uint8_t>(factors, output)));
  }
};

template <>
struct Format<DType::packed_q4_k> : FactorsHeader<DType::packed_q4_k>, FourBits {};

template <>
struct Format<DType::packed_q5_k> : FactorsHeader<DType::packed_q5_k>, FiveBits {};

template <>
struct Format<DType::packed_q6_k> : FactorsHeader<DType::packed_q6_k> {
  using Table = NoTable;
  static HWY_INLINE Table table() { return {}; }
  template <int i>
  static HWY_INLINE V number(const Table&, Word word, Word upper) {
    const Word number = hn::Or(low_bits<i>(word), upper_bits<2, i>(upper));
    return hn::ConvertTo(D(), hn::Sub(number, hn::Set(Words(), 32)));
  }
};

template <>
struct Format<DType::packed_fp8> {
  using Table = NoTable;
  static HWY_INLINE Table table() { return {}; }
  // The bits of e4m3 in those of float32, whose exponent has another bias.
  template <int i>
  static HWY_INLINE V number(const Table&, Word word, Word) {
    const Words words;
    Word magnitude = word;
    if constexpr (i < 3)
      magnitude = hn::ShiftLeft<20 - 8 * i>(word);
    else
      magnitude = hn::ShiftRight<4>(word);
    const Word bits =
        hn::Or(hn::And(magnitude, hn::Set(words, 0x07f00000)),
               hn::And(hn::ShiftLeft<24 - 8 * i>(word), hn::Set(words, std::int32_t{-0x7fffffff - 1})));
    return hn::Mul(hn::BitCast(D(), bits), hn::Set(D(), 0x1p120f));
  }
  static HWY_INLINE V scale(const std::byte* block, std::int64_t, std::int64_t output) {
    return hn::LoadU(D(), reinterpret_cast<const float*>(block) + output);
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

// body(input, i, numbers of that input) for kStep outputs from `output` on, of the inputs of a group that
// have its part-th scale. i as a constant is the number's place in its word, `input`
// counts from the group's first.
template <DType packed, typename Body>
HWY_INLINE void for_numbers(const typename Format<packed>::Table& table, const std::byte* group,
                            std::int64_t part, std::int64_t output, const Body& body) {
  constexpr bool kBytes = has_bytes(packed);
  constexpr int kNumbers = kBytes ? 4 : 8, kHigh = high_bits(packed);
  constexpr std::int64_t kWords = kGroupInputs / kNumbers, kOfPart = kWords / scales_of(packed);
  for (std::int64_t u = part * kOfPart; u < (part + 1) * kOfPart; ++u) {
    const Word word = load_word(group + u * kWordBytes, output);
    Word upper = hn::Zero(Words());
    if constexpr (kHigh > 0) {
      upper = load_word(group + (kWords + u * kHigh / kWords) * kWordBytes, output);
      upper = hn::ShiftRightSame(upper, static_cast<int>(u * kNumbers * kHigh % 32));
    }
    for_constants<kNumbers>([&](auto i) HWY_ATTR {
      body(input_of(kBytes, u, i.value), i, Format<packed>::template number<i.value>(table, word, upper));
    });
  }
}

// Calls body(packed as a constant), as with_packed_type() does. It is of the target, so the body is inlined.
template <std::size_t i = 0, typename Body>
HWY_INLINE void with_packed(DType packed, const Body& body) {
  constexpr DType kType = kPackedFormats[i].dtype;
  if constexpr (i + 1 == kPackedFormatCount) {
    body(std::integral_constant<DType, kType>());
  } else {
    packed == kType ? body(std::integral_constant<DType, kType>()) : with_packed<i + 1>(packed, body);
  }
}

// body(row of blocks, column of blocks from the first on, block) for all blocks of the columns of `of`, row
// after row, as they lie in memory.
template <typename Body>
HWY_INLINE void walk_blocks(const GemmProblem& p, const GemmBlock& of, const Body& body) {
  constexpr std::int64_t kAheadBytes = 4096;
  const auto bytes = static_cast<std::int64_t>(size_of(p.weight_dtype));
  const std::int64_t columns = (of.column_end - of.column_begin) / kBlockOutputs;
  const std::int64_t rows = p.k / block_inputs(p.weight_dtype), row_bytes = p.ldb * bytes;
  const std::byte* at = static_cast<const std::byte*>(p.b) + of.column_begin / kBlockOutputs * bytes;
  cpu::BlocksAhead ahead(at, row_bytes, columns * bytes, rows);
  for (std::int64_t fetched = 0; fetched < std::min(kAheadBytes, columns * rows * bytes); fetched += bytes)
    ahead.fetch(bytes);
  for (std::int64_t row = 0; row < rows; ++row, at += row_bytes) {
    for (std::int64_t column = 0; column < columns; ++column) {
      ahead.fetch(bytes);
      body(row, column, at + column * bytes);
    }
  }
}

// body(count as a constant), 1 <= count <= most.
template <std::int64_t most, typename Body, int m = 1>
HWY_INLINE void with_row_count(std::int64_t count, const Body& body) {
  if constexpr (m < most) {
    if (count > m) return with_row_count<most, Body, m + 1>(count, body);
  }
  body(std::integral_constant<int, m>());
}

}  // namespace packed_lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
