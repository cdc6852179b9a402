#include "models/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>

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

// The layers of a pass, one after the other, and what they leave behind beside their output.
class LayerRuns {
 public:
  struct Tokens {
    const RopeTables& rope;           // of layers that rotate
    const RopeTables& query_factors;  // of the others
    const Array& segments;
    const Array& chunk_segments;  // DeviceBatch
    const TokenPlaces& places;
  };
  LayerRuns(Context& context, const ModelConfig& model, const Parameters& parameters,
            const ForwardOptions& options, const Tokens& tokens, ForwardResult& result)
      : context_(context),
        model_(model),
        parameters_(parameters),
        options_(options),
        tokens_(tokens),
        policy_{model.remat, model.remat_keeps, model.remat_offloads},
        result_(result) {
    result.layer_bytes.assign(static_cast<std::size_t>(model.depth()), 0);
  }

  // Layer i of what `input` makes, inside of the layer's remat region.
  Array run(std::int64_t i, const std::function<Array(const LayerCall&)>& input) {
    end_layer();
    open_ = i;
    before_ = context_.memory.in_use();
    context_.comm->position().layer = i;
    RematRegion region(context_, policy_);
    const bool chunked = tokens_.chunk_segments.defined() && model_.seen_in(model_.layer(i)).chunk > 0;
    LayerCall call{
        context_,
        model_,
        parameters_,
        fmt::format("layers.{}.", i),
        model_.layer(i),
        model_.layer(i).unrotated ? tokens_.query_factors : tokens_.rope,
        chunked ? tokens_.chunk_segments : tokens_.segments,
        options_.caches == nullptr ? nullptr : &options_.caches->layers[static_cast<std::size_t>(i)],
        &tokens_.places};
    call.chunks_in_segments = chunked;
    HeadScores scores;
    scores.layer = i;
    if (options_.head_scores) call.scores = &scores;
    Array indexer_loss, chosen_keys;
    const bool indexed = model_.has_indexer() && !model_.layer(i).delta;
    if (indexed && options_.caches == nullptr && !options_.final_hidden) call.indexer_loss = &indexer_loss;
    if (indexed && options_.keep_hidden) call.chosen_keys = &chosen_keys;
    LayerOutput out = decoder_layer(call, input(call), i, {options_.step, options_.first_row});
    if (options_.head_scores) result_.scores.push_back(std::move(scores));
    if (options_.keep_hidden) result_.hidden.push_back(out.x);
    if (out.moe) keep(*out.moe);
    if (call.chosen_keys != nullptr) result_.chosen_keys.push_back(chosen_keys);
    if (indexer_loss.defined())
      indexer_ = indexer_.defined() ? add(context_, indexer_, indexer_loss) : indexer_loss;
    return out.x;
  }

  // What was in use before the layer and is after it, is charged to it; what comes now is not.
  void end_layer() {
    if (open_ >= 0) result_.layer_bytes[static_cast<std::size_t>(open_)] = context_.memory.in_use() - before_;
    open_ = -1;
  }

  // Sums over layers; undefined without one.
  const Array& balance() const { return balance_; }
  const Array& indexer() const { return indexer_; }

 private:
  void keep(MoeOutput& moe) {
    if (moe.balance_loss.defined())
      balance_ = balance_.defined() ? add(context_, balance_, moe.balance_loss) : moe.balance_loss;
    result_.layer_balance.push_back(moe.balance_loss);
    result_.loads.push_back(std::move(moe.load));
    result_.routing.push_back(moe.routing);
  }

  Context& context_;
  const ModelConfig& model_;
  const Parameters& parameters_;
  const ForwardOptions& options_;
  const Tokens tokens_;
  const RematPolicy policy_;
  ForwardResult& result_;
  Array balance_, indexer_;
  std::int64_t open_ = -1, before_ = 0;
};

// The final norm of prediction layer k, from 0 on.
Array prediction_norm(Context& c, const ModelConfig& m, const Parameters& parameters, std::int64_t k) {
  return parameters.on_device(
      c, m.prediction_norms ? fmt::format("layers.{}.prediction.final_norm", m.layers + k) : "final_norm");
}

// The last token of each row, [B,1,M].
Array last_of(Context& c, const Array& hidden, const Array& segments) {
  return hidden.shape()[1] == 1 ? hidden : last_tokens(c, hidden, segments);
}

// Of what prediction layers give: the mean over all their targets together, times the model's factor.
Array prediction_loss(Context& c, const ModelConfig& m, const Parameters& parameters,
                      std::span<const Array> further, const Array& head, const DeviceBatch& batch,
                      const ForwardOptions& options) {
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
  return result;
}

DeviceBatch place_batch(Context& context, const Batch& whole, std::int64_t predictions) {
  const OwnRows own = own_rows(context, whole.inputs.shape());
  return place_own_rows(context, BatchRows(whole).read(own.begin, own.end), whole.inputs.dim(0), predictions);
}

