#pragma once

#include "autograd/op.h"
#include "kernels/attention/rope_tables.h"

namespace switchyard {

// Rotary angles of the local tokens: cos and sin [B,S,dim/2] f32 of position * frequency, times `amplitude`.
// positions i32 [B,S]; frequencies (radians per position, one a pair). `growth` is one more factor by
// position.
struct RopeTables {
  Array cos, sin;
};
RopeTables rope_tables(Context& context, const Array& positions, std::span<const double> frequencies,
                       double amplitude, const PositionGrowth& growth = {});

// Rotates dims [offset, offset + dim) of every head of x [B,S,N,D] (or [B,S,D]: one head), dim = 2 * pairs of
// the tables.
Array rope(Context& context, const Array& x, const RopeTables& tables, std::int64_t offset, bool interleaved);

struct AttentionOptions {
  float scale = 1;          // multiplies q.k before the softmax
  bool balanced = false;    // where the sequence is split: spread the queries so that ranks see as many keys
  std::int64_t window = 0;  // keys that a query sees, its own among them; 0: all
  std::int64_t chunk = 0;   // places of a chunk: a query sees keys of its own only; 0: none
};

// The largest score of each head that this rank's queries had, as the softmax saw them.
struct HeadScores {
  std::int64_t layer = 0;
  std::int64_t first_head = 0;
  Tensor largest;  // f32, one for each of this rank's heads; -inf where none of its queries saw a key
};

// Causal softmax attention within segments. q [B,S,N,D], k [B,S,Nkv,D], v [B,S,Nkv,Dv], segments i32 [B,S] ->
// [B,S,N,Dv]. Batch may be split alike on all; heads of q may be split, and those of k and v alike or not at
// all. Where the sequence is split (context parallelism) every rank answers its own queries, and keys, values
// and segments are gathered. Windows and chunks count places in the sequence, in whatever segments. `sinks`
// [N] f32 or null: a score of each head that takes a part of every softmax and gives nothing. `scores`: where
// the largest scores go (all but the layer), or null. `chosen`: of what each query sees, the keys that it
// attends to (ops/indexer.h), laid out as the tokens of q; or null: all.
Array attention(Context& context, const Array& q, const Array& k, const Array& v, const Array& segments,
                const AttentionOptions& options, const Array* sinks = nullptr, HeadScores* scores = nullptr,
                const Array* chosen = nullptr);

// Places of this rank's queries in their sequence, i32 [B,S] of q [B,S,...]; undefined where the sequence is
// whole. `balanced`: they are those of balance_sequence().
Tensor query_places(const Context& context, const ArrayInfo& q, bool balanced);

// `sinks` of the heads that x [B,S,N,D] has here.
Array sinks_of_heads(Context& context, const Array& sinks, const Array& x);

}  // namespace switchyard
