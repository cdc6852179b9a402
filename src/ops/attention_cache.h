// Attention over the tokens so far: what generation does in place of attention within a batch.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "ops/attention.h"
#include "ops/indexer.h"
#include "ops/token_room.h"

namespace switchyard {

// A vector of every token and head.
struct TokenVectors {
  Tensor values;  // [rows,T,Nkv,D]; undefined before the first token
  // Of values in int8 (kernels/attention/int8_vectors.h), else undefined: f32 [rows,T,Nkv,P]. A vector is P
  // arrays side by side, each with a scale of its own, so that scales are the same on any mesh.
  Tensor scales;
  std::int64_t first_part = 0;  // width of the first of those arrays
};

// What a gated delta net remembers of a row instead of its tokens: the last inputs of its convolutions,
// [rows,K-1,N,D] of this rank's heads, and the state, f32 [rows,N,Dk,Dv]. Undefined before the first token.
struct DeltaMemory {
  Tensor query_tail, key_tail, value_tail, state;
};

// The keys and values that one row's call attends to where they are more than the row has room for.
struct PassingTokens {
  std::int64_t batch_row = 0;  // of the call
  std::int64_t first = 0;      // the place of the first of them
  TokenVectors k, v;           // of one row
};

// Keys and values of one layer's tokens so far, of this rank's rows and heads, in the order of their
// positions: of every row those from its first on, up to its length.
struct AttentionCache {
  TokenRoom room;     // of a row
  bool int8 = false;  // in 8 bits, whatever type they come in; set before the first token
  TokenVectors k, v;
  TokenVectors index_keys;             // of a layer with an indexer: of one head
  std::vector<std::int64_t> lengths;   // of the rows
  std::vector<std::int64_t> firsts;    // of the rows: the place of the first token that is remembered
  std::vector<PassingTokens> passing;  // between remember() and attend() of a call
  DeltaMemory delta;
  Array key_up, value_up;  // of latent attention, in the form in which it uses them: split_up_projection()
};

// What all layers remember, and the rows that a call goes on with.
struct AttentionCaches {
  std::vector<AttentionCache> layers;
  std::vector<std::int64_t> rows;    // this rank's: the caches' row of each of the call's, -1 for padding
  std::vector<std::int64_t> tokens;  // of each of `rows`: how many the call brings; the rest of it is padding
  bool from_beginning = true;        // no row of the call, on any rank, has tokens before it
};

// Where the tokens of a call stand: i32 [B,S], and AttentionCaches::rows and tokens of B. Positions of a row
// go on where the cache ends; padding comes after a row's last token and is not remembered.
struct TokenPlaces {
  Array positions;
  std::span<const std::int64_t> rows, tokens;
  bool from_beginning = true;
};

// MLA's wkv_b [R,N,nope+v] -> its parts for keys [N,R,nope] and for values [N,R,v]: heads first, so that a
// product a head reads one piece of memory. No gradient.
std::pair<Array, Array> split_up_projection(Context& context, const Array& wkv_b, std::int64_t nope);

// Puts the tokens' keys and values into the cache, with the heads that this rank's heads of q [B,S,N,D] read.
// Each of k and v is one array [B,S,Nkv,D], or some [B,S,D] that make one head together, side by side. Rows
// may be split as q's are, the sequence in any way. Where a row has no room for all, tokens that no token
// sees any more give way, and a row moves down. `index_key` [B,S,D] is an indexer's, or null. CHECKs that
// rows do not get longer than their capacity; Error(usage) where the rules give this rank other heads than in
// the calls before.
void remember(Context& context, AttentionCache& cache, const Array& q, std::span<const Array> k,
              std::span<const Array> v, const TokenPlaces& places, const Array* index_key = nullptr);

// x [B,S,D] with whole D as the cache gives it back: itself, or through 8 bits and back. No gradient.
Array as_remembered(Context& context, const AttentionCache& cache, const Array& x);

// The row `row` remembers the first `tokens` tokens of the row `from`, which may be itself, and nothing else.
// A gated delta net remembers no part of a row: `tokens` is 0 then, or all that `from` has (CHECK). Where
// `from` has forgotten tokens, it still remembers what the token after those sees (CHECK).
void remember_of(Context& context, AttentionCache& cache, std::int64_t row, std::int64_t from,
                 std::int64_t tokens);

// Of a layer with an indexer: how queries choose `count` of the cached keys. The keys of `index` are not read
// but those that are cached.
struct CacheChoice {
  const IndexVectors* index;
  std::int64_t count;
};

// Softmax attention of q [B,S,N,D] over the cached keys up to its own positions -> [B,S,N,Dv], with the
// options and sinks of attention() (`balanced` is not read), whose window and chunk are those of the cache's
// room. The tokens of q come from the remember() before, and are attended to once. With a `choice` a query
// attends to the keys that it chooses; of one token a row these are gathered, and no other is read. No
// gradient.
Array attend(Context& context, AttentionCache& cache, const Array& q, const TokenPlaces& places,
             const AttentionOptions& options, const Array* sinks = nullptr,
             const CacheChoice* choice = nullptr);

}  // namespace switchyard
