#include "verify/layout_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "core/error.h"
#include "core/json_file.h"
#include "core/rng.h"
#include "engine/model.h"
#include "engine/whole_tensors.h"
#include "moe/router.h"
#include "moe/routing_tape.h"
#include "verify/model_case.h"

namespace switchyard {
namespace {

template <typename T>
bool parse_number(const std::string& text, T& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size();
}

// Records choices in a Gather, each under its own name, and replays those of another run.
class LayoutTape : public RoutingTape {
 public:
  LayoutTape(const MoeConfig& config, Gather& gather, const LayoutRun* recorded, bool first_pass)
      : config_(config), gather_(gather), recorded_(recorded), first_pass_(first_pass) {}

  Tensor replay(const Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                const ArrayInfo& logits) override {
    if (recorded_ == nullptr) return {};
    const Tensor& all = recorded_->tensors.at(name(step, layer));
    return block_of(context, all.slice_rows(first_row, first_row + logits.shape[0]), logits.sharding);
  }

  void record(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
              const Array& logits, const Array& bias, const Routing& routing) override {
    gather_.put(context, name(step, layer), routing.ids, first_row);
    if (!first_pass_ || recorded_ == nullptr || config_.random_routing) return;
    put_tie_widths(context, gather_, config_, layer, logits, bias, routing);
  }

 private:
  std::string name(std::int64_t step, std::int64_t layer) const {
    return first_pass_ ? fmt::format("choices.first.{}", layer) : fmt::format("choices.{}.{}", step, layer);
  }

  MoeConfig config_;
  Gather& gather_;
  const LayoutRun* recorded_;
  bool first_pass_;
};

// The one place where a fault is made.
void spoil(const std::optional<GradientFault>& fault, const Context& context, const Parameters& parameters) {
  if (!fault || context.comm->rank() != fault->rank || !parameters.contains(fault->gradient)) return;
  Tensor& gradient = parameters[fault->gradient].value()->grad;
  if (!gradient.defined()) return;
  Tensor changed = gradient.cast(DType::f32).clone();
  for (float& v : changed.span<float>()) v *= static_cast<float>(fault->scale);
  gradient = changed.cast(gradient.dtype());
}

}  // namespace

GradientFault parse_fault(const std::string& text) {
  GradientFault fault;
  std::set<std::string> given;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::string key = word.substr(0, word.find('=')),
                      value = word.substr(std::min(word.size(), key.size() + 1));
    const bool good = given.insert(key).second &&
                      ((key == "rank" && parse_number(value, fault.rank) && fault.rank >= 0) ||
                       (key == "gradient" && !(fault.gradient = value).empty()) ||
                       (key == "scale" && parse_number(value, fault.scale) && std::isfinite(fault.scale)));
    if (!good) given.insert("wrong");
  }
  if (given != std::set<std::string>{"rank", "gradient", "scale"})
    fail_usage(
        "[verify] --inject-fault: expected \"rank=N gradient=PARAMETER scale=X\", such as \"rank=3 "
        "gradient=layers.1.moe.wo scale=1.5\", got {}",
        in_quotes(text));
  return fault;
}

bool LayoutRun::dropped_rows() const {
  return std::any_of(steps.begin(), steps.end(), [](const StepResult& step) {
    return std::any_of(step.layers.begin(), step.layers.end(),
                       [](const LayerStatistics& layer) { return layer.rows_dropped() > 0; });
  });
}

Batch layout_batch(std::int64_t rows, std::int64_t sequence, std::int64_t vocab, std::int64_t step) {
  CHECK(rows >= 1 && sequence >= 2 && vocab >= 1, "{} rows of {} tokens below {}", rows, sequence, vocab);
  const Shape shape{rows, sequence};
  Batch batch{Tensor(DType::i32, shape), Tensor::zeros(DType::i32, shape), Tensor(DType::i32, shape),
              Tensor(DType::i32, shape), Tensor::zeros(DType::i32, shape)};
  const RngKey key = rng_fold_in(rng_key(71), static_cast<std::uint32_t>(step));
  const RngKey tokens = rng_split(key, 0), lengths = rng_split(key, 1);
  for (std::int64_t b = 0; b < rows; ++b) {
    const std::int64_t end = b % 2 == 1 ? sequence - sequence / 4 : sequence;
    std::int64_t document = 0, position = 0, left = 0;
    for (std::int64_t s = 0; s < sequence; ++s, ++position, --left) {
      const std::int64_t i = b * sequence + s;
      const auto at = static_cast<std::uint64_t>(i);
      if (left == 0 || s == end) {
        const auto longest = static_cast<std::int32_t>(sequence);
        left = s < end ? std::min<std::int64_t>(end - s, rng_randint(lengths, at, 2, longest + 1)) : sequence;
        position = 0;
        ++document;
      }
      batch.inputs.data<std::int32_t>()[i] = rng_randint(tokens, at, 0, static_cast<std::int32_t>(vocab));
      batch.inputs_position.data<std::int32_t>()[i] = static_cast<std::int32_t>(position);
      batch.inputs_segmentation.data<std::int32_t>()[i] = s < end ? static_cast<std::int32_t>(document) : 0;
    }
    for (std::int64_t i = b * sequence; i + 1 < b * sequence + end; ++i) {
      const std::int32_t segment = batch.inputs_segmentation.data<std::int32_t>()[i];
      if (segment != batch.inputs_segmentation.data<std::int32_t>()[i + 1]) continue;
      batch.targets.data<std::int32_t>()[i] = batch.inputs.data<std::int32_t>()[i + 1];
      batch.targets_segmentation.data<std::int32_t>()[i] = segment;
    }
  }
  return batch;
}

