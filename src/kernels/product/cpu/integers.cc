// Products of bf16 rows and packed weights in integers (kernels/product/integers.h) for AVX2, AVX-512
// and AVX-512 with VNNI. Some types hold a number q as q + bias. The kernel multiplies q + bias, and starts a
// sum at minus the bias times the sum of the inputs.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/product/cpu/integers.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <bit>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/packed/cpu/packed_lanes-inl.h"
#include "kernels/product/cpu/gemm_block-inl.h"
#include "kernels/product/integers.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// A lambda that passes vectors is a part of its caller, or each of them takes a way through memory.
#define SWITCHYARD_INLINED __attribute__((always_inline))
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;
using packed_lanes::Format;
using packed_lanes::kStep;
using packed_lanes::Word;
using packed_lanes::Words;
using Halves = hn::Repartition<std::int16_t, D>;
using Half = hn::Vec<Halves>;

// ---- Weights as pairs of integers, two to a lane

// A number q is stored as q + kBias, and a value is q · kUnit · its scale.
template <DType packed>
constexpr int kBias = packed == DType::packed_int8   ? 128
                      : packed == DType::packed_int4 ? 8
                      : packed == DType::packed_q6_k ? 32
                                                     : 0;
template <DType packed>
constexpr float kUnit = packed == DType::packed_mxfp4 ? 0.5f : 1.0f;

HWY_INLINE Half fill_bytes(int byte) {
  return hn::BitCast(Halves(), hn::Set(hn::Repartition<std::uint8_t, D>(), static_cast<std::uint8_t>(byte)));
}

// Halves as numbers without a sign, so that the bits above are zeros.
template <int bits>
HWY_INLINE Half shift_right(Half x) {
  const hn::RebindToUnsigned<Halves> d;
  return hn::BitCast(Halves(), hn::ShiftRight<bits>(hn::BitCast(d, x)));
}

// Word u of a group as pairs of numbers. at<n>() has the numbers of inputs i and i + 2, where i is 4u + n of
// a type of bytes, and 8u + {0, 4, 1, 5}[n] of others: a half of a lane is two bytes, and the upper half's
// bytes belong to inputs that are two higher.
template <DType packed>
class WordPairs {
 public:
  static constexpr bool kBytes = has_bytes(packed);
  static constexpr int kCount = kBytes ? 2 : 4;
  // True if in_place() works for this type.
  static constexpr bool kHasInPlace = !kBytes && high_bits(packed) == 0 && packed != DType::packed_mxfp4;

  HWY_INLINE WordPairs(const std::byte* group, std::int64_t u, std::int64_t output) {
    const hn::Repartition<std::int8_t, D> bytes;
    bits_ = hn::BitCast(Halves(), packed_lanes::load_word(group + u * kWordBytes, output));
    if constexpr (packed == DType::packed_int8) bits_ = hn::Xor(bits_, fill_bytes(0x80));
    if constexpr (packed == DType::packed_int4) bits_ = hn::Xor(bits_, fill_bytes(0x88));
    if constexpr (kHigh > 0) {
      constexpr int kOfHalf = 4 * kHigh;  // bits of the four numbers of a half
      const Words words;
      Word upper = packed_lanes::load_word(group + (4 + u * kHigh / 4) * kWordBytes, output);
      upper = hn::ShiftRightSame(upper, static_cast<int>(u * 8 * kHigh % 32));
      const Word below = hn::And(upper, hn::Set(words, (1 << kOfHalf) - 1));
      const Word above =
          hn::And(hn::ShiftLeft<16 - kOfHalf>(upper), hn::Set(words, ((1 << kOfHalf) - 1) << 16));
      upper_ = hn::BitCast(Halves(), hn::Or(below, above));
    }
    if constexpr (packed == DType::packed_mxfp4) {  // twice the values, two bytes of them a half
      alignas(16) constexpr std::int8_t kTwice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};
      const auto table = hn::LoadDup128(bytes, kTwice);
      const Half mask = fill_bytes(0x0f);
      const auto look_up = [&](Half index) HWY_ATTR {
        return hn::BitCast(Halves(), hn::TableLookupBytes(table, hn::BitCast(bytes, hn::And(index, mask))));
      };
      upper_ = look_up(shift_right<4>(bits_));
      bits_ = look_up(bits_);
    }
  }

  template <int n>
  HWY_INLINE Half at() const {
    if constexpr (packed == DType::packed_mxfp4) {
      const Half values = n % 2 == 0 ? bits_ : upper_;
      return hn::ShiftRight<8>(n < 2 ? hn::ShiftLeft<8>(values) : values);
    } else if constexpr (kBytes) {
      return n == 0 ? hn::And(bits_, hn::Set(Halves(), 0x00ff)) : shift_right<8>(bits_);
    } else {
      Half number = shift_right<4 * n>(bits_);
      if constexpr (n < 3) number = hn::And(number, hn::Set(Halves(), 15));
      if constexpr (kHigh > 0) {
        constexpr int kAt = kHigh * n;
        const Half upper = kAt > 4 ? shift_right<(kAt > 4 ? kAt - 4 : 0)>(upper_)
                                   : hn::ShiftLeft<(kAt > 4 ? 0 : 4 - kAt)>(upper_);
        number = hn::Or(number, hn::And(upper, hn::Set(Halves(), ((1 << kHigh) - 1) << 4)));
      }
      return number;
    }
  }

  // The numbers of at<n>() times 1 << kPlace[n], which takes no shift. The last ones would be
  // more than a half holds.
  static constexpr int kPlace[4] = {0, 4, 8, 0};
  template <int n>
  HWY_INLINE Half in_place() const {
    return n == 3 ? at<3>() : hn::And(bits_, hn::Set(Halves(), static_cast<std::int16_t>(15 << kPlace[n])));
  }

 private:
  static constexpr int kHigh = high_bits(packed);
  Half bits_, upper_;
};

