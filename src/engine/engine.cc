#include "switchyard/engine.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "config/declaration.h"
#include "core/error.h"
#include "engine/engine_impl.h"
#include "engine/session.h"
#include "parallel/sharding.h"
#include "routing/routing_keys.h"
#include "train/checkpointer.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

// The processes that hold the engine's ranks. MPI lets a program join them only once,
// so an engine owns them until it is destroyed.
std::shared_ptr<Processes> join_for_engine() {
  if (launch_from_environment().processes == 1) return one_process();
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  static const std::unique_ptr<Processes> joined = join_processes();
  static std::weak_ptr<Processes> taken;
  if (!taken.expired())
    fail_usage("[engine] open: expected one engine at a time in a program under mpirun, got another");
  std::shared_ptr<Processes> mine(joined.get(), [](Processes*) {});
  taken = mine;
  return mine;
}

ModelOnRanks with_tokenizer(ModelOnRanks model) {
  model.tokenizer = make_tokenizer_of(model.config);
  return model;
}

ModelOnMesh model_of_engine(const Config& config) {
  for (const char* key : {"routing_record", "routing_replay"})
    refuse_routing_key(config, key, "the program's commands");
  if (config.get_bool("mtp_draft"))
    fail_usage("[engine] mtp_draft=true: only `generate` and `serve` draft tokens; set mtp_draft=false");
  if (const std::int64_t guessed = config.get_int("ngram_draft"); guessed > 0)
    fail_usage("[engine] ngram_draft={}: only `generate` and `serve` draft tokens; set ngram_draft=0",
               guessed);
  if (config.get_bool("deterministic_batches"))
    fail_usage("[engine] deterministic_batches=true: only `generate` and `serve` keep it; set it to false");
  ModelOnMesh model(config, ModelUse::train_or_run);
  const std::vector<std::string> notices = config.notices();
  model.notes.insert(model.notes.begin(), notices.begin(), notices.end());
  return model;
}

// The weights that load_parameters_path names, or room for those of a checkpoint that is restored.
std::optional<Parameters::FillBlock> room_to_restore(const Config& config) {
  if (config.is_none("load_full_state_path")) return {};
  return [](const ParameterSpec& spec, const Box& block) { return Tensor(spec.dtype, block.shape); };
}

Tensor ids(const TokenBatch& batch, const auto& value_at) {
  const Tensor tensor(DType::i32, {batch.rows, batch.length});
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    tensor.data<std::int32_t>()[i] = value_at(i / batch.length, i % batch.length);
  return tensor;
}

Batch batch_to_train(const TrainBatch& batch) {
  const TokenBatch& inputs = batch.inputs;
  const auto at = [&](const std::vector<std::int32_t>& values, std::int64_t row, std::int64_t column) {
    return values[static_cast<std::size_t>(row * inputs.length + column)];
  };
  const auto target = [&](std::int64_t row, std::int64_t column) -> std::int32_t {
    if (!batch.targets.empty()) return at(batch.targets, row, column);
    return column + 1 < inputs.length ? at(inputs.tokens, row, column + 1) : -1;
  };
  return {
      ids(inputs, [&](std::int64_t row, std::int64_t column) { return at(inputs.tokens, row, column); }),
      ids(inputs, [&](std::int64_t row, std::int64_t column) { return std::max(0, target(row, column)); }),
      ids(inputs, [](std::int64_t, std::int64_t column) { return static_cast<std::int32_t>(column); }),
      ids(inputs, [](std::int64_t, std::int64_t) { return 1; }),
      ids(inputs, [&](std::int64_t row, std::int64_t column) { return target(row, column) < 0 ? 0 : 1; })};
}

std::vector<std::int64_t> numbers(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

}  // namespace

void require_whole(const char* what, const TokenBatch& batch, std::int64_t vocabulary) {
  if (batch.rows < 1 || batch.length < 1 || std::ssize(batch.tokens) != batch.rows * batch.length)
    fail_usage("[engine] {}: {} tokens, expected rows * length = {} * {}, both at least 1", what,
               batch.tokens.size(), batch.rows, batch.length);
  for (const std::int32_t token : batch.tokens) {
    if (token < 0 || token >= vocabulary)
      fail_usage("[engine] {}: token {} is outside the vocabulary of {}", what, token, vocabulary);
  }
}

