#include "models/decoder.h"

#include <algorithm>
#include <cmath>

#include "autograd/ahead.h"
#include "autograd/remat.h"
#include "core/offload.h"
#include "models/decoder_layer.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/packed_operand.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

Sharding batch_sharding(const Context& context, const Shape& shape) {
  return context.rules->sharding({"activation_embed_and_logits_batch", "activation_norm_length"}, shape);
}

// `own`: this rank's rows, whole, of a batch of `rows` rows.
Array place(Context& context, const Tensor& own, std::int64_t rows) {
  const Shape shape{rows, own.dim(1)};
  const Sharding sharding = batch_sharding(context, shape);
  const Shape local = local_shape(*context.mesh, shape, sharding);
  CHECK(own.dim(0) == local[0], "{} rows of {}, of which this rank has {}", own.dim(0), rows, local[0]);
  const Shape offset{0, local_offset(*context.mesh, context.rank, shape, sharding)[1]};
  const Tensor block = context.empty(own.dtype(), local);
  if (!context.memory.device().is_abstract()) copy(slice_block(own, offset, local).view(), block.view());
  return make_leaf(block, shape, sharding, false);
}

// Whether a document begins elsewhere than at the beginning of its row, so that chunks of the two differ.
bool is_packed(const Batch& batch) {
  const auto positions = batch.inputs_position.span<std::int32_t>(),
             segments = batch.inputs_segmentation.span<std::int32_t>();
  const auto length = static_cast<std::size_t>(batch.inputs.dim(1));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (segments[i] != 0 && positions[i] != static_cast<std::int32_t>(i % length)) return true;
  }
  return false;
}

// Segments with another number for each chunk of a document; 0 stays 0.
Tensor chunk_segments_of(const Batch& batch, std::int64_t chunk) {
  const Tensor result = Tensor::zeros(DType::i32, batch.inputs.shape());
  const auto positions = batch.inputs_position.span<std::int32_t>(),
             segments = batch.inputs_segmentation.span<std::int32_t>(), numbers = result.span<std::int32_t>();
  const auto length = static_cast<std::size_t>(batch.inputs.dim(1));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (segments[i] == 0) continue;
    const bool follows = i % length != 0 && segments[i] == segments[i - 1] && positions[i] % chunk != 0;
    numbers[i] = follows ? numbers[i - 1] : static_cast<std::int32_t>(i % length) + 1;
  }
  return result;
}

// The embedding in the dtype of activations; undefined on a stage without it.
Array table_of(Context& c, const ModelConfig& m, const Parameters& parameters) {
  return parameters.contains("embedding") ? cast(c, parameters.on_device(c, "embedding"), m.dtype) : Array();
}

// The table where a block needs it.
Array block_table(Context& c, const ModelConfig& m, const Parameters& parameters, const Stage::Block& block) {
  return block.is_first() || block.is_last() ? table_of(c, m, parameters) : Array();
}

Array head_of(Context& c, const ModelConfig& m, const Parameters& parameters, const Array& table) {
  if (!m.tied) return cast(c, parameters.on_device(c, "head"), m.dtype);
  // The reference reads a tied head in bfloat16 whatever the dtype.
  return m.compat ? cast(c, cast(c, table, DType::bf16), m.dtype) : table;
}

Array logits_of(Context& c, const ModelConfig& m, const Array& hidden, const Array& head) {
  const Sharding want =
      c.rules->sharding({"activation_embed_and_logits_batch", "activation_norm_length", "activation_vocab"},
                        {hidden.shape()[0], hidden.shape()[1], m.vocab});
  const Array x = reshard(c, hidden, Sharding{{want.dims[0], want.dims[1], {}}, {}});
  const Array logits = cast(c, einsum(c, m.tied ? "BSM,VM->BSV" : "BSM,MV->BSV", x, head, &want), DType::f32);
  return m.logit_soft_cap > 0 ? capped_logits(c, logits, m.logit_soft_cap) : logits;
}

Array final_hidden_of(Context& c, const ModelConfig& m, const Array& x, const Array& norm) {
  const Array hidden = rms_norm(c, x, norm, m.norm_epsilon, m.norm_offset());
  if (!m.normalize_tied_logits) return hidden;
  return scale(c, hidden, static_cast<float>(1 / std::sqrt(static_cast<double>(m.emb))));
}

