// Einsum: computes all dense products; together with reshard it implements all dense parallelism.
#pragma once

#include <span>
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
std::vector<Array> einsums(Context& context, std::string_view spec, const Array& a, std::span<const Array> b,
                           std::span<const Sharding* const> want);

}  // namespace switchyard