Engine::Impl::Impl(const Config& of, std::shared_ptr<Processes> with)
    : processes(std::move(with)),
      on_ranks(with_tokenizer(ModelOnRanks(model_of_engine(of), processes.get(), room_to_restore(of)))),
      without(without_predictions(model)),
      text_rows(rows_to_generate(config, mesh)),
      limits{.slots = text_rows,
             .waiting = std::numeric_limits<std::int32_t>::max(),
             .prompt_chunk = config.get_int("max_target_length"),
             .shares_prefixes = false,
             .vocab = ids_to_pick()},
      ranks(static_cast<std::size_t>(mesh.size())) {
  if (!on_ranks.fill) on_ranks.notes.push_back("random weights: load_parameters_path is not set");
  if (config.is_none("load_full_state_path")) return;
  refuse_packed("load_full_state_path", "set weight_format=dense");
  resume = find_resume_point(config, "", stored_tensors(on_ranks.specs, training().update), &on_ranks.notes);
}

void Engine::Impl::start() {
  loop.emplace(on_ranks, [this](Context& context) { state(context).reset(); });
  loop->run([this](Context& context) {
    state(context).emplace(on_ranks.load(context));
    if (!resume.candidates.empty()) restore(context);
  });
}

void Engine::Impl::require_layout(std::int64_t rows) const {
  check_layout(config, mesh, without, {rows, rows, 1, without.moe_execution.token_chunks});
}

void Engine::Impl::refuse_packed(const char* what, const char* advice) const {
  if (on_ranks.is_packed())
    fail_usage("[engine] {}: the weights are packed ({}); {}", what, config.get_string("weight_format"),
               advice);
}

TrainConfig Engine::Impl::training() const {
  return train_config(config, model, mesh.axis_size("stage"));
}

const ParameterSpec& Engine::Impl::spec(std::string_view name) const {
  std::vector<std::string> names;
  for (const ParameterSpec& s : on_ranks.specs) {
    if (s.name == name) return s;
    names.push_back(s.name);
  }
  fail_usage("[engine] parameter {}: the model has none of that name{}", name, nearest_hint(name, names));
}

void Engine::Impl::add_of_other_processes(Context& context, const Tensor& whole) const {
  if (processes->count() == 1) return;
  context.comm->barrier(everyone(*context.comm, "parameter"));
  if (!speaks(context)) return;
  ProcessGroup speakers{{}, processes->index(), "processes"};
  for (int p = 0; p < processes->count(); ++p)
    speakers.ranks.push_back(p * (mesh.size() / processes->count()));
  context.comm->all_reduce(speakers, TensorView::of_host(DType::i32, whole.raw(), {whole.size()}));
}

ParameterInfo Engine::Impl::info(const ParameterSpec& of) const {
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  const Sharding sharding = rules.resolve(of.dims, of.shape).sharding;
  ParameterInfo info{.name = of.name,
                     .shape = numbers(of.shape),
                     .dtype = std::string(name_of(of.dtype)),
                     .axes = {},
                     .block = numbers(local_shape(own, of.shape, sharding)),
                     .trained = of.trained};
  for (const Axes& axes : sharding.dims) info.axes.push_back(joined(axes));
  return info;
}

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::open(const Settings& settings, const std::stop_token& stop) {
  const Config& config = settings.checked().config;
  const std::shared_ptr<Processes> processes = join_for_engine();
  const double timeout = config.get_float("collective_timeout_seconds");
  std::shared_ptr<Impl> impl;
  try {
    impl = std::make_shared<Impl>(config, processes);
  } catch (const Error& error) {
    processes->agree(&error, timeout);  // throws
  } catch (const std::exception& error) {
    const Error told(Error::Kind::runtime, error.what());
    processes->agree(&told, timeout);
  }
  processes->agree(nullptr, timeout);
  impl->on_ranks.fill = stoppable(impl->on_ranks.fill, stop, "open");
  impl->start();
  return Engine(std::move(impl));
}

const std::vector<std::string>& Engine::notes() const {
  return impl_->on_ranks.notes;
}
std::int64_t Engine::vocabulary() const {
  return impl_->model.vocab;
}
int Engine::ranks() const {
  return impl_->mesh.size();
}

Logits Engine::forward(const TokenBatch& batch, Positions positions) {
  Impl& own = *impl_;
  require_whole("forward", batch, vocabulary());
  own.require_layout(batch.rows);
  std::vector<SlotTokens> fed;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const auto begin = batch.tokens.begin() + row * batch.length;
    fed.push_back({static_cast<std::size_t>(row), {begin, begin + batch.length}});
  }
  Logits logits{batch.rows, positions == Positions::all ? batch.length : 1, vocabulary(), {}};
  own.loop->run([&](Context& context) {
    Generator generator(context, own.without, own.state(context)->parameters, batch.rows, batch.length);
    const Tensor all = positions == Positions::all ? generator.feed_each(fed) : generator.feed(fed);
    std::vector<float> values;
    if (all.defined()) values.assign(all.span<float>().begin(), all.span<float>().end());
    if (own.processes->count() > 1) {  // each has a caller that waits for them
      values.resize(static_cast<std::size_t>(logits.rows * logits.positions * logits.vocabulary));
      generator.broadcast(std::span<float>(values));
    }
    if (own.speaks(context)) logits.values = std::move(values);
  });
  return logits;
}

