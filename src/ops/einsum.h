// Einsum: all dense products, and with reshard all dense parallelism.
#pragma once

#include <string_view>

#include "autograd/op.h"

namespace switchyard {

// einsum("BSM,MH->BSH", a, b): labels are single letters; every label stands in the output or in both
// operands. Operands have one dtype (f32 or bf16), which the result has; sums are fp32. b may be packed
// weights
// [.., in, out] (core/dtype.h) instead, whose last contracted label is `in` and whose last other label is
// `out`. Backward makes no product for an operand that requires no gradient; packed weights have none.
//
// Layout: an axis may stay on a label only if every operand that has the label agrees; where two labels want
// one axis, the wanted output keeps it and the other operand is gathered. Contracting labels split alike on
// both sides give partial sums, which are then reduced to `want`. Without `want` the output keeps what the
// operands have and is reduced to whole.
Array einsum(Context& context, std::string_view spec, const Array& a, const Array& b,
             const Sharding* want = nullptr);

}  // namespace switchyard
