// Einsum: computes all dense products; together with reshard it implements all dense parallelism.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

// einsum("BSM,MH->BSH", a, b): labels are single letters; every label stands in the output or in both
// operands. Operands have one dtype (f32 or bf16), and so has the result; sums are fp32. b may instead be
// packed weights [.., in, out] (core/dtype.h), whose last contracted label is `in` and whose last other label
// is `out`. Backward computes no product for an operand that requires no gradient;
// packed weights have no gradient.
//
// Layout: an axis may stay on a label only if every operand that has the label agrees; when two labels want
// one axis, the wanted output keeps it and the other operand is gathered. Contracted labels split alike on
// both sides give partial sums, which are then reduced to `want`. Without `want` the output keeps the
// operands' layout, with partial sums reduced to whole.
Array einsum(Context& context, std::string_view spec, const Array& a, const Array& b,
             const Sharding* want = nullptr);

// einsum() of one `a` with several weights, as q, k and v are made: one op, whose products run together,
// where all of them need `a` laid out alike. A label that only the weights have may have another size in
// each. The gradient of `a` is one sum.
//
// `low_rank`, where given, adds (a·low_rank.a)·low_rank.b to the product of each weight that has them. Both
// are laid out as the weight whose labels they have, and the label that it lacks is whole. So a·low_rank.a is
// a partial sum where the product is one, and both have one reduction. It is made again for backward.
struct LowRankEinsum {
  std::string to_low, from_low;  // "BSM,Mr->BSr" and "BSr,rH->BSH" for "BSM,MH->BSH"
  std::vector<Array> a, b;       // for each weight, of the type of einsum's `a`; undefined: none
  // The label has `count` parts side by side. A row of `a` has the part that its number in i32 [B,S] names,
  // or none for 0; labels of a·low_rank.a begin with these two. Count 0: one part, of all rows.
  Array numbers = {};
  std::int64_t count = 0;
};
std::vector<Array> einsums(Context& context, std::string_view spec, const Array& a, std::span<const Array> b,
                           std::span<const Sharding* const> want, const LowRankEinsum* low_rank = nullptr);

}  // namespace switchyard
