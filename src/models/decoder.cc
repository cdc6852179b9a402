#include "models/decoder.h"

#include <algorithm>
#include <cmath>

#include "autograd/remat.h"
#include "nn/delta_net.h"
#include "nn/layers.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/reshard.h"
#include "ops/sigmoid_gate.h"

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

MoeWeights moe_weights(const LayerCall& call) {
  MoeWeights w;
  w.gate = call.parameters[call.prefix + "moe.gate"];
  if (call.model.moe.bias) w.gate_bias = call.parameters[call.prefix + "moe.gate_bias"];
  w.wi_0 = weight(call, "moe.wi_0");
  w.wi_1 = weight(call, "moe.wi_1");
  w.wo = weight(call, "moe.wo");
  if (call.model.moe.logit_bias) w.logit_bias = call.parameters[call.prefix + "moe.logit_bias"];
  if (call.model.moe.expert_bias) {
    w.wi_0_bias = weight(call, "moe.wi_0_bias");
    w.wi_1_bias = weight(call, "moe.wi_1_bias");
    w.wo_bias = weight(call, "moe.wo_bias");
  }
  return w;
}

// What every token gets beside the experts that it was sent to.
Array shared_experts(const LayerCall& call, const Array& x) {
  const Array y = gated_mlp(call, "moe.shared.", x);
  if (!call.model.shared_gate) return y;
  const Sharding one{{x.sharding().dims[0], x.sharding().dims[1], {}}, {}};
  const Array gate = einsum(call.context, "BSM,MG->BSG", x, weight(call, "moe.shared.gate"), &one);
  return sigmoid_gate(call.context, y, gate);
}

struct LayerOutput {
  Array x;
  std::optional<MoeOutput> moe;
};

LayerOutput decoder_layer(const LayerCall& call, const Array& x, std::int64_t layer,
                          const ForwardOptions& options) {
  Context& c = call.context;
  const ModelConfig& m = call.model;
  auto norm = [&](const Array& y, const char* name) {
    return rms_norm(c, y, call.parameters[call.prefix + name], m.norm_epsilon, m.norm_offset());
  };
  const Array normed = norm(x, "pre_attention_norm");
  const Array attended = call.layer.delta ? gated_delta_net(call, normed)
                         : m.mla          ? latent_attention(call, normed)
                                          : grouped_query_attention(call, normed);
  if (m.latent_experts) {
    MoeOutput moe = moe_block(c, m.moe, m.moe_execution, moe_weights(call),
                              norm(checkpoint_name(attended, "attention_out"), "post_attention_norm"),
                              call.segments, options.step, layer, options.first_row);
    const Array y =
        einsum(c, "BSL,LM->BSM", whole_embedding(c, moe.y), weight(call, "up_projection"), &x.sharding());
    return {add(c, x, y), std::move(moe)};
  }
  const Array middle = add(c, x, checkpoint_name(attended, "attention_out"));
  const Array inner = norm(middle, "post_attention_norm");
  if (!m.layer(layer).experts) return {add(c, middle, gated_mlp(call, "mlp.", inner)), std::nullopt};

  MoeOutput moe = moe_block(c, m.moe, m.moe_execution, moe_weights(call), inner, call.segments, options.step,
                            layer, options.first_row);
  Array y = add(c, middle, moe.y);
  if (m.shared_experts > 0) y = add(c, y, shared_experts(call, inner));
  return {y, std::move(moe)};
}

// The embedding in the dtype of activations; undefined on a stage without it.
Array table_of(Context& c, const ModelConfig& m, const Parameters& parameters) {
  return parameters.contains("embedding") ? cast(c, parameters["embedding"], m.dtype) : Array();
}

Array head_of(Context& c, const ModelConfig& m, const Parameters& parameters, const Array& table) {
  if (!m.tied) return cast(c, parameters["head"], m.dtype);
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

}  // namespace

OwnRows own_rows(const Context& context, const Shape& shape) {
  const Sharding sharding = batch_sharding(context, shape);
  const std::int64_t begin = local_offset(*context.mesh, context.rank, shape, sharding)[0];
  return {begin, begin + local_shape(*context.mesh, shape, sharding)[0], sharding.dims[0]};
}

DeviceBatch place_own_rows(Context& context, const Batch& own, std::int64_t rows) {
  const auto placed = [&](const Tensor& x) { return place(context, x, rows); };
  return {placed(own.inputs), placed(own.inputs_position), placed(own.inputs_segmentation),
          placed(own.targets), placed(own.targets_segmentation)};
}