// LayerWork says what the layers of a pass compute beside their output.
struct LayerWork {
  std::int64_t step = 0, first_row = 0;  // for random routing
  LayerCaches* caches = nullptr;
  bool keep_hidden = false, head_scores = false, indexer_losses = false;
};

// Runs the layers of a pass in order, and collects their results other than the output.
class LayerRuns {
 public:
  LayerRuns(Context& context, const ModelConfig& model, const Parameters& parameters,
            const DeviceBatch& batch, const LayerWork& work, BlockOutput& result)
      : context_(context),
        model_(model),
        parameters_(parameters),
        work_(work),
        policy_{model.remat, model.remat_keeps, model.remat_offloads},
        result_(result),
        segments_(laid_out(batch.segments)),
        chunk_segments_(laid_out(batch.chunk_segments)),
        adapters_(batch.adapters),
        places_{reshard(context, batch.positions,
                        attention_tokens(context, model, batch.inputs.shape()[0], batch.inputs.shape()[1])),
                {},
                {},
                true} {
    if (work.caches != nullptr) {
      places_.slots = work.caches->slots;
      places_.tokens = work.caches->tokens;
      places_.from_beginning = work.caches->from_beginning;
      places_.drafted = work.caches->drafted;
      places_.numbers = &work.caches->numbers;
    }
    for (const AttentionKind& kind : model.attentions) {
      ropes_.push_back(rotations_of(kind));
      growths_.push_back(growth_of(kind));
    }
    result.layer_bytes.assign(static_cast<std::size_t>(model.depth()), 0);
  }

  // Runs layer i on the array that `input` makes inside the layer's remat region.
  Array run(std::int64_t i, const std::function<Array(const LayerCall&)>& input) {
    end_layer();
    open_ = i;
    before_ = bytes_of_layers();
    context_.comm->position().layer = i;
    RematRegion region(context_, policy_);
    const bool chunked = chunk_segments_.defined() && model_.seen_in(model_.layer(i)).chunk > 0;
    LayerCall call{context_,
                   model_,
                   parameters_,
                   fmt::format("layers.{}.", i),
                   model_.layer(i),
                   table_of(ropes_, model_.layer(i)),
                   table_of(growths_, model_.layer(i)),
                   chunked ? chunk_segments_ : segments_,
                   work_.caches == nullptr ? nullptr : &work_.caches->layers[static_cast<std::size_t>(i)],
                   &places_};
    call.chunks_in_segments = chunked;
    call.flow = &flow_;
    call.adapters = adapters_;
    HeadScores scores;
    scores.layer = i;
    if (work_.head_scores) call.scores = &scores;
    Array indexer_loss, chosen_keys;
    const bool indexed = model_.layer(i).attention >= 0 && call.attention().has_indexer();
    if (indexed && work_.indexer_losses) call.indexer_loss = &indexer_loss;
    // One entry for each layer of a model with indexers: undefined for those that share a choice.
    if ((indexed || model_.layer(i).choice_of >= 0) && work_.keep_hidden) call.chosen_keys = &chosen_keys;
    LayerOutput out = decoder_layer(call, input(call), i, {work_.step, work_.first_row});
    if (work_.head_scores) scores_.push_back(std::move(scores));
    if (work_.keep_hidden) result_.hidden.push_back(out.x);
    if (out.moe) keep(*out.moe);
    if (call.chosen_keys != nullptr) result_.chosen_keys.push_back(chosen_keys);
    if (indexer_loss.defined())
      indexer_ = indexer_.defined() ? add(context_, indexer_, indexer_loss) : indexer_loss;
    return out.x;
  }

