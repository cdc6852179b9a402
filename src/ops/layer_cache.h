// LayerCache: what a layer keeps of the tokens before, for generation.
//
// A cache has slots. A slot holds the tokens of one sequence. Its cached tokens begin at `firsts[slot]`, a
// position in the sequence (0 unless CacheWindow evicted tokens), and end at `lengths[slot]`. A layer keeps
// vectors of tokens (attention) or states (scans). Ops append to them by kind; the functions here do all else
// for both kinds.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "autograd/array.h"
#include "autograd/context.h"
#include "core/error.h"
#include "ops/cache_window.h"

namespace switchyard {

// One vector for each token and head.
struct TokenVectors {
  Tensor values;  // [slots,T,Nkv,D]; undefined before the first token
  // f32 [slots,T,Nkv,P] for int8 values (kernels/attention/int8_vectors.h), else undefined. A vector is P
  // arrays side by side, each with its own scale, so that scales are the same on any mesh.
  Tensor scales;
  std::int64_t first_part = 0;  // width of the first of the P arrays
};

// A state of a scan, which every token changes.
struct StateStore {
  Tensor values;  // [slots, ...]; undefined before the first token
  // A call of several tokens of one slot that may be taken back: the state before it, and what repeats the
  // call's first tokens from there, one at a time as calls of one token do, so that the state has their bits.
  struct Call {
    Tensor before;  // [1, ...]
    std::int64_t tokens = 0;
    std::function<void(Context&, const TensorView& state, std::int64_t tokens)> repeat;
  };
  std::map<std::int64_t, Call> calls;  // by slot, of the last call of drafts
};

// The keys and values that one sequence of a call attends to when its slot has no space for all of them.
struct OverflowTokens {
  std::int64_t batch_row = 0;  // the sequence's row in the call's batch
  std::int64_t first = 0;      // position of the first token
  TokenVectors k, v;           // for one slot; v as in LayerCache
};

// The cache of one layer: what it keeps of the tokens of this rank's slots, for this rank's heads. Vectors of
// tokens are in the order of positions.
struct LayerCache {
  CacheWindow window;  // the tokens that a slot keeps
  bool int8 = false;   // stores values in 8 bits, whatever their dtype; set before the first token
  TokenVectors k;
  TokenVectors v;           // undefined where a value is the first part of its key (latent attention)
  TokenVectors index_keys;  // for a layer with an indexer: one head
  std::vector<std::int64_t> lengths;     // [slots] tokens appended, evicted ones included
  std::vector<std::int64_t> firsts;      // [slots] position of the first cached token
  std::vector<OverflowTokens> overflow;  // between cache_append() and attend() of a call
  std::vector<StateStore> states;        // of scans, in an order that the layer's block knows
  // Latent attention's projections in the form it uses, of the weights as they are: split_up_projection().
  Array key_up, value_up;

  // Before the first token, and always for a layer that another stage of a pipeline runs.
  bool is_empty() const { return !k.values.defined() && states.empty(); }
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
struct LayerCaches {
  std::vector<LayerCache> layers;
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
bool can_begin_step(const LayerCaches& caches);
// Counts the step's tokens in all caches. Returns the lists of all windows, one behind the other.
std::vector<std::int32_t> begin_step(LayerCaches& caches);
// The lists of begin_step() in the device's memory.
std::vector<StepLists> step_lists(const LayerCaches& caches, const Tensor& numbers);

// The slots and positions of a call's tokens: i32 [B,S], and the parts of LayerCaches::slots and tokens
// for B. Positions continue where the slot ends. Padding follows a row's last token and is not cached.
struct TokenPlaces {
  Array positions;
  std::span<const std::int64_t> slots, tokens;
  bool from_beginning = true;
  bool drafted = false;
  CallNumbers* numbers = nullptr;  // null: none are kept
};

// Replaces the content of `slot` by the first `tokens` tokens of `source_slot`, which may be the same slot.
// CHECKs that the source still has the tokens that the next token sees (CacheWindow::can_cut), and, for
// states, that `tokens` is 0 or all tokens of the source, or, of a slot itself whose last call was of drafts,
// more than it had before that call.
void cache_copy_prefix(Context& context, LayerCache& cache, std::int64_t slot, std::int64_t source_slot,
                       std::int64_t tokens);
// Adds a call's tokens to the slots' lengths, for a layer of states: after its ops. CHECKs the capacity.
void count_tokens(LayerCache& cache, const TokenPlaces& places);
// The state of a slot for a call of `tokens` tokens, zeroed where the slot is empty. `call`: null, or where
// the scan puts what repeats the call, which may be taken back.
struct StateOfCall {
  TensorView state;  // [1, ...]
  StateStore::Call* call = nullptr;
};
StateOfCall begin_call(Context& context, LayerCache& cache, std::size_t state, std::int64_t slot,
                       std::int64_t tokens, bool drafted);

// The slots of a call one after the other, since each continues from its own state.
class SlotsOfCall {
 public:
  explicit SlotsOfCall(const TokenPlaces& places) : slots_(places.slots), tokens_(places.tokens) {}
  // Calls visit(b, slot, tokens) for every batch row b that is no padding.
  template <typename Visit>
  void for_each(std::int64_t batch, const Visit& visit) const {
    CHECK(std::ssize(slots_) == batch && slots_.size() == tokens_.size(), "{} slots for a batch of {}",
          slots_.size(), batch);
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t slot = slots_[static_cast<std::size_t>(b)];
      if (slot >= 0) visit(b, slot, tokens_[static_cast<std::size_t>(b)]);
    }
  }

 private:
  std::span<const std::int64_t> slots_, tokens_;
};

}  // namespace switchyard
