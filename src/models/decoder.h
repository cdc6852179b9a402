// Decoder: the whole model. embedding -> layers -> final norm -> loss (or logits).
#pragma once

#include <optional>
#include <vector>

#include "data/dataset.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "models/prediction.h"
#include "moe/block.h"
#include "ops/attention_cache.h"

namespace switchyard {

// One batch, placed on the mesh: i32 [B,S], batch and sequence split as the rules say.
struct DeviceBatch {
  Array inputs, positions, segments, targets, target_segments;
  std::vector<FurtherTokens> further;  // of each prediction layer
  // Segments that end with the chunks of their documents, for layers that attend within chunks; undefined where
  // places of the rows say the same.
  Array chunk_segments = {};
};
// `predictions`: for how many prediction layers.
DeviceBatch place_batch(Context& context, const Batch& whole, std::int64_t predictions = 0);

// Where this rank's rows lie among those of a batch of `shape` [B,S]: rows [begin, end). `axes` split the
// rows.
struct OwnRows {
  std::int64_t begin, end;
  Axes axes;
};
OwnRows own_rows(const Context& context, const Shape& shape);
// A batch of `rows` rows, of which this rank gives its own. `chunk`: tokens of a chunk, counted from the beginning of
// each document; 0: no layer attends within chunks, or they are counted from the beginning of the row.
DeviceBatch place_own_rows(Context& context, const Batch& own, std::int64_t rows,
                           std::int64_t predictions = 0, std::int64_t chunk = 0);

struct ForwardOptions {
  std::int64_t step = 0;       // for random routing
  double target_count = 1;     // targets with weight over the whole (accumulated) batch
  double further_count = 1;    // the same of all prediction layers together
  // Factor on balance and indexer losses, means over this pass's rows: their part of the step's rows that count.
  double balance_share = 1;
  std::int64_t first_row = 0;  // of this microbatch in the batch that `step` counts, for random routing
  int block = 0;               // of the stage: the layers to run
  Array input;                 // output of the block before, where there is one
  bool keep_hidden = false;    // also return the embedding's and every layer's output
  bool keep_logits = false;    // also return logits [B,S,V] f32; otherwise they never exist
  bool head_scores = false;    // also return the largest attention scores
  // Evaluation: what the head reads, in place of losses; output_logits() makes logits of it, or of a part.
  bool final_hidden = false;
  // Generation: what every layer's attention remembers of the tokens before these, with room for them.
  // Returns logits [B,1,V] of each row's next token and no losses.
  AttentionCaches* caches = nullptr;
  // With caches: logits of what follows every token of the call instead, [B,S,V].
  bool every_token = false;
  // With caches: in place of the model its first prediction layer, of `trunk` of the call before, whose
  // tokens were those that stand before the batch's.
  Array draft_of;
};

struct ForwardResult {
  Array output;  // [B,S,M] for the next block of a pipeline; lm_loss and z_loss are then undefined
  // [] f32: what is differentiated = lm_loss + prediction_loss + balance_loss + indexer_loss; undefined where
  // a block has none
  Array loss;
  // [] f32: cross entropy with its z loss; 0 in training where the model's indexers learn alone.
  Array lm_loss;
  Array z_loss;                      // [] f32, part of lm_loss
  Array balance_loss;                // [] f32: mean over MoE layers; undefined without one
  std::vector<Array> layer_balance;  // [] f32, one a MoE layer: what that is the sum of, where there is one
  // [] f32: mean cross entropy of all prediction layers together, times prediction_loss of the model;
  // undefined without such layers, which a pass without gradients leaves out.
  Array prediction_loss;
  // [] f32: mean over layers of their indexers' losses, times the model's factor; undefined without it.
  Array indexer_loss;
  std::vector<HeadScores> scores;  // one a layer, where asked
  std::vector<LayerLoad> loads;    // one a MoE layer
  std::vector<Routing> routing;    // one a MoE layer
  // With keep_hidden, one a layer with an indexer: the keys that it chose (ops/indexer.h), undefined where
  // all.
  std::vector<Array> chosen_keys;
  std::vector<std::int64_t> layer_bytes;  // by which each layer raised the bytes of this rank's account
  std::vector<Array> hidden;              // of this block
  Array logits;                           // f32
  Array trunk;                            // [B,S,M] of a call with caches: the last layer's output
  Array final_hidden;                     // [B,S,M], where asked, of the last block
};

// Of a block of this context's stage: embedding, layers, and final norm with the losses, or what of them
// falls to it.
ForwardResult forward(Context& context, const ModelConfig& model, const Parameters& parameters,
                      const DeviceBatch& batch, const ForwardOptions& options);

// Logits f32 [B,S,V] of final_hidden [B,S,M], or of some of its rows and tokens; laid out as the rules say.
// On the last stage.
Array output_logits(Context& context, const ModelConfig& model, const Parameters& parameters,
                    const Array& hidden);

// What the sum of the layers' balance losses is divided by.
double layers_averaged(const ModelConfig& model);

// Number of targets that count, in the rows that are given.
double count_targets(const Batch& batch);

}  // namespace switchyard
