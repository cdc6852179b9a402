// Writes the keys or values of a call's tokens to a cache of slots.
#pragma once

#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// The places of a batch row's tokens: the first `tokens` of them go to [at, at + tokens) of the slot. Slot -1:
// they go nowhere.
struct AppendedRow {
  std::int32_t slot = -1, at = 0, tokens = 0;
};

// values[slot, at + s, h, :] = x[b, s, h, :] for each row b and its tokens s, or those numbers in 8 bits with
// a scale each, as to_int8() makes them. Strides are any, but a vector's numbers are neighbours.
struct AppendTokensArgs {
  TensorView x;                       // [B,S,heads,D] f32 or bf16
  TensorView values;                  // [slots,T,heads,D], x's dtype, or i8
  TensorView scales;                  // [slots,T,heads] f32 for i8, else undefined
  std::span<const AppendedRow> rows;  // [B], of the host
  TensorView rows_there;              // the same, i32 [B,3], in x's memory; read by a GPU alone
};
void append_tokens(ThreadPool& pool, const AppendTokensArgs& args);

}  // namespace switchyard