// Calls body(pair, n as a constant, step, weights) for those inputs of the group that have its part-th scale,
// each for one or two steps of kStep outputs from `output` on. `pair` is an index of InputGroup::pairs, n the
// pair's place in its word. `in_place`: the weights are those of WordPairs::in_place.
template <DType packed, int steps, bool in_place, typename Body>
HWY_INLINE void for_pairs(const std::byte* group, std::int64_t part, std::int64_t output, const Body& body) {
  using Pairs = WordPairs<packed>;
  constexpr std::int64_t kOfPart = kGroupInputs / 2 / Pairs::kCount / scales_of(packed);
  for (std::int64_t u = part * kOfPart; u < (part + 1) * kOfPart; ++u) {
    const Pairs first(group, u, output), second(group, u, output + (steps - 1) * kStep);
    packed_lanes::for_constants<Pairs::kCount>([&](auto n) HWY_ATTR {
      const auto weights_of = [&](const Pairs& pairs) HWY_ATTR SWITCHYARD_INLINED {
        if constexpr (in_place)
          return pairs.template in_place<n.value>();
        else
          return pairs.template at<n.value>();
      };
      const std::int64_t pair = u * Pairs::kCount + n.value;
      body(pair, n, std::integral_constant<int, 0>(), weights_of(first));
      if constexpr (steps == 2) body(pair, n, std::integral_constant<int, 1>(), weights_of(second));
    });
  }
}

// ---- Products

// sum + the two products of each lane, of the pair that all lanes have.
struct PlainProducts {
  static HWY_INLINE Word add(Word sum, Half weights, const std::int32_t& pair) {
    Word unused = hn::Zero(Words());
    const Half inputs = hn::BitCast(Halves(), hn::Set(Words(), pair));
    return hn::ReorderWidenMulAccumulate(Words(), weights, inputs, sum, unused);
  }
};
#if HWY_TARGET == HWY_AVX3
struct VnniProducts {
  // Assembly, because no target of this library has AVX512-VNNI alone.
  static HWY_INLINE Word add(Word sum, Half weights, const std::int32_t& pair) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "m"(pair));
    return sum;
  }
};
#endif

constexpr std::int64_t kRowsAtOnce = 8;

struct IntegerRows {
  const InputGroup* inputs;  // of the first row, from a group on
  std::int64_t groups;       // of each row
  float* sums;               // of the first row, from an output on
  std::int64_t sums_row;
};