TrainStep Engine::train_step(const TrainBatch& batch) {
  Impl& own = *impl_;
  own.refuse_packed("train_step", "open the engine with weight_format=dense");
  require_whole("train_step", batch.inputs, vocabulary());
  if (!batch.targets.empty()) {
    if (batch.targets.size() != batch.inputs.tokens.size())
      fail_usage("[engine] train_step: {} targets, expected one for each of {} tokens", batch.targets.size(),
                 batch.inputs.tokens.size());
    const auto last = std::ranges::max(batch.targets);
    if (last >= vocabulary())
      fail_usage("[engine] train_step: target {} is outside the vocabulary of {}", last, vocabulary());
  }
  BatchSizes sizes = batch_sizes(own.config, own.mesh);
  if (batch.inputs.rows != sizes.step)
    fail_usage(
        "[engine] train_step: {} sequences, expected {} (per_device_batch_size={} on {} ranks, "
        "gradient_accumulation_steps={})",
        batch.inputs.rows, sizes.step, own.config.get_float("per_device_batch_size"), ranks(),
        own.config.get_int("gradient_accumulation_steps"));
  sizes.sequence = batch.inputs.length;
  check_layout(own.config, own.mesh, own.model, sizes);
  const TrainConfig training = own.training();
  const Batch rows = batch_to_train(batch);
  TrainStep told;
  own.loop->run([&](Context& context) {
    Impl::RankState& state = *own.state(context);
    if (!state.trainer) state.trainer.emplace(context, own.model, training, state.parameters);
    const std::int64_t step = state.steps;
    const StepResult result = state.trainer->step(step, rows);
    ++state.steps;
    if (!own.speaks(context)) return;
    told = {.step = step,
            .loss = result.loss,
            .cross_entropy = result.lm_loss,
            .balance_loss = result.balance_loss,
            .gradient_norm = result.raw_grad_norm,
            .learning_rate = result.learning_rate,
            .targets = result.total_weights,
            .skipped = result.bad};
  });
  return told;
}

ParameterView Engine::parameter(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  std::vector<std::optional<Shard>> found(own.ranks.size());
  own.loop->run([&](Context& context) {
    const Parameters& parameters = own.state(context)->parameters;
    if (!parameters.contains(spec.name)) return;  // it is another stage's
    const Array& array = parameters[spec.name];
    const Tensor& block = array.tensor();
    found[static_cast<std::size_t>(context.comm->rank())] =
        Shard{.rank = context.comm->rank(),
              .offset = numbers(local_offset(*context.mesh, context.rank, spec.shape, array.sharding())),
              .shape = numbers(block.shape()),
              .data = block.view().device().is_host() ? block.raw() : nullptr,
              .bytes = block.bytes(),
              .owner = block.buffer()};
  });
  ParameterView view{own.info(spec), {}};
  for (const std::optional<Shard>& shard : found) {
    if (shard) view.shards.push_back(*shard);
  }
  return view;
}

std::vector<ParameterInfo> Engine::parameters() {
  std::vector<ParameterInfo> all;
  for (const ParameterSpec& spec : impl_->on_ranks.specs) all.push_back(impl_->info(spec));
  return all;
}

std::vector<float> Engine::read_parameter(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  if (is_packed(spec.dtype))
    fail_usage("[engine] parameter {}: is packed ({}), which has no float32 values here", name,
               name_of(spec.dtype));
  const Tensor whole = Tensor::zeros(DType::f32, spec.shape);
  own.loop->run([&](Context& context) {
    for (const Parameter& p : own.state(context)->parameters.all()) {
      // One of the ranks that hold the same block.
      if (p.spec.name != spec.name || holders_of(context, p).index != 0) continue;
      place_block(to_host(p.array.tensor()).cast(DType::f32),
                  local_offset(*context.mesh, context.rank, spec.shape, p.array.sharding()), whole);
    }
    own.add_of_other_processes(context, whole);
  });
  return {whole.span<float>().begin(), whole.span<float>().end()};
}

}  // namespace switchyard