LayoutRun run_layout(const Config& config, const Mesh& mesh, std::int64_t rows, std::int64_t steps,
                     const LayoutRun* recorded, const std::optional<GradientFault>& fault) {
  LayoutRun run;
  run.mesh = mesh.to_string();
  const ModelOnRanks ranks(ModelOnMesh(config, mesh, ModelUse::train));
  const ModelConfig& model = ranks.model;
  const TrainConfig train = train_config(config, model, mesh.axis_size("stage"));
  const auto batch = [&](std::int64_t step) {
    return layout_batch(rows, config.get_int("max_target_length"), model.vocab, step);
  };
  Gather gather(mesh);
  ranks.run([&](Context& context) {
    const auto spoiled = [&](const Parameters& parameters) { spoil(fault, context, parameters); };
    ModelConfig taped = model;
    taped.moe_execution.tape = std::make_shared<LayoutTape>(model.moe(), gather, recorded, true);
    Parameters parameters = ranks.load(context);
    gather_pass(context, taped, parameters, batch(0), gather, spoiled);
    taped.moe_execution.tape = std::make_shared<LayoutTape>(model.moe(), gather, recorded, false);
    Trainer trainer(context, taped, train, std::move(parameters));
    trainer.on_gradients(spoiled);
    for (std::int64_t i = 0; i < steps; ++i) {
      const StepResult result = trainer.step(i, batch(i));
      auto biases = router_biases(trainer);
      if (context.comm->rank() != 0) continue;
      run.steps.push_back(result);
      run.biases.push_back(std::move(biases));
    }
    gather_weights(trainer, gather);
  });
  for (const std::string& name : gather.names()) run.tensors[name] = gather.whole(name);
  run.disagreements = gather.disagreements();
  return run;
}

double tie_width(const MoeConfig& config, std::span<const float> logits, std::span<const float> bias,
                 std::span<const std::int32_t> replayed) {
  if (std::ranges::all_of(replayed, [](std::int32_t id) { return id < 0; })) return 0;  // padding
  std::vector<std::int32_t> own(replayed.size());
  std::vector<float> weights(replayed.size()), changed;
  const auto chooses_replayed = [&](std::span<const float> values) {
    route_token(routing_rule(config), values, bias, own, weights);
    return std::is_permutation(own.begin(), own.end(), replayed.begin());
  };
  if (chooses_replayed(logits)) return 0;
  const std::vector<std::int32_t> wanted = own;
  float largest = 0;
  for (const float v : logits) largest = std::max(largest, std::abs(v));
  for (double width = 0x1p-24; width < 1; width *= 2) {
    changed.assign(logits.begin(), logits.end());
    const float change = static_cast<float>(width) * largest;
    const auto move = [&](std::int32_t expert, std::span<const std::int32_t> stays, float by) {
      if (std::find(stays.begin(), stays.end(), expert) == stays.end())
        changed[static_cast<std::size_t>(expert)] += by;
    };
    for (const std::int32_t expert : replayed) move(expert, wanted, change);
    for (const std::int32_t expert : wanted) move(expert, replayed, -change);
    if (chooses_replayed(changed)) return width;
  }
  return 1;
}

void put_tie_widths(Context& context, Gather& gather, const MoeConfig& config, std::int64_t layer,
                    const Array& logits, const Array& bias, const Routing& routing) {
  const ArrayInfo& info = logits.info();
  const auto experts = static_cast<std::size_t>(config.experts),
             slots = static_cast<std::size_t>(config.slots);
  Tensor ties(DType::f32, {info.local[0], info.local[1]});
  const Tensor host_logits = to_host(logits.tensor()), host_ids = to_host(routing.ids.tensor()),
               host_bias = bias.defined() ? to_host(bias.tensor()) : Tensor();
  const std::span<const float> all_logits = host_logits.span<float>();
  const std::span<const std::int32_t> ids = host_ids.span<std::int32_t>();
  const std::span<const float> biases =
      bias.defined() ? std::span<const float>(host_bias.span<float>()) : std::span<const float>();
  for (std::size_t t = 0; t < static_cast<std::size_t>(ties.size()); ++t) {
    ties.data<float>()[t] = static_cast<float>(
        tie_width(config, all_logits.subspan(t * experts, experts), biases, ids.subspan(t * slots, slots)));
  }
  const Sharding tokens{{info.sharding.dims[0], info.sharding.dims[1]}, {}};
  gather.put(context, fmt::format("ties.{}", layer),
             make_leaf(ties, {info.shape[0], info.shape[1]}, tokens, false));
}

}  // namespace switchyard
