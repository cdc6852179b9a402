#pragma once

#include "autograd/op.h"
#include "kernels/attention/rope_tables.h"

namespace switchyard {

// Rotary angles of the local tokens: cos and sin [B,S,dim/2] f32 of position * frequency, times `amplitude`.
// positions i32 [B,S]; frequencies in radians per position, one per pair of dims. `growth` is a further
// factor that depends on the position.
struct RopeTables {
  Array cos, sin;
};
RopeTables rope_tables(Context& context, const Array& positions, std::span<const double> frequencies,
                       double amplitude, const PositionGrowth& growth = {});

// Rotates dims [offset, offset + dim) of every head of x [B,S,N,D] (or [B,S,D]: one head), where dim is twice
// the number of pairs in the tables.
Array rope(Context& context, const Array& x, const RopeTables& tables, std::int64_t offset, bool interleaved);

struct AttentionOptions {
  float scale = 1;          // multiplies q.k before the softmax
  bool balanced = false;    // for a split sequence: distribute queries so that ranks see equally many keys
  std::int64_t window = 0;  // keys that a query sees, including its own; 0: all
  std::int64_t chunk = 0;   // length of a chunk: a query sees only keys of its own chunk; 0: none
};

// The largest score per head over this rank's queries, as the softmax used them.
struct HeadScores {
  std::int64_t layer = 0;
  std::int64_t first_head = 0;
  Tensor largest;  // f32, one per local head; -inf when none of this rank's queries saw a key
};

// Causal softmax attention within segments. q [B,S,N,D], k [B,S,Nkv,D], v [B,S,Nkv,Dv], segments i32 [B,S] ->
// [B,S,N,Dv]. Batch may be split alike on all; heads of q may be split, and heads of k and v alike or not at
// all. When the sequence is split (context parallelism) every rank computes its own queries, and keys, values
// and segments are gathered. Windows and chunks count positions in the sequence, across segments. `sinks` [N]
// f32 or null: one more score per head in every softmax, without a value. `scores`: receives the largest
// scores (except `layer`), or null. `chosen`: the keys that each query attends to among those it sees
// (ops/indexer.h), sharded as q's tokens; or null: all.
Array attention(Context& context, const Array& q, const Array& k, const Array& v, const Array& segments,
                const AttentionOptions& options, const Array* sinks = nullptr, HeadScores* scores = nullptr,
                const Array* chosen = nullptr);

// Positions of this rank's queries in their sequence, i32 [B,S] for q [B,S,...]; undefined when the sequence
// is whole. `balanced`: the positions of balance_sequence().
Tensor query_places(const Context& context, const ArrayInfo& q, bool balanced);

// The part of `sinks` for the local heads of x [B,S,N,D].
Array sinks_of_heads(Context& context, const Array& sinks, const Array& x);

}  // namespace switchyard