DeviceBatch place_batch(Context& context, const Batch& whole) {
  const OwnRows own = own_rows(context, whole.inputs.shape());
  return place_own_rows(context, BatchRows(whole).read(own.begin, own.end), whole.inputs.dim(0));
}

Array output_logits(Context& c, const ModelConfig& m, const Parameters& parameters, const Array& hidden) {
  return logits_of(c, m, hidden, head_of(c, m, parameters, m.tied ? table_of(c, m, parameters) : Array()));
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
  const Sharding tokens{{layout.dims[0], layout.dims[1]}, {}};
  const Array segments = reshard(c, batch.segments, tokens);
  const Array positions = reshard(c, batch.positions, attention_tokens(c, m, shape[0], shape[1]));
  TokenPlaces places{positions, {}, {}, true};
  if (options.caches != nullptr) {
    places.rows = options.caches->rows;
    places.tokens = options.caches->tokens;
    places.from_beginning = options.caches->from_beginning;
  }
  const RopeTables rope =
      rope_tables(c, positions, rope_frequencies(m.rope, m.rope_dim), rope_amplitude(m.rope));
  // Of no angle: all that they do is to multiply.
  const RopeTables query_factors =
      m.scales_queries()
          ? rope_tables(c, positions, std::vector<double>(static_cast<std::size_t>(m.head_dim / 2)), 1,
                        {m.query_growth, static_cast<double>(m.query_growth_positions)})
          : RopeTables();

  const Array table = table_of(c, m, parameters);
  Array x = c.stage.is_first() ? embedding(c, table, batch.inputs, layout) : options.input;
  if (options.keep_hidden && c.stage.is_first()) result.hidden.push_back(x);

  const RematPolicy policy{m.remat, m.remat_keeps};
  Array balance;
  const LayerRange layers = layers_of(c.stage, m.layers);
  result.layer_bytes.assign(static_cast<std::size_t>(m.layers), 0);
  std::vector<std::int64_t> bytes;  // in use before each layer and after the last
  for (std::int64_t i = layers.begin; i < layers.end; ++i) {
    bytes.push_back(c.memory.in_use());
    c.comm->position().layer = i;
    RematRegion region(c, policy);
    AttentionCache* const cache =
        options.caches == nullptr ? nullptr : &options.caches->layers[static_cast<std::size_t>(i)];
    const LayerCall call{c,          m,
                         parameters, fmt::format("layers.{}.", i),
                         m.layer(i), m.layer(i).unrotated ? query_factors : rope,
                         segments,   cache,
                         &places};
    LayerOutput out = decoder_layer(call, x, i, options);
    x = out.x;
    if (options.keep_hidden) result.hidden.push_back(x);
    if (!out.moe) continue;
    if (out.moe->balance_loss.defined())
      balance = balance.defined() ? add(c, balance, out.moe->balance_loss) : out.moe->balance_loss;
    result.loads.push_back(std::move(out.moe->load));
    result.routing.push_back(out.moe->routing);
  }
  bytes.push_back(c.memory.in_use());
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i)
    result.layer_bytes[static_cast<std::size_t>(layers.begin) + i] = bytes[i + 1] - bytes[i];
  c.comm->position().layer = -1;

  if (balance.defined()) {
    result.balance_loss = scale(
        c, balance, static_cast<float>(options.balance_share / static_cast<double>(m.moe_layers().size())));
  }
  if (!c.stage.is_last()) {
    result.output = x;
    result.loss = result.balance_loss;
    return result;
  }
  Array hidden = rms_norm(c, x, parameters["final_norm"], m.norm_epsilon, m.norm_offset());
  if (m.normalize_tied_logits)
    hidden = scale(c, hidden, static_cast<float>(1 / std::sqrt(static_cast<double>(m.emb))));
  if (options.final_hidden) {
    result.final_hidden = hidden;
    return result;
  }
  const Array head = head_of(c, m, parameters, table);
  if (options.caches != nullptr) {
    result.logits = logits_of(c, m, hidden.shape()[1] == 1 ? hidden : last_tokens(c, hidden, segments), head);
    return result;
  }
  if (options.keep_logits) {
    NoGrad no_grad(c);
    result.logits = logits_of(c, m, hidden, head);
  }
  const CrossEntropyOptions loss{options.target_count, m.z_loss, m.logit_soft_cap};
  const CrossEntropy entropy =
      linear_cross_entropy(c, hidden, head, m.tied, batch.targets, batch.target_segments, loss);
  result.lm_loss = entropy.loss;
  result.z_loss = entropy.z_loss;
  result.loss = balance.defined() ? add(c, entropy.loss, result.balance_loss) : entropy.loss;
  return result;
}

}  // namespace switchyard
