#pragma once

#include "autograd/op.h"

namespace switchyard {

// Rotary angles of the local tokens: cos and sin [B,S,dim/2] f32 of position * frequency, times `amplitude`.
// positions i32 [B,S]; frequencies (radians per position, one a pair).
struct RopeTables {
  Array cos, sin;
};
RopeTables rope_tables(Context& context, const Array& positions, std::span<const double> frequencies,
                       double amplitude);

// Rotates dims [offset, offset + dim) of every head of x [B,S,N,D] (or [B,S,D]: one head), dim = 2 * pairs of
// the tables.
Array rope(Context& context, const Array& x, const RopeTables& tables, std::int64_t offset, bool interleaved);

// Causal softmax attention within segments. q [B,S,N,D], k [B,S,Nkv,D], v [B,S,Nkv,Dv], segments i32 [B,S] ->
// [B,S,N,Dv]. Batch may be split alike on all; heads of q may be split, and those of k and v alike or not at
// all. Where the sequence is split (context parallelism) every rank answers its own queries, and keys, values
// and segments are gathered; `balanced` spreads the queries so that all ranks see equally many keys.
Array attention(Context& context, const Array& q, const Array& k, const Array& v, const Array& segments,
                float scale, bool balanced);

}  // namespace switchyard