// sums of m rows += inputs · block.
template <typename Products, DType packed, int m>
HWY_INLINE void add_integer_block(const IntegerRows& rows, const std::byte* block) {
  using F = Format<packed>;
  const D d;
  const Words words;
  constexpr std::int64_t kScales = scales_of(packed);
  // Few rows leave registers for sums of numbers in their places, one chain a place, and one row for two
  // steps of outputs at once, which share the inputs. Chains also because sums that wait
  // for each other are slow.
  constexpr bool kInPlace = WordPairs<packed>::kHasInPlace && m <= 4;
  constexpr int kChains = kInPlace ? 3 : m == 1 ? 4 : m <= 4 ? 2 : 1;
  constexpr int kSteps = m == 1 && kStep == 8 ? 2 : 1;
  const std::byte* group = block + header_bytes(packed);
  for (std::int64_t g = 0; g < groups_of(packed); ++g, group += group_bytes(packed)) {
    const auto input = [&](int r) -> const InputGroup& { return rows.inputs[r * rows.groups + g]; };
    for (std::int64_t output = 0; output < kBlockOutputs; output += kSteps * kStep) {
      for (std::int64_t part = 0; part < kScales; ++part) {
        Word sum[kChains][kSteps * m];
#pragma GCC unroll 8
        for (int i = 0; i < kSteps * m; ++i) {
          const InputGroup& in = input(i % m);
          const std::int32_t inputs = kScales == 1 ? in.sums[0] + in.sums[1] : in.sums[part];
          sum[0][i] = kBias<packed> == 0 ? hn::Zero(words) : hn::Set(words, -kBias<packed> * inputs);
#pragma GCC unroll 4
          for (int chain = 1; chain < kChains; ++chain) sum[chain][i] = hn::Zero(words);
        }
        for_pairs<packed, kSteps, kInPlace>(group, part, output,
                                            [&](std::int64_t pair, auto n, auto step, Half weights)
                                                HWY_ATTR SWITCHYARD_INLINED {
#pragma GCC unroll 8
                                                  for (int r = 0; r < m; ++r) {
                                                    Word& to = sum[n.value % kChains][step.value * m + r];
                                                    to = Products::add(to, weights, input(r).pairs[pair]);
                                                  }
                                                });
#pragma GCC unroll 8
        for (int i = 0; i < kSteps * m; ++i) {
          const int r = i % m;
          const std::int64_t first = output + i / m * kStep;
          Word all = sum[0][i];
          if constexpr (kInPlace) {
            all = hn::Add(all, hn::ShiftRight<WordPairs<packed>::kPlace[1]>(sum[1][i]));
            all = hn::Add(all, hn::ShiftRight<WordPairs<packed>::kPlace[2]>(sum[2][i]));
          } else {
#pragma GCC unroll 4
            for (int chain = 1; chain < kChains; ++chain) all = hn::Add(all, sum[chain][i]);
          }
          const V scale = F::scale(block, g * kScales + part, first);
          float* const at = rows.sums + r * rows.sums_row + first;
          const V of_row = hn::Mul(scale, hn::Set(d, kUnit<packed> * input(r).scale));
          V to = hn::MulAdd(hn::ConvertTo(d, all), of_row, hn::LoadU(d, at));
          if constexpr (has_offset(packed))
            to = hn::MulAdd(F::offset(block, g, first), hn::Set(d, input(r).sum()), to);
          hn::StoreU(to, d, at);
        }
      }
    }
  }
}

// ---- Inputs as integers

struct PowerOfTwo {
  float value, inverse;
};

// The scale of inputs of this largest magnitude.
PowerOfTwo scale_for(float largest) {
  constexpr std::uint32_t kBits = 14, kBias = 127, kNoNumber = 255;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(largest) >> 23;
  if (exponent == kNoNumber) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const std::uint32_t above = std::max(exponent, kBits + 1) - kBits;  // a scale that is no denormal number
  return {std::bit_cast<float>(above << 23), std::bit_cast<float>((2 * kBias - above) << 23)};
}

// The order of WordPairs in 8 halves, as bytes.
template <bool bytes>
HWY_INLINE Half in_pairs(Half x) {
  alignas(16) static constexpr std::int8_t kOfBytes[16] = {0, 1, 4,  5,  2,  3,  6,  7,
                                                           8, 9, 12, 13, 10, 11, 14, 15};
  alignas(16) static constexpr std::int8_t kOfFours[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                           2, 3, 6, 7, 10, 11, 14, 15};
  const hn::Repartition<std::int8_t, D> d;
  const auto order = hn::LoadDup128(d, bytes ? kOfBytes : kOfFours);
  return hn::BitCast(Halves(), hn::TableLookupBytes(hn::BitCast(d, x), order));
}

