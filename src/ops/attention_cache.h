// Attention over cached keys and values: generation calls it in place of attention within a batch.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "ops/attention.h"
#include "ops/indexer.h"
#include "ops/layer_cache.h"

namespace switchyard {

// Splits MLA's wkv_b [R,N,nope+v] into its parts for keys [N,R,nope] and for values [N,R,v]. Heads come
// first, so that the product of a head reads contiguous memory. No gradient.
std::pair<Array, Array> split_up_projection(Context& context, const Array& wkv_b, std::int64_t nope);

// Appends the tokens' keys and values to the cache, with the heads that this rank's heads of
// q [B,S,N,D] read. k and v are each one array [B,S,Nkv,D], or several [B,S,D] that form one
// head together, side by side; without arrays v is the first of k, which is kept once. Rows may be split as
// q's are, the sequence in any way. When a slot has no space for all tokens, it evicts tokens that no later
// token sees. `index_key` [B,S,D] is an indexer's key, or null. CHECKs that no slot exceeds its capacity;
// Error(usage) when the axis rules give this rank other heads than in earlier calls.
void cache_append(Context& context, LayerCache& cache, const Array& q, std::span<const Array> k,
                  std::span<const Array> v, const TokenPlaces& places, const Array* index_key = nullptr);

// Returns x [B,S,D], whole in D, as the cache returns it: x itself, or x rounded to 8 bits. No gradient.
Array cache_round_trip(Context& context, const LayerCache& cache, const Array& x);

// The cached keys that the queries of a call chose, for other layers' caches of the same tokens.
struct CachedChoice {
  Tensor ids;                // of one token a slot: i32 [B,count], numbers of keys in all slots together
  std::vector<Tensor> bits;  // of several: i32 [1,S,words] for each row; undefined: its queries see all keys
};

// Lets queries of a layer with an indexer choose `count` of the cached keys. Reads the cached index keys, not
// the keys of `index`. `kept`: receives the choice; without an index, the choice to take.
struct CacheChoice {
  const IndexVectors* index;
  std::int64_t count;
  CachedChoice* kept;
};

// Softmax attention of q [B,S,N,D] over the cached keys up to each query's position ->
// [B,S,N,Dv], with the options and sinks of attention() (`balanced` is ignored). The
// options' window and chunk must equal those of cache.window (CHECK). q's tokens are
// those of the last cache_append(); call attend() once after each. With a `choice` a
// query attends to the chosen keys; one token per slot gathers only these. No gradient.
Array attend(Context& context, LayerCache& cache, const Array& q, const TokenPlaces& places,
             const AttentionOptions& options, const Array* sinks = nullptr,
             const CacheChoice* choice = nullptr);

}  // namespace switchyard