  // Runs the layers of a block, from the tokens or from what the block before gave.
  Array run_block(const DeviceBatch& batch, const Array& table, const BlockOptions& options) {
    const Stage::Block block = context_.stage.block(options.block);
    const Shape shape{batch.inputs.shape()[0], batch.inputs.shape()[1], model_.emb};
    Array x = block.is_first()
                  ? embedding(context_, table, batch.inputs, block_sharding(*context_.rules, shape))
                  : options.input;
    if (work_.keep_hidden && block.is_first()) result_.hidden.push_back(x);
    flow_.choice = options.choice;
    const LayerRange layers = layers_of(block, model_.layers);
    for (std::int64_t i = layers.begin; i < layers.end; ++i)
      x = run(i, [&](const LayerCall&) { return checkpoint_name(x, "decoder_layer_input"); });
    end_layer();
    result_.choice = flow_.choice;
    if (!block.is_last()) result_.output = x;
    return x;
  }

  // Charges the open layer with the bytes that came into use since it began; what comes now is not its own.
  // A layer that frees more bytes than it keeps is charged with 0.
  void end_layer() {
    if (open_ >= 0)
      result_.layer_bytes[static_cast<std::size_t>(open_)] =
          std::max<std::int64_t>(0, bytes_of_layers() - before_);
    open_ = -1;
  }
  // Ends the last layer of the pass.
  void end() {
    end_layer();
    context_.comm->position().layer = -1;
    if (context_.offload) context_.offload->let_go();
  }

  // Bytes in use, without the weights that are gathered for later layers.
  std::int64_t bytes_of_layers() const {
    return context_.memory.in_use() - (context_.ahead == nullptr ? 0 : context_.ahead->held());
  }

  const Array& segments() const { return segments_; }
  // Sums over layers; undefined without one.
  const Array& balance() const { return balance_; }
  const Array& indexer() const { return indexer_; }
  // One entry for each layer that ran.
  std::vector<Array>& layer_balance() { return layer_balance_; }
  std::vector<HeadScores>& scores() { return scores_; }

 private:
  // Kinds that rotate alike share their tables.
  RopeTables rotations_of(const AttentionKind& kind) const {
    if (!kind.rotated) return {};
    for (std::size_t i = 0; i < ropes_.size(); ++i) {
      const AttentionKind& before = model_.attentions[i];
      if (before.rotated && before.rope == kind.rope && before.rope_dim == kind.rope_dim) return ropes_[i];
    }
    return rope_tables(context_, places_.positions, rope_frequencies(kind.rope, kind.rope_dim),
                       rope_amplitude(kind.rope));
  }
  RopeTables growth_of(const AttentionKind& kind) const {
    if (!kind.scales_queries()) return {};
    return rope_tables(context_, places_.positions,
                       std::vector<double>(static_cast<std::size_t>(kind.query_dim() / 2)), 1,
                       {kind.query_growth, static_cast<double>(kind.query_growth_positions),
                        static_cast<double>(kind.query_growth_offset)});
  }
  const RopeTables& table_of(const std::vector<RopeTables>& tables, const LayerSpec& layer) const {
    return layer.attention < 0 ? no_table_ : tables[static_cast<std::size_t>(layer.attention)];
  }
  Array laid_out(const Array& segments) const {
    return segments.defined() ? constrain(context_, segments, {"segment_ids_batch", "activation_norm_length"})
                              : segments;
  }
  void keep(MoeOutput& moe) {
    if (moe.balance_loss.defined())
      balance_ = balance_.defined() ? add(context_, balance_, moe.balance_loss) : moe.balance_loss;
    layer_balance_.push_back(moe.balance_loss);
    result_.loads.push_back(std::move(moe.load));
    result_.routing.push_back(moe.routing);
  }

  Context& context_;
  const ModelConfig& model_;
  const Parameters& parameters_;
  const LayerWork work_;
  const RematPolicy policy_;
  BlockOutput& result_;
  const Array segments_, chunk_segments_, adapters_;  // DeviceBatch
  TokenPlaces places_;
  std::vector<RopeTables> ropes_, growths_;  // of each kind of attention
  RopeTables no_table_;
  Flow flow_;
  Array balance_, indexer_;
  std::vector<Array> layer_balance_;
  std::vector<HeadScores> scores_;
  std::int64_t open_ = -1, before_ = 0;
};

// The final norm of prediction layer k, from 0 on.
Array prediction_norm(Context& c, const ModelConfig& m, const Parameters& parameters, std::int64_t k) {
  return parameters.on_device(
      c, m.prediction_norms ? fmt::format("layers.{}.prediction.final_norm", m.layers + k) : "final_norm");
}

