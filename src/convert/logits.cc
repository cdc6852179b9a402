#include "convert/logits.h"

#include <cstring>
#include <functional>
#include <map>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "convert/hub_form.h"
#include "core/error.h"
#include "core/rng.h"
#include "engine/model.h"
#include "models/blocks/layers.h"
#include "models/decoder.h"
#include "models/families/hub_source.h"
#include "models/families/hub_tensors.h"
#include "models/same_model.h"
#include "verify/gather.h"

namespace switchyard {
namespace {

constexpr std::int64_t kRows = 2, kTokens = 16;

// A model and a function that reads its weights.
struct StoredModel {
  Config config;
  Parameters::Fill fill;
};

// `exact`: all weights in float32, also those that a conversion rounds where no type is asked for.
StoredModel open_hub(const std::string& path, bool exact) {
  const HubSource source = open_hub_source(path);
  const std::shared_ptr<const HubWeights> folder = source.weights;
  Config config = config_of_hub(source.config, predictions_in(source.config, [&](const std::string& tensor) {
                                  return folder->contains(tensor);
                                }));
  const ModelFamily& family = family_of(source.config);
  const ModelConfig model = model_config(config);
  std::map<std::string, Shape> shapes;
  for (const auto& spec : parameter_specs(model)) shapes[spec.name] = spec.shape;
  check_hub_tensors(*folder, family, shapes, model.layers);
  return {std::move(config), [folder, &family, exact](const ParameterSpec& spec) {
            if (!exact) return load_from_hub(*folder, family, spec.name, spec.shape);
            return hub_block(*folder, family, spec.name, spec.shape, whole_box(spec.shape), {DType::f32, 1});
          }};
}

StoredModel open_ours(const std::string& path) {
  const auto folder = std::make_shared<CheckpointFolder>(open_checkpoint(path, nullptr));
  return {config_of_stored(folder->manifest().config, folder->path()), [folder](const ParameterSpec& spec) {
            const StoredParameter stored = stored_parameter(spec.name, spec.shape);
            Tensor whole(folder->tensor(stored.names[0]).dtype, spec.shape);
            std::byte* to = whole.raw();
            for (const std::string& name : stored.names) {
              const Tensor part = folder->read(name);
              if (part.shape() != stored.shape || part.dtype() != whole.dtype())
                fail_usage("[convert] {}: tensor {} is {} {}, expected {} {}", folder->path(), name,
                           name_of(part.dtype()), to_string(part.shape()), name_of(whole.dtype()),
                           to_string(stored.shape));
              std::memcpy(to, part.raw(), part.bytes());
              to += part.bytes();
            }
            return whole;
          }};
}

// Rows of tokens i32 [B,S], each one document.
Batch batch_of(const Tensor& tokens) {
  const Shape& shape = tokens.shape();
  Batch batch{tokens, Tensor::zeros(DType::i32, shape), Tensor(DType::i32, shape), Tensor(DType::i32, shape),
              Tensor(DType::i32, shape)};
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    batch.inputs_position.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % shape[1]);
    batch.inputs_segmentation.data<std::int32_t>()[i] = 1;
    batch.targets_segmentation.data<std::int32_t>()[i] = 1;
  }
  return batch;
}

Batch random_batch(std::int64_t vocab) {
  const Tensor tokens(DType::i32, {kRows, kTokens});
  const RngKey key = rng_key(0);
  for (std::int64_t i = 0; i < tokens.size(); ++i)
    tokens.data<std::int32_t>()[i] =
        rng_randint(key, static_cast<std::uint64_t>(i), 0, static_cast<std::int32_t>(vocab));
  return batch_of(tokens);
}

// A layer takes and gives x, after the last one the logits, and a choice of keys.
struct LayerResult {
  Tensor x, choice;  // undefined: none
};

// One layer, with the embedding before the first and the head after the last, as a stage of a pipeline of its
// own session: its weights are gone with it.
LayerResult run_layer(const ModelOnRanks& ranks, const Batch& batch, std::int64_t layer,
                      const LayerResult& before) {
  Gather results(ranks.mesh);
  ranks.run([&](Context& context) {
    context.grad_enabled = false;
    context.stage.index = static_cast<int>(layer);
    context.stage.count = static_cast<int>(ranks.model.layers);
    const Parameters parameters = ranks.load(context);
    LossOptions options;
    options.keep_logits = true;
    const auto leaf = [](const Tensor& x, const Sharding& sharding) {
      return x.defined() ? make_leaf(x, x.shape(), sharding, false) : Array();
    };
    if (before.x.defined()) options.input = leaf(before.x, block_sharding(*context.rules, before.x.shape()));
    options.choice = leaf(before.choice, replicated(3));
    const Losses out =
        training_losses(context, ranks.model, parameters, place_batch(context, batch), options);
    const bool last = context.stage.is_last();
    context.stage = {};
    results.put(context, "result", last ? out.logits : out.output);
    if (out.choice.defined()) results.put(context, "choice", out.choice);
  });
  return {results.whole("result"), results.contains("choice") ? results.whole("choice") : Tensor()};
}

StoredModel open_stored(const std::string& path, const Shape& tokens, bool exact) {
  StoredModel stored = is_hub_source(path) ? open_hub(path, exact) : open_ours(path);
  stored.config.set("max_target_length", tokens[1], "verify");
  stored.config.set("per_device_batch_size", static_cast<double>(tokens[0]), "verify");
  return stored;
}

// Logits of the model's layers; prediction layers give none.
Tensor logits_of(const StoredModel& stored, Parameters::Fill fill, const Batch& batch) {
  const ModelOnRanks ranks(ModelOnMesh(stored.config, ModelUse::run), nullptr, blocks_of(std::move(fill)));
  LayerResult result;
  for (std::int64_t layer = 0; layer < ranks.model.layers; ++layer)
    result = run_layer(ranks, batch, layer, result);
  return result.x;
}

}  // namespace

StoredLogits stored_logits(const std::string& path, std::optional<DType> dtype, bool as_exported,
                           const std::string& adapter) {
  StoredModel stored = open_stored(path, {kRows, kTokens}, dtype == DType::f32);
  if (!adapter.empty()) {
    stored.config.set("load_parameters_path", path, "verify");
    stored.config.set("adapter", adapter, "verify");
    stored.config.set("weight_format", "dense", "verify");
  }
  std::optional<HubForm> form;
  if (as_exported) form = hub_form(stored.config);
  const Parameters::Fill fill = [&](const ParameterSpec& spec) {
    const Tensor whole = stored.fill(spec);
    const DType rounded = dtype && !spec.name.ends_with(".gate_bias") ? *dtype : whole.dtype();
    const float factor = form ? form->factor_of(spec.name) : 1;
    const std::int64_t columns = form ? form->columns_of(spec.name) : 0;
    return scaled(scaled(whole, factor, rounded, columns), 1 / factor, DType::f32, columns);
  };
  const Batch batch = random_batch(model_config(stored.config).vocab);
  return {batch.inputs, logits_of(stored, fill, batch)};
}

Tensor stored_logits_of(const std::string& path, const Tensor& tokens) {
  const StoredModel stored = open_stored(path, tokens.shape(), true);
  const auto fill = [&](const ParameterSpec& spec) { return stored.fill(spec).cast(DType::f32); };
  return logits_of(stored, fill, batch_of(tokens));
}

}  // namespace switchyard
