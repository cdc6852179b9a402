// Generator: a model that continues sequences, one call after another, on one rank of a session.
//
// All functions that feed tokens are collective. Their logits exist on rank 0 of the run alone, in the host's
// memory, or in its GPU's (keep_logits_there()): rank 0 picks tokens and tells the others by broadcast().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/graph_cache.h"
#include "kernels/sampling/pick_tokens.h"
#include "models/decoder.h"
#include "routing/routing_blocks.h"

namespace switchyard {

// Tokens that are appended to a slot's sequence, at least one.
struct SlotTokens {
  std::size_t slot;
  std::vector<std::int32_t> tokens;
};

// Returns what pick_tokens() finds in logits, f32 [n,V]: of a GPU's memory with one copy there and one back.
std::vector<PickedToken> pick_there(ThreadPool& pool, const Tensor& logits, std::span<const TokenPick> picks);

// The prefixes of a slot that another slot can start with, without checkpoints: any, those that are not much
// shorter than the slot (layers with windows or chunks evict tokens), or the whole slot alone (a scan).
enum class Prefixes { any, long_ones, whole };
// Returns the prefixes that all layers of the model can give.
Prefixes prefixes_of(const ModelConfig& model, bool evicts);

// Names a layer of Generator::first_broken_layer: "the first output that is not finite is that of layer 3".
std::string broken_layer_text(std::int64_t layer, std::int64_t layers);

class Generator {
 public:
  // Has `slots` slots in the KV cache, each for a sequence of at most `capacity` tokens. Where the mesh
  // splits a batch, it splits the slots into groups, in order. The context and the parameters must outlive
  // the generator. With `evicts`, layers with windows or chunks drop tokens that no later token sees and
  // reserve no memory for them; without, a slot can start with any prefix of another. Layers whose caches are
  // not cut freely (CacheWindow) have memory for `checkpoints` more states a slot (keep_checkpoint()).
  // Windows keep what `taken_back` tokens fewer would see.
  Generator(Context& context, const ModelConfig& model, const Parameters& parameters, std::int64_t slots,
            std::int64_t capacity, bool evicts = true, std::int64_t checkpoints = 0,
            std::int64_t taken_back = 1);

  // Appends tokens to some slots, each named at most once. Returns the logits of each one's next token, f32
  // [n,V] in the order of `fed`, on rank 0; an undefined tensor elsewhere. Other slots cost nothing but
  // padding where the groups of a split batch have unlike numbers of them. CHECKs the capacity.
  Tensor feed(std::span<const SlotTokens> fed);
  // Like feed(), but returns the logits after every token, f32 [n,S,V]; S is the most tokens of a slot. All
  // tokens of a slot but the first may be taken back after a `drafted` call: by truncate(), or by
  // copy_prefix() of the slot to itself.
  Tensor feed_each(std::span<const SlotTokens> fed, bool drafted = false);
  // Returns the logits of a draft of the token after next, f32 [n,V] on rank 0, by the first prediction
  // layer. Call it after feed() or feed_each() with the same slots in the same order, each with the tokens
  // that follow its first fed tokens, one or more. Tokens fed beyond those must be dropped by truncate().
  Tensor draft(std::span<const SlotTokens> next);
  // Returns the same one token further, after draft() or this function: the same slots in the same order,
  // each with the token that was drafted for it. drop_further_drafts() must undo so many calls of it before
  // the next feed().
  Tensor draft_further(std::span<const SlotTokens> drafted);
  bool can_draft_further(std::size_t slot) const { return draft_slots_.lengths[slot] < capacity_; }
  void drop_further_drafts(std::span<const SlotTokens> drafted, std::int64_t calls);
  // Keeps the slot's first `tokens` tokens: all, or all but the last few (`taken_back`), and no fewer than
  // the prediction layer has read.
  void truncate(std::size_t slot, std::int64_t tokens);
  // Starts `slot` with the first `tokens` cached tokens of `source_slot`, which may be the same slot. CHECKs
  // can_copy_prefix() and that both slots are of one group.
  void copy_prefix(std::size_t slot, std::size_t source_slot, std::int64_t tokens);
  // True if a slot can start with the first `tokens` tokens of `source_slot`: always with none, and with
  // those of a checkpoint. Otherwise every layer must be able to continue after them (CacheWindow::can_cut).
  bool can_copy_prefix(std::size_t source_slot, std::int64_t tokens) const {
    return longest_prefix(source_slot, tokens) == tokens;
  }
  // Returns the most tokens, up to `most`, with which can_copy_prefix().
  std::int64_t longest_prefix(std::size_t source_slot, std::int64_t most) const;
  // Keeps the state of the slot as it is now, so that texts can start with its tokens later on, too, in place
  // of the slot's shortest checkpoint where it has as many as there is memory for. It is lost when the slot
  // starts with fewer tokens or with another slot's. Does nothing without memory for checkpoints.
  void keep_checkpoint(std::size_t slot);
  void clear(std::size_t slot) { copy_prefix(slot, slot, 0); }
  // Says which of the model's adapters reads the slot's tokens from now on: 1 .. Adapter::count, or 0 for
  // none. What the slot has cached must be of the same adapter.
  void use_adapter(std::size_t slot, std::int32_t number) { adapters_[slot] = number; }
  // The parameters have other adapters now (models/adapter.h); slots that use none of them stay as they are.
  // For one adapter of all texts raise the parameters' version, too.
  void follow_adapters(std::shared_ptr<const Adapter> adapter);
  // False where the slot's tokens were read with weights that have changed since (Parameters::version()).
  // Then clear() the slot and feed its tokens again: it cannot be continued, nor be the start of a slot.
  bool is_current(std::size_t slot) const {
    return model_slots_.lengths[slot] == 0 || versions_[slot] == parameters_.version();
  }
  // Copies rank 0's values to all ranks. Collective.
  template <typename T>
  void broadcast(std::span<T> values) {
    context_.comm->broadcast(everyone(*context_.comm, "world"), 0, host_view(values));
  }
  // Collective. Returns the first layer whose output is not finite, for a sequence whose logits are not
  // finite: -1 is the embedding, the number of layers is what comes after the last one. The call reads the
  // tokens again and overwrites the slot.
  std::int64_t first_broken_layer(const SlotTokens& sequence);