// Returns what prediction layer k reads of the output `before` it, which is the model's for k = 0.
Array read_by_prediction(Context& c, const ModelConfig& m, const Parameters& parameters, const Array& before,
                         std::int64_t k) {
  if (!m.prediction_of_normed) return before;
  return final_hidden_of(
      c, m, before,
      k == 0 ? parameters.on_device(c, "final_norm") : prediction_norm(c, m, parameters, k - 1));
}

// The last token of each row, [B,1,M].
Array last_of(Context& c, const Array& hidden, const Array& segments) {
  return hidden.shape()[1] == 1 ? hidden : last_tokens(c, hidden, segments);
}

// Of what prediction layers give: the mean over all their targets together, times the model's factor.
Array prediction_loss(Context& c, const ModelConfig& m, const Parameters& parameters,
                      std::span<const Array> further, const Array& head, const DeviceBatch& batch,
                      const LossOptions& options) {
  Array sum;
  for (std::size_t k = 0; k < further.size(); ++k) {
    const Array hidden =
        final_hidden_of(c, m, further[k], prediction_norm(c, m, parameters, static_cast<std::int64_t>(k)));
    const FurtherTokens& tokens = batch.further[k];
    const Array loss = linear_cross_entropy(c, hidden, head, m.tied, tokens.targets, tokens.target_segments,
                                            {.count = options.further_count,
                                             .count_there = options.further_count_there,
                                             .z_loss_multiplier = 0,
                                             .logit_soft_cap = m.logit_soft_cap})
                           .loss;
    sum = sum.defined() ? add(c, sum, loss) : loss;
  }
  return scale(c, sum, static_cast<float>(m.prediction_loss));
}

}  // namespace

OwnRows own_rows(const Context& context, const Shape& shape) {
  const Sharding sharding = batch_sharding(context, shape);
  const std::int64_t begin = local_offset(*context.mesh, context.rank, shape, sharding)[0];
  return {begin, begin + local_shape(*context.mesh, shape, sharding)[0], sharding.dims[0]};
}

Tensor packed_chunk_segments(const Batch& batch, std::int64_t chunk) {
  if (chunk == 0 || batch.inputs.abstract() || !is_packed(batch)) return {};
  return chunk_segments_of(batch, chunk);
}

DeviceBatch place_own_rows(Context& context, const Batch& own, std::int64_t rows, std::int64_t predictions,
                           std::int64_t chunk) {
  const auto placed = [&](const Tensor& x) { return place(context, x, rows); };
  DeviceBatch result{placed(own.inputs),  placed(own.inputs_position),      placed(own.inputs_segmentation),
                     placed(own.targets), placed(own.targets_segmentation), {}};
  for (const Batch& further : further_batches(own, predictions))
    result.further.push_back(
        {placed(further.inputs), placed(further.targets), placed(further.targets_segmentation)});
  if (const Tensor chunks = packed_chunk_segments(own, chunk); chunks.defined())
    result.chunk_segments = placed(chunks);
  if (own.weights.defined()) result.weights = placed(own.weights);
  return result;
}

DeviceBatch place_batch(Context& context, const Batch& whole, std::int64_t predictions, std::int64_t chunk) {
  const OwnRows own = own_rows(context, whole.inputs.shape());
  return place_own_rows(context, BatchRows(whole).read(own.begin, own.end), whole.inputs.dim(0), predictions,
                        chunk);
}

DeviceBatch place_tokens(Context& context, const Batch& whole) {
  const Shape& shape = whole.inputs.shape();
  const OwnRows own = own_rows(context, shape);
  const Sharding sharding = batch_sharding(context, shape);
  const Shape local = local_shape(*context.mesh, shape, sharding);
  const Shape offset{own.begin, local_offset(*context.mesh, context.rank, shape, sharding)[1]};
  const std::vector<const Tensor*> parts = whole.parts_to_continue();
  const Tensor there = context.empty(DType::i32, {std::ssize(parts) * local[0], local[1]});
  if (!context.memory.device().is_abstract()) {
    const Tensor here(Memory(), DType::i32, there.shape());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) * local[0];
      copy(slice_block(*parts[i], offset, local).view(), here.slice_rows(row, row + local[0]).view());
    }
    copy(here.view(), there.view());
  }
  return placed_tokens(context, there, shape);
}