DeviceBatch place_tokens(Context& context, const Batch& whole) {
  const Shape& shape = whole.inputs.shape();
  const OwnRows own = own_rows(context, shape);
  const Sharding sharding = batch_sharding(context, shape);
  const Shape local = local_shape(*context.mesh, shape, sharding);
  const Shape offset{own.begin, local_offset(*context.mesh, context.rank, shape, sharding)[1]};
  const std::array<const Tensor*, 3> parts{&whole.inputs, &whole.inputs_position, &whole.inputs_segmentation};
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
  const std::int64_t rows = there.dim(0) / 3;
  const auto part = [&](std::int64_t i) {
    return make_leaf(there.slice_rows(i * rows, (i + 1) * rows), shape, sharding, false);
  };
  const Array tokens = part(0), positions = part(1), segments = part(2);
  return {tokens, positions, segments, tokens, segments, {}};
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

ForwardResult forward(Context& c, const ModelConfig& m, const Parameters& parameters,
                      const DeviceBatch& batch, const ForwardOptions& options) {
  ForwardResult result;
  const Shape shape{batch.inputs.shape()[0], batch.inputs.shape()[1], m.emb};
  const Sharding layout = block_sharding(*c.rules, shape);
  const auto segments_of = [&](const Array& x) {
    return x.defined() ? constrain(c, x, {"segment_ids_batch", "activation_norm_length"}) : x;
  };
  const Array segments = segments_of(batch.segments), chunk_segments = segments_of(batch.chunk_segments);
  const Array positions = reshard(c, batch.positions, attention_tokens(c, m, shape[0], shape[1]));
  TokenPlaces places{positions, {}, {}, true};
  if (options.caches != nullptr) {
    places.slots = options.caches->slots;
    places.tokens = options.caches->tokens;
    places.from_beginning = options.caches->from_beginning;
    places.numbers = &options.caches->numbers;
  }
  const RopeTables rope =
      rope_tables(c, positions, rope_frequencies(m.rope, m.rope_dim), rope_amplitude(m.rope));
  // Of no angle: all that they do is to multiply.
  const RopeTables query_factors =
      m.scales_queries()
          ? rope_tables(c, positions, std::vector<double>(static_cast<std::size_t>(m.head_dim / 2)), 1,
                        {m.query_growth, static_cast<double>(m.query_growth_positions)})
          : RopeTables();

  const Stage::Block block = c.stage.block(options.block);
  const Array table = block.is_first() || block.is_last() ? table_of(c, m, parameters) : Array();
  LayerRuns runs(c, m, parameters, options, {rope, query_factors, segments, chunk_segments, places}, result);
  if (options.draft_of.defined()) {
    const Array drafted = runs.run(m.layers, [&](const LayerCall& call) {
      return prediction_input(call, table, batch.inputs, options.draft_of);
    });
    c.comm->position().layer = -1;
    const Array hidden = final_hidden_of(c, m, drafted, prediction_norm(c, m, parameters, 0));
    result.logits = logits_of(c, m, last_of(c, hidden, segments), head_of(c, m, parameters, table));
    return result;
  }
  Array x = block.is_first() ? embedding(c, table, batch.inputs, layout) : options.input;
  if (options.keep_hidden && block.is_first()) result.hidden.push_back(x);
  const LayerRange layers = layers_of(block, m.layers);
  for (std::int64_t i = layers.begin; i < layers.end; ++i)
    x = runs.run(i, [&](const LayerCall&) { return checkpoint_name(x, "decoder_layer_input"); });
  runs.end_layer();
  std::vector<Array> further;  // what prediction layers give
  if (block.is_last() && c.grad_enabled) {
    CHECK(std::ssize(batch.further) == m.predictions, "tokens for {} of {} prediction layers",
          batch.further.size(), m.predictions);
    for (const FurtherTokens& next : batch.further) {
      const Array before = further.empty() ? x : further.back();
      further.push_back(runs.run(m.layers + std::ssize(further), [&](const LayerCall& call) {
        return prediction_input(call, table, next.inputs, before);
      }));
      runs.end_layer();
    }
  }
  c.comm->position().layer = -1;
  if (c.offload) c.offload->let_go();

  const Array& balance = runs.balance();
  if (balance.defined()) {
    result.balance_loss = scale(c, balance, static_cast<float>(options.balance_share / layers_averaged(m)));
  }
  if (runs.indexer().defined())
    result.indexer_loss =
        scale(c, runs.indexer(), static_cast<float>(options.balance_share / static_cast<double>(m.depth())));
  const auto with_others = [&](Array loss) {  // and what the layers add
    for (const Array& other : {result.balance_loss, result.indexer_loss})
      if (other.defined()) loss = loss.defined() ? add(c, loss, other) : other;
    return loss;
  };
  if (!block.is_last()) {
    result.output = x;
    result.loss = with_others({});
    return result;
  }
  const Array hidden = final_hidden_of(c, m, x, parameters.on_device(c, "final_norm"));
  if (options.final_hidden) {
    result.final_hidden = hidden;
    return result;
  }
  const Array head = head_of(c, m, parameters, table);
  if (options.caches != nullptr) {
    result.trunk = x;
    result.logits = logits_of(c, m, options.every_token ? hidden : last_of(c, hidden, segments), head);
    return result;
  }
  if (options.keep_logits) {
    NoGrad no_grad(c);
    result.logits = logits_of(c, m, hidden, head);
  }
  const Array dense_head = dense_weight(c, head, m.dtype);  // the loss reads no blocks
  if (m.trains_indexer_alone() && c.grad_enabled) {
    result.lm_loss = result.z_loss = make_leaf(c.zeros(DType::f32, {}), {}, Sharding{}, false);
  } else {
    const CrossEntropyOptions loss{.count = options.target_count,
                                   .count_there = options.target_count_there,
                                   .z_loss_multiplier = m.z_loss,
                                   .logit_soft_cap = m.logit_soft_cap};
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

}  // namespace switchyard
