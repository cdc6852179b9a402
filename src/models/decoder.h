// Decoder: the whole model. embedding -> layers -> final norm -> loss (or logits).
#pragma once

#include <optional>
#include <vector>

#include "data/dataset.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "models/prediction.h"
#include "moe/block.h"
#include "ops/layer_cache.h"
#include "ops/preference_loss.h"

namespace switchyard {

// One batch, placed on the mesh: i32 [B,S]. The axis rules say how batch and sequence are split.
struct DeviceBatch {
  Array inputs, positions, segments, targets, target_segments;
  std::vector<FurtherTokens> further;  // one entry for each prediction layer
  // Segments that also end where a document's chunk ends, for layers that attend within chunks. Undefined
  // where the tokens' positions already tell the chunks.
  Array chunk_segments = {};
  Array adapters = {};  // Batch::adapters
  Array weights = {};   // Batch::weights
};
// Places a whole batch on the mesh. `predictions`: the number of prediction layers to place targets for.
// `chunk`: as for place_own_rows.
DeviceBatch place_batch(Context& context, const Batch& whole, std::int64_t predictions = 0,
                        std::int64_t chunk = 0);
// Places a batch whose targets are its inputs, as generation's, with one copy to the device. The targets
// share the memory of the inputs.
DeviceBatch place_tokens(Context& context, const Batch& whole);
// Returns the batch whose tokens, positions and segments, and numbers of adapters where there are any, are on
// the device already: i32 [3B,S] or [4B,S] of this rank. `shape`: of the whole batch.
DeviceBatch placed_tokens(Context& context, const Tensor& there, const Shape& shape);

// The part of a batch of `shape` [B,S] that this rank holds: batch rows
// [begin, end). `axes` are the mesh axes that split the batch dim.
struct OwnRows {
  std::int64_t begin, end;
  Axes axes;
};
OwnRows own_rows(const Context& context, const Shape& shape);
// Places a batch of `rows` rows to which this rank contributes its own. `chunk`: tokens in a chunk, counted
// from the start of each document. 0: no layer attends within chunks, or chunks count from the row's start.
DeviceBatch place_own_rows(Context& context, const Batch& own, std::int64_t rows,
                           std::int64_t predictions = 0, std::int64_t chunk = 0);
// The DeviceBatch::chunk_segments of a batch on the host, i32 [B,S]; undefined where the positions tell the
// chunks, and for a chunk of 0.
Tensor packed_chunk_segments(const Batch& batch, std::int64_t chunk);

// Every entry asks this of one block of this context's pipeline stage.
struct BlockOptions {
  int block = 0;             // number of the stage's block whose layers run
  Array input = {};          // output of the block before; undefined for the first block
  Array choice = {};         // choice of keys of the block before (BlockOutput)
  bool keep_hidden = false;  // also return the embedding's and every layer's output
};

// The layers of a block leave this behind, whatever they run for.
struct BlockOutput {
  Array output;  // [B,S,M] for the next block of a pipeline; undefined after the last block
  Array choice;  // the last choice of keys (blocks/layers.h, Flow); undefined: all, or none made
  std::vector<LayerLoad> loads;  // one for each MoE layer
  std::vector<Routing> routing;  // one for each MoE layer
  std::vector<Array> hidden;     // with keep_hidden: the hidden states of this block
  // With keep_hidden, one for each layer with an indexer: the keys that
  // the indexer chose (ops/indexer.h). Undefined where it chose all.
  std::vector<Array> chosen_keys;
  std::vector<std::int64_t> layer_bytes;  // bytes that each layer added to this rank's account
};

struct LossOptions : BlockOptions {
  std::int64_t step = 0;       // the step's number, for random routing
  std::int64_t first_row = 0;  // first batch row of this microbatch in the step's batch, for random routing
  double target_count = 1;     // targets with weight above 0 in the whole (accumulated) batch
  double further_count = 1;    // the same count for all prediction layers together
  // Both counts, f64 [] each on the device: where defined, they replace those above. For a graph, whose steps
  // have other counts than the recorded one.
  Tensor target_count_there = {}, further_count_there = {};
  // Factor on balance and indexer losses, which are means over this pass: the pass's share of the step.
  double balance_share = 1;
  // A loss over pairs of answers in place of the cross entropy. `reference`: target_log_probs() of what dpo
  // holds the model to.
  std::optional<PreferenceOptions> preference = {};
  Array reference = {};
  bool keep_logits = false;  // also return logits [B,S,V] f32; otherwise they never exist
  bool head_scores = false;  // also return the largest attention scores
};

// Losses [] f32 of a block; those that only the last block has are undefined before it.
struct Losses : BlockOutput {
  // The sum that is differentiated, lm_loss + prediction_loss + balance_loss + indexer_loss. Undefined where
  // a block contributes no loss.
  Array loss;
  Array lm_loss;  // cross entropy with its z loss, or the loss over pairs; 0 in training steps that train
                  // only the indexers
  Array z_loss;   // part of lm_loss
  Array balance_loss;                // mean over MoE layers; undefined without one
  std::vector<Array> layer_balance;  // one for each MoE layer: the terms of balance_loss
  // Mean cross entropy of all prediction layers together, times the model's prediction_loss. Undefined
  // without prediction layers; a pass without gradients leaves them out.
  Array prediction_loss;
  Array indexer_loss;  // mean of the layers' indexer losses, times the model's factor; undefined without one
  std::optional<Preference> preference;  // over pairs
  Array log_probs;                       // over pairs: f32 [B,S], of the targets
  std::vector<HeadScores> scores;        // with head_scores, one for each layer
  Array logits;                          // with keep_logits
};

// Runs what a block has of the embedding, the layers, the final norm and the losses.
Losses training_losses(Context& context, const ModelConfig& model, const Parameters& parameters,
                       const DeviceBatch& batch, const LossOptions& options);

// Evaluation: what output_logits() turns, whole or in parts, into logits.
struct HiddenStates : BlockOutput {
  Array final_hidden;  // [B,S,M] after the final norm; undefined before the last block
};
HiddenStates hidden_states(Context& context, const ModelConfig& model, const Parameters& parameters,
                           const DeviceBatch& batch, const BlockOptions& options);

// Returns the natural log of each target's probability, f32 [B,S], 0 where there is no target.
// `final_hidden` is that of hidden_states().
Array log_probs_of(Context& context, const ModelConfig& model, const Parameters& parameters,
                   const DeviceBatch& batch, const Array& final_hidden);
// Calls hidden_states() and log_probs_of(), for a model without pipeline stages.
Array target_log_probs(Context& context, const ModelConfig& model, const Parameters& parameters,
                       const DeviceBatch& batch);

// Generation. `caches` have every layer's keys and values of earlier tokens, and room for the new ones.
struct NextLogits : BlockOutput {
  Array logits;  // f32 [B,1,V] for each slot's next token, or [B,S,V] behind every token of the call
  Array trunk;   // [B,S,M]: the last layer's output. Both are undefined before the last block
};
NextLogits next_logits(Context& context, const ModelConfig& model, const Parameters& parameters,
                       const DeviceBatch& batch, LayerCaches& caches, const BlockOptions& options,
                       bool every_token);
// Runs the first prediction layer in place of the model. Its logits are [B,1,V], its trunk [B,1,M]. `trunk`
// is that of the call before, whose tokens came directly before the tokens of this batch; with `further` that
// call was one of drafts too.
NextLogits draft_logits(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const DeviceBatch& batch, LayerCaches& caches, const Array& trunk, bool further);

// Logits f32 [B,S,V] of final_hidden [B,S,M] or of a part of it (some rows and tokens), laid out by the axis
// rules. Call it on the last stage.
Array output_logits(Context& context, const ModelConfig& model, const Parameters& parameters,
                    const Array& hidden);

// The divisor of the sum of the layers' balance losses.
double layers_averaged(const ModelConfig& model);

// Number of targets that count, in the given rows.
double count_targets(const Batch& batch);

}  // namespace switchyard