DeviceBatch placed_tokens(Context& context, const Tensor& there, const Shape& shape) {
  const Sharding sharding = batch_sharding(context, shape);
  const std::int64_t rows = local_shape(*context.mesh, shape, sharding)[0];
  const auto part = [&](std::int64_t i) {
    return make_leaf(there.slice_rows(i * rows, (i + 1) * rows), shape, sharding, false);
  };
  const Array tokens = part(0), positions = part(1), segments = part(2);
  DeviceBatch batch{tokens, positions, segments, tokens, segments, {}};
  if (there.dim(0) > 3 * rows) batch.adapters = part(3);
  return batch;
}

Array output_logits(Context& c, const ModelConfig& m, const Parameters& parameters, const Array& hidden) {
  return logits_of(c, m, hidden, head_of(c, m, parameters, m.tied ? table_of(c, m, parameters) : Array()));
}

double layers_averaged(const ModelConfig& m) {
  return m.moe_execution.balance.of_best_scores ? 1 : static_cast<double>(m.moe_layers().size());
}

double count_targets(const Batch& batch) {
  if (batch.targets_segmentation.abstract()) return static_cast<double>(batch.targets_segmentation.size());
  const auto segments = batch.targets_segmentation.span<std::int32_t>();
  return static_cast<double>(
      std::count_if(segments.begin(), segments.end(), [](std::int32_t s) { return s != 0; }));
}

Losses training_losses(Context& c, const ModelConfig& m, const Parameters& parameters,
                       const DeviceBatch& batch, const LossOptions& options) {
  Losses result;
  const Stage::Block block = c.stage.block(options.block);
  LayerRuns runs(c, m, parameters, batch,
                 {.step = options.step,
                  .first_row = options.first_row,
                  .keep_hidden = options.keep_hidden,
                  .head_scores = options.head_scores,
                  .indexer_losses = true},
                 result);
  const Array table = block_table(c, m, parameters, block), x = runs.run_block(batch, table, options);
  std::vector<Array> further;  // what prediction layers give
  if (block.is_last() && c.grad_enabled) {
    CHECK(std::ssize(batch.further) == m.predictions, "tokens for {} of {} prediction layers",
          batch.further.size(), m.predictions);
    for (const FurtherTokens& next : batch.further) {
      const auto k = std::ssize(further);
      const Array before = read_by_prediction(c, m, parameters, k == 0 ? x : further.back(), k);
      further.push_back(runs.run(m.layers + k, [&](const LayerCall& call) {
        return prediction_input(call, table, next.inputs, before);
      }));
      runs.end_layer();
    }
  }
  runs.end();
  result.layer_balance = std::move(runs.layer_balance());
  result.scores = std::move(runs.scores());
  if (runs.balance().defined())
    result.balance_loss =
        scale(c, runs.balance(), static_cast<float>(options.balance_share / layers_averaged(m)));
  if (runs.indexer().defined())
    result.indexer_loss =
        scale(c, runs.indexer(), static_cast<float>(options.balance_share / static_cast<double>(m.depth())));
  const auto with_others = [&](Array loss) {  // and what the layers add
    for (const Array& other : {result.balance_loss, result.indexer_loss})
      if (other.defined()) loss = loss.defined() ? add(c, loss, other) : other;
    return loss;
  };
  if (!block.is_last()) {
    result.loss = with_others({});
    return result;
  }
  const Array hidden = final_hidden_of(c, m, x, parameters.on_device(c, "final_norm"));
  const Array head = head_of(c, m, parameters, table);
  if (options.keep_logits) {
    NoGrad no_grad(c);
    result.logits = logits_of(c, m, hidden, head);
  }
  const Array dense_head = dense_weight(c, head, m.dtype);  // the loss reads no blocks
  if (m.trains_indexer_alone() && c.grad_enabled) {
    result.lm_loss = result.z_loss = make_leaf(c.zeros(DType::f32, {}), {}, Sharding{}, false);
  } else if (options.preference) {
    result.log_probs = token_log_probs(c, hidden, dense_head, m.tied, batch.targets, batch.target_segments,
                                       m.logit_soft_cap);
    result.preference =
        preference_loss(c, result.log_probs, options.reference, batch.target_segments, *options.preference);
    result.lm_loss = result.loss = result.preference->loss;
  } else {
    const CrossEntropyOptions loss{.count = options.target_count,
                                   .count_there = options.target_count_there,
                                   .z_loss_multiplier = m.z_loss,
                                   .logit_soft_cap = m.logit_soft_cap,
                                   .weights = batch.weights};
    const CrossEntropy entropy =
        linear_cross_entropy(c, hidden, dense_head, m.tied, batch.targets, batch.target_segments, loss);
    result.lm_loss = entropy.loss;
    result.z_loss = entropy.z_loss;
    result.loss = entropy.loss;
  }
  if (!further.empty()) {
    result.prediction_loss = prediction_loss(c, m, parameters, further, dense_head, batch, options);
    result.loss =
        result.loss.defined() ? add(c, result.loss, result.prediction_loss) : result.prediction_loss;
  }
  result.loss = with_others(result.loss);
  return result;
}