template <bool bytes>
HWY_INLINE void integers_of_group(const bfloat16* x, InputGroup& out) {
  constexpr int kVectors = static_cast<int>(kGroupInputs / kStep);
  const D d;
  const Words words;
  V values[kVectors];
  V most = hn::Zero(d);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    values[i] = lanes::load(x + i * kStep);
    // Compares magnitudes as integers, so that no NaN is lost: the order of magnitudes is that of their bits.
    const Word magnitude = hn::And(hn::BitCast(words, values[i]), hn::Set(words, 0x7fffffff));
    most = hn::BitCast(d, hn::Max(hn::BitCast(words, most), magnitude));
  }
  const std::int32_t bits = hn::GetLane(hn::MaxOfLanes(words, hn::BitCast(words, most)));
  const PowerOfTwo scale = scale_for(std::bit_cast<float>(bits));
  Word integers[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i)
    integers[i] = hn::NearestInt(hn::Mul(values[i], hn::Set(d, scale.inverse)));
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Word sum = hn::Zero(words);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors / 2; ++i) sum = hn::Add(sum, integers[half * kVectors / 2 + i]);
    // An infinity or a NaN makes the scale NaN. The sum is then 0, since any other could overflow.
    out.sums[half] = scale.inverse == 0 ? 0 : hn::GetLane(hn::SumOfLanes(words, sum));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; i += 2) {
    const hn::Rebind<std::int16_t, Words> narrow;
    const Half both =
        hn::Combine(Halves(), hn::DemoteTo(narrow, integers[i + 1]), hn::DemoteTo(narrow, integers[i]));
    hn::StoreU(hn::BitCast(words, in_pairs<bytes>(both)), words, out.pairs + i * kStep / 2);
  }
  out.scale = scale.value;
}

// sums of `count` rows += inputs · block.
template <typename Products, DType packed>
HWY_INLINE void add_integer_rows(IntegerRows rows, std::int64_t count, const std::byte* block) {
  for (; count >= kRowsAtOnce; count -= kRowsAtOnce) {
    add_integer_block<Products, packed, kRowsAtOnce>(rows, block);
    rows.inputs += kRowsAtOnce * rows.groups;
    rows.sums += kRowsAtOnce * rows.sums_row;
  }
  if (count == 0) return;
  packed_lanes::with_row_count<kRowsAtOnce - 1>(
      count, [&](auto m) HWY_ATTR { add_integer_block<Products, packed, m.value>(rows, block); });
}

template <typename Products>
void multiply_integers(const GemmProblem& p, const GemmBlock& block) {
  static thread_local cpu::ThreadScratch memory;
  constexpr std::int64_t kApart = 16;  // rows a power of two apart would share few lines of L1
  constexpr std::int64_t kFloats = 4 * 1024, kLeast = 64;  // up to 64 rows have their sums in L1
  const auto* const inputs = static_cast<const InputGroup*>(block.packed_a);
  const std::int64_t m = block.row_end - block.row_begin, groups = p.k / kGroupInputs;
  const std::int64_t at_once = std::min(block.column_end - block.column_begin,
                                        std::max(kLeast, kFloats / m / kBlockOutputs * kBlockOutputs));
  const std::int64_t sums_row = at_once + kApart;
  float* const sums = memory.at_least<float>(m * sums_row);
  for (std::int64_t j = block.column_begin; j < block.column_end; j += at_once) {
    const GemmBlock some{block.row_begin, block.row_end, j, std::min(j + at_once, block.column_end)};
    std::fill_n(sums, m * sums_row, 0.0f);
    packed_lanes::with_packed(p.weight_dtype, [&](auto packed) HWY_ATTR {
      if constexpr (packed.value != DType::packed_fp8) {  // no integers
        packed_lanes::walk_blocks(
            p, some, [&](std::int64_t row, std::int64_t column, const std::byte* at) HWY_ATTR {
              add_integer_rows<Products, packed.value>(
                  {inputs + row * groups_of(packed.value), groups, sums + column * kBlockOutputs, sums_row},
                  m, at);
            });
      }
    });
    store_tile_for(p)(p, sums, sums_row, some);
  }
}

}  // namespace

void convert_rows(const GemmProblem& p, std::int64_t row_begin, std::int64_t row_end, InputGroup* out) {
  const bool bytes = has_bytes(p.weight_dtype);
  for (std::int64_t i = row_begin; i < row_end; ++i) {
    const auto* x = static_cast<const bfloat16*>(p.a) + i * p.lda;
    for (std::int64_t l = 0; l < p.k; l += kGroupInputs, ++out) {
      if (bytes)
        integers_of_group<true>(x + l, *out);
      else
        integers_of_group<false>(x + l, *out);
    }
  }
}

void gemm_integers(const GemmProblem& p, const GemmBlock& block) {
  multiply_integers<PlainProducts>(p, block);
}
#if HWY_TARGET == HWY_AVX3
void gemm_integers_vnni(const GemmProblem& p, const GemmBlock& block) {
  multiply_integers<VnniProducts>(p, block);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

const IntegerGemm integers_avx2{N_AVX2::convert_rows, N_AVX2::gemm_integers};
const IntegerGemm integers_avx512{N_AVX3::convert_rows, N_AVX3::gemm_integers};
const IntegerGemm integers_vnni{N_AVX3::convert_rows, N_AVX3::gemm_integers_vnni};

}  // namespace switchyard::cpu
#endif