  // Keeps the experts of every cached token from now on. Call it before the first token, on all ranks.
  // truncate() drops tokens' experts too, copy_prefix() copies them.
  void record_routing();
  // Returns the experts of a slot's first `tokens` tokens,
  // [L,S,K] of the layers of routed_layers(). On rank 0.
  std::vector<std::uint16_t> routing(std::size_t slot, std::int64_t tokens) const;

  Context& context() const { return context_; }
  const ModelConfig& model() const { return model_; }
  bool is_first_rank() const { return context_.comm->rank() == 0; }
  std::int64_t slots() const { return std::ssize(model_slots_.lengths); }
  std::int64_t layers() const { return model_.layers; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length(std::size_t slot) const { return model_slots_.lengths[slot]; }
  // The number of groups into which the mesh splits the slots.
  std::int64_t slot_groups() const { return groups_; }
  // From now on logits stay in the memory of the GPU that computes them, where tokens can be picked from them
  // (pick_there()). Elsewhere, and where the model's layers are on several stages, it changes nothing.
  void keep_logits_there() {
    keeps_logits_there_ = context_.memory.device().is_gpu() && context_.stage.count == 1;
  }
  // Picks tokens from logits [n,V]. A read of a GPU's memory counts as a host read. On rank 0.
  std::vector<PickedToken> pick(const Tensor& logits, std::span<const TokenPick> picks) {
    if (logits.view().on_gpu()) context_.host_reads.add("picked tokens");
    return pick_there(*context_.pool, logits, picks);
  }
  // True if the last call was a step that a graph ran.
  bool ran_graph() const { return ran_graph_; }
  // From now on loads() has what calls count.
  void keep_loads() { keeps_loads_ = true; }
  // This rank's share of the last call's assignments to each expert, for each MoE layer of its stage; still
  // on the device, where read_loads() reads them (moe/balance.h).
  const std::vector<LayerLoad>& loads() const { return loads_; }

 private:
  Tensor run_prediction(std::span<const SlotTokens> next, Array before, bool further);
  // Drops what earlier weights gave.
  void follow_weights();
  void clear_graphs();
  // The model that the running call needs: calls whose texts have none of several adapters do without them.
  const ModelConfig& model_of_call() const {
    return model_.adapter != nullptr && model_.adapter->count > 0 && !any_adapted_ ? base_ : model_;
  }
  // The rows of a call's batch.
  struct BatchRows {
    std::int64_t count;
    std::vector<std::int64_t> of_fed;   // the batch row of each slot that is fed
    std::vector<std::int64_t> slot_of;  // the slot of each batch row; -1: padding
  };
  // `least`: at least so many rows, where there are so many slots.
  BatchRows batch_rows(std::span<const SlotTokens> fed, std::int64_t least = 1) const;
  Batch batch_of(std::span<const SlotTokens> fed, const BatchRows& rows, std::size_t least) const;
  struct CallKind {
    bool every_token = false;  // the logits after every token are wanted
    bool drafted = false;      // tokens may be taken back
    bool keep_hidden = false;  // values of hidden states that are not finite are counted
    Array draft_of = {};       // the model's output of the call before: its prediction layer runs
    bool further = false;      // `draft_of` is the prediction layer's own
  };
  // Runs the model, or with draft_of its prediction layer, after the tokens that `model_slots_` counts.
  Tensor run(std::span<const SlotTokens> fed, const CallKind& kind);
  // Runs all stages and returns the logits [B,S,V] of a batch of tokens [B,S] on rank 0. `place` puts the
  // batch on the device.
  Tensor logits_of(const Shape& tokens, const std::function<DeviceBatch()>& place, const CallKind& kind);
  // True if calls of one token a slot are steps (ops/layer_cache.h), of which a graph is made.
  bool makes_graphs() const;
  // The logits of a step.
  Tensor logits_of_step(const Batch& batch);
  // The tokens of each slot that the model, or its prediction layer, has read.
  struct Slots {
    std::vector<CacheWindow> windows;               // the layers', each once, without those cut freely
    std::vector<std::int64_t> lengths;              // [slots]
    std::vector<std::vector<std::int64_t>> firsts;  // [slots][windows] the first token that each keeps

    explicit Slots(std::size_t slots) : lengths(slots), firsts(slots) {}
    void add(const CacheWindow& window);
    bool can_cut(std::size_t slot, std::int64_t tokens) const;
    void cut(std::size_t slot, std::size_t source_slot, std::int64_t tokens) {
      begin(slot, tokens, firsts[source_slot]);
    }
    void begin(std::size_t slot, std::int64_t tokens, std::vector<std::int64_t> first);
    void append(std::size_t slot, std::int64_t tokens);
  };
  // The state of a slot after some tokens: here the numbers that all ranks know. The caches of layers that
  // are not cut freely have it behind the slots.
  struct Checkpoint {
    std::int64_t tokens = 0, draft_tokens = 0;       // no tokens: none is kept; draft: the prediction layer's
    std::vector<std::int64_t> firsts, draft_firsts;  // as Slots::firsts
  };
  // A state in the caches: of a slot now, or of one of its checkpoints.
  struct State {
    std::size_t slot;
    std::int64_t checkpoint = -1;  // -1: now
  };
  bool can_cut(std::size_t slot, std::int64_t tokens) const;
  State state_after(std::size_t slot, std::int64_t tokens) const;
  // True if the slot's last call was of drafts, and only tokens of it go.
  bool takes_back(std::size_t slot, std::int64_t tokens) const {
    return drafted_from_[slot] >= 0 && tokens > drafted_from_[slot] && tokens < model_slots_.lengths[slot];
  }
  void copy_checkpoints(std::size_t slot, std::size_t source_slot, std::int64_t tokens);
  // Copies the first `tokens` tokens, and of the prediction layer the first `draft_tokens`.
  void copy_state(State to, State from, std::int64_t tokens, std::int64_t draft_tokens);
  void choose_slots(std::span<const SlotTokens> fed, const BatchRows& rows);
  void count_broken(const BlockOutput& out, const Stage::Block& block);
  // Collects the experts of a call with a batch of `length` tokens a row. Collective.
  void keep_routing(std::span<const SlotTokens> fed, const BatchRows& rows, std::int64_t length);

  Context& context_;
  ModelConfig model_;
  ModelConfig base_;          // the model without its adapters, where there are several
  bool any_adapted_ = false;  // a slot of the running call has one of several adapters
  const Parameters& parameters_;
  std::int64_t capacity_;
  Slots model_slots_;                       // on all ranks alike
  Slots draft_slots_;                       // of the prediction layer
  std::vector<std::int64_t> drafted_from_;  // each slot's tokens before its last call, if of drafts; -1
  std::vector<std::int64_t> versions_;      // the weights' version that each slot's tokens had
  std::vector<std::int32_t> adapters_;      // the number of each slot's adapter
  std::int64_t derived_version_ = -1;       // the version of what is kept between calls
  std::vector<std::vector<Checkpoint>> checkpoints_;  // of each slot, on all ranks alike
  Array trunk_;                  // last layer's output of the last call, where there is a prediction layer
  Array draft_trunk_;            // the prediction layer's of its last call
  std::int64_t groups_ = 1;      // into which the mesh splits the slots
  std::int64_t first_here_ = 0;  // this rank's first slot
  LayerCaches caches_;
  // A step leaves these on the device, in the graph's memory.
  struct StepOutput {
    Tensor logits;
    std::vector<LayerLoad> loads;
  };
  std::unique_ptr<gpu::GraphCache> graphs_;  // null: steps are calls as any other
  bool ran_graph_ = false;
  // i32, of a step with so many rows; with adapters under the negative number.
  std::map<std::int64_t, Tensor> step_numbers_;
  std::vector<LayerLoad> loads_;
  bool keeps_loads_ = false, keeps_logits_there_ = false;
  std::vector<double> broken_;                      // values of each output that are not finite
  std::optional<RoutingBlocks> routing_;            // of the running call, where experts are recorded
  std::vector<std::vector<std::uint16_t>> routed_;  // on rank 0, for each slot: [S,L,K] of its tokens
};

}  // namespace switchyard