HiddenStates hidden_states(Context& c, const ModelConfig& m, const Parameters& parameters,
                           const DeviceBatch& batch, const BlockOptions& options) {
  HiddenStates result;
  const Stage::Block block = c.stage.block(options.block);
  LayerRuns runs(c, m, parameters, batch, {.keep_hidden = options.keep_hidden}, result);
  const Array x = runs.run_block(batch, block_table(c, m, parameters, block), options);
  runs.end();
  if (block.is_last()) result.final_hidden = final_hidden_of(c, m, x, parameters.on_device(c, "final_norm"));
  return result;
}

Array target_log_probs(Context& c, const ModelConfig& m, const Parameters& parameters,
                       const DeviceBatch& batch) {
  CHECK(c.stage.count == 1, "log-probabilities in {} stages", c.stage.count);
  return log_probs_of(c, m, parameters, batch, hidden_states(c, m, parameters, batch, {}).final_hidden);
}

Array log_probs_of(Context& c, const ModelConfig& m, const Parameters& parameters, const DeviceBatch& batch,
                   const Array& final_hidden) {
  const Array head = head_of(c, m, parameters, m.tied ? table_of(c, m, parameters) : Array());
  return token_log_probs(c, final_hidden, dense_weight(c, head, m.dtype), m.tied, batch.targets,
                         batch.target_segments, m.logit_soft_cap);
}

NextLogits next_logits(Context& c, const ModelConfig& m, const Parameters& parameters,
                       const DeviceBatch& batch, LayerCaches& caches, const BlockOptions& options,
                       bool every_token) {
  NextLogits result;
  const Stage::Block block = c.stage.block(options.block);
  LayerRuns runs(c, m, parameters, batch, {.caches = &caches, .keep_hidden = options.keep_hidden}, result);
  const Array table = block_table(c, m, parameters, block), x = runs.run_block(batch, table, options);
  runs.end();
  if (!block.is_last()) return result;
  const Array hidden = final_hidden_of(c, m, x, parameters.on_device(c, "final_norm"));
  result.trunk = x;
  result.logits = logits_of(c, m, every_token ? hidden : last_of(c, hidden, runs.segments()),
                            head_of(c, m, parameters, table));
  return result;
}

NextLogits draft_logits(Context& c, const ModelConfig& m, const Parameters& parameters,
                        const DeviceBatch& batch, LayerCaches& caches, const Array& trunk, bool further) {
  NextLogits result;
  LayerRuns runs(c, m, parameters, batch, {.caches = &caches}, result);
  const Array table = table_of(c, m, parameters),
              before = read_by_prediction(c, m, parameters, trunk, further ? 1 : 0);
  const Array drafted = runs.run(
      m.layers, [&](const LayerCall& call) { return prediction_input(call, table, batch.inputs, before); });
  c.comm->position().layer = -1;
  result.trunk = last_of(c, drafted, runs.segments());
  result.logits = logits_of(c, m, final_hidden_of(c, m, result.trunk, prediction_norm(c, m, parameters, 0)),
                            head_of(c, m, parameters, table));
  return result;
}

}  // namespace switchyard
