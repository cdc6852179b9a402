// Attention over cached keys and values: generation calls it in place of attention within a batch.
//
// A cache has slots. A slot holds the tokens of one sequence. Its cached tokens begin at `firsts[slot]`, a
// position in the sequence (0 unless CacheWindow evicted tokens), and end at `lengths[slot]`.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ops/attention.h"
#include "ops/cache_window.h"
#include "ops/indexer.h"

namespace switchyard {

// One vector for each token and head.
struct TokenVectors {
  Tensor values;  // [slots,T,Nkv,D]; undefined before the first token
  // f32 [slots,T,Nkv,P] for int8 values (kernels/attention/int8_vectors.h), else undefined. A vector is P
  // arrays side by side, each with its own scale, so that scales are the same on any mesh.
  Tensor scales;
  std::int64_t first_part = 0;  // width of the first of the P arrays
};

// How a gated delta net computes.
struct DeltaOptions {
  std::int64_t chunk = 64;
  bool unit_vectors = true;
  float scale = 1;  // factor of the queries
};

// The cache of a gated delta net, which keeps no tokens: the last inputs of its convolutions, [slots,K-1,N,D]
// for this rank's heads, and the state, f32 [slots,N,Dk,Dv]. Undefined before the first token.
struct DeltaState {
  Tensor query_tail, key_tail, value_tail, state;

  // A convolution's inputs of a call for one slot, and its tail before.
  struct ConvCall {
    Tensor tail, x, w;
  };
  // A call of several tokens of one slot that may be taken back: the state before it, and what the state was
  // made of. A state does not tell what it was before its last tokens.
  struct Call {
    ConvCall query, key, value;
    Tensor state, q, k, v, g, beta;
    DeltaOptions options;
  };
  std::map<std::int64_t, Call> calls;  // by slot, of the last call of drafts
};

// The keys and values that one sequence of a call attends to when its slot has no space for all of them.
struct OverflowTokens {
  std::int64_t batch_row = 0;  // the sequence's row in the call's batch
  std::int64_t first = 0;      // position of the first token
  TokenVectors k, v;           // for one slot; v as in AttentionCache
};

// The cache of one layer: keys and values of this rank's slots and heads, in the order of positions.
struct AttentionCache {
  CacheWindow window;  // the tokens that a slot keeps
  bool int8 = false;   // stores values in 8 bits, whatever their dtype; set before the first token
  TokenVectors k;
  TokenVectors v;           // undefined where a value is the first part of its key (latent attention)
  TokenVectors index_keys;  // for a layer with an indexer: one head
  std::vector<std::int64_t> lengths;     // [slots] tokens appended, evicted ones included
  std::vector<std::int64_t> firsts;      // [slots] position of the first cached token
  std::vector<OverflowTokens> overflow;  // between cache_append() and attend() of a call
  DeltaState delta;
  // Latent attention's projections in the form it uses, of the weights as they are: split_up_projection().
  Array key_up, value_up;
};

// Lists of a step (begin_step) for the layers with one window, i32: the rows that cache_append() writes
// [B,3], and the lengths and slots that attend() reads [2,B].
struct StepLists {
  CacheWindow window;
  Tensor appended, attended;
};

// Numbers of the running call that kernels read. Each list goes to the device once, whichever layers use it.
class CallNumbers {
 public:
  // i32 [numbers.size()] on the context's device.
  Tensor of(Context& context, std::vector<std::int32_t> numbers);
  // Null: the call is no step, or no layer has the window.
  const StepLists* step_lists(const CacheWindow& window) const;
  void clear() { lists_.clear(), step.clear(); }  // after the call

  std::vector<StepLists> step;

 private:
  std::vector<std::pair<std::vector<std::int32_t>, Tensor>> lists_;
};

// The caches of all layers, and the slots of the running call.
struct AttentionCaches {
  std::vector<AttentionCache> layers;
  std::vector<std::int64_t> slots;   // this rank's slot of each row of the call's batch; -1: a padding row
  std::vector<std::int64_t> tokens;  // tokens of each of `slots` in the call; the rest of the row is padding
  bool from_beginning = true;        // all slots of the call, on all ranks, are empty before it
  bool drafted = false;              // the last tokens may be taken back (cache_copy_prefix)
  CallNumbers numbers;
};

// A step is a call of one token a row whose numbers kernels read at addresses that the caller chooses. So a
// graph (core/graph.h) can hold all that the call does. Before the call begin_step() counts its tokens;
// during the call CallNumbers::step has its lists, and cache_append() changes no count.
//
// Returns whether the tokens of `caches.slots` can be a step: every layer has its memory, and no token moves.
bool can_begin_step(const AttentionCaches& caches);
// Counts the step's tokens in all caches. Returns the lists of all windows, one behind the other.
std::vector<std::int32_t> begin_step(AttentionCaches& caches);
// The lists of begin_step() in the device's memory.
std::vector<StepLists> step_lists(const AttentionCaches& caches, const Tensor& numbers);

// The slots and positions of a call's tokens: i32 [B,S], and the parts of AttentionCaches::slots and tokens
// for B. Positions continue where the slot ends. Padding follows a row's last token and is not cached.
struct TokenPlaces {
  Array positions;
  std::span<const std::int64_t> slots, tokens;
  bool from_beginning = true;
  bool drafted = false;
  CallNumbers* numbers = nullptr;  // null: none are kept
};

// Splits MLA's wkv_b [R,N,nope+v] into its parts for keys [N,R,nope] and for values [N,R,v]. Heads come
// first, so that the product of a head reads contiguous memory. No gradient.
std::pair<Array, Array> split_up_projection(Context& context, const Array& wkv_b, std::int64_t nope);

// Appends the tokens' keys and values to the cache, with the heads that this rank's heads of
// q [B,S,N,D] read. k and v are each one array [B,S,Nkv,D], or several [B,S,D] that form one
// head together, side by side; without arrays v is the first of k, which is kept once. Rows may be split as
// q's are, the sequence in any way. When a slot has no space for all tokens, it evicts tokens that no later
// token sees. `index_key` [B,S,D] is an indexer's key, or null. CHECKs that no slot exceeds its capacity;
// Error(usage) when the axis rules give this rank other heads than in earlier calls.
void cache_append(Context& context, AttentionCache& cache, const Array& q, std::span<const Array> k,
                  std::span<const Array> v, const TokenPlaces& places, const Array* index_key = nullptr);

// Returns x [B,S,D], whole in D, as the cache returns it: x itself, or x rounded to 8 bits. No gradient.
Array cache_round_trip(Context& context, const AttentionCache& cache, const Array& x);

// Replaces the content of `slot` by the first `tokens` tokens of `source_slot`, which may be the same slot.
// CHECKs that the source still has the tokens that the next token sees (CacheWindow::can_cut), and, for a
// gated delta net, that `tokens` is 0 or all tokens of the source, or, of a slot itself whose last call was
// of drafts, more than it had before that call.
void cache_copy_prefix(Context& context, AttentionCache& cache, std::int64_t slot, std::int64_t source_slot,
                       std::int64_t tokens);

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
Array attend(Context& context, AttentionCache& cache, const Array& q, const TokenPlaces& places,
             const AttentionOptions& options, const Array* sinks = nullptr,
             const CacheChoice* choice = nullptr);

}  // namespace switchyard
