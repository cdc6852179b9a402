// Elementwise ops and rearrangements of the last dims of arrays.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

// x · factor, rounded to the dtype once; x itself when it already has the dtype and the factor is 1.
Array cast(Context& context, const Array& x, DType dtype, float factor = 1);
// Both have the same shape and sharding; either both are partial sums or neither is
// (CHECK that the shardings agree).
Array add(Context& context, const Array& a, const Array& b);
// x [..., A] + bias [A], or [..., A, B] + [A, B]: a bias has the last dims of x, and is resharded to their
// layout and cast to x's dtype. x must not be a partial sum (CHECK).
Array add_bias(Context& context, const Array& x, const Array& bias);
Array scale(Context& context, const Array& x, float factor);
// silu(gate) * up, elementwise.
Array swiglu(Context& context, const Array& gate, const Array& up);
// [..., first + rest] -> [..., first], [..., rest]; the last dim must be whole.
std::pair<Array, Array> split_last(Context& context, const Array& x, std::int64_t first);
// [..., M] -> n pieces of M/n columns; the last dim must be whole and divisible (CHECK).
std::vector<Array> chunk_last(Context& context, const Array& x, std::int64_t n);
// [..., A], [..., B] -> [..., A + B]; the last dims must be whole, all else alike.
Array join_last(Context& context, const Array& a, const Array& b);
// Selects from x [B,S,M] each row's last token that is not padding (segments i32 [B,S] are 0 there, only
// after tokens) -> [B,1,M], rows split as x's; a row of padding gives its first token. No gradient.
Array last_tokens(Context& context, const Array& x, const Array& segments);
// MLA: kv [B,S,N,nope+v] and the rotary key k_rope [B,S,rope] shared by all
// heads -> k [B,S,N,nope+rope] and v [B,S,N,v].
std::pair<Array, Array> mla_key_value(Context& context, const Array& kv, const Array& k_rope,
                                      std::int64_t nope);

// Splits [B,S,...] into n chunks of S/n local tokens each (or [G,M,H] into chunks of M/n local rows of each
// matrix), and joins them. The local S must be divisible (CHECK).
std::vector<Array> chunk_sequence(Context& context, const Array& x, std::int64_t n);
Array concat_sequence(Context& context, std::span<const Array> parts);

}  // namespace switchyard
