// Operands of matrix products whose sums are exact in fp32, in any order and fused or not.
#pragma once

#include "kernels/testing/cases.h"

namespace switchyard::selftest {

// Seeds from one case to the next: more than a case has arrays.
constexpr std::uint32_t kSeedsOfCase = 16;

// Values below 1, products of 16 bits: sums below 2^8 are exact. A sum of k products is about sqrt(k / 9), so
// the depth may be some ten thousand. In bf16 both operands use all 8 bits; in f32 one of them has 12, more
// than bf16 or TF32 have, so that a product of fewer bits would be seen.
class ExactOperands {
 public:
  ExactOperands(DType dtype, std::uint32_t seed)
      : dtype_(dtype),
        left_bits_(dtype == DType::bf16          ? 8
                   : seed / kSeedsOfCase % 4 < 2 ? 12
                                                 : 4),
        draw_(seed) {}

  PoisonedArray left(std::int64_t count) { return draw_.fractions(dtype_, count, left_bits_); }
  PoisonedArray right(std::int64_t count) { return draw_.fractions(dtype_, count, 16 - left_bits_); }
  // An addend of a sum of products, in any dtype.
  PoisonedArray addend(DType dtype, std::int64_t count) { return draw_.fractions(dtype, count, 8); }

 private:
  DType dtype_;
  int left_bits_;
  Draw draw_;
};

}  // namespace switchyard::selftest
