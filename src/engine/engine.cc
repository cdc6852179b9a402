#include "switchyard/engine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "config/declaration.h"
#include "core/error.h"
#include "engine/engine_impl.h"
#include "engine/session.h"
#include "parallel/sharding.h"
#include "routing/routing_blocks.h"
#include "routing/routing_keys.h"
#include "train/checkpointer.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

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

// The experts of a row that `generator` read. Collective.
RoutedText routing_of(Generator& generator, std::size_t row, const std::vector<std::int32_t>& tokens) {
  const RoutedLayers routed = routed_layers(generator.model());
  std::vector<std::uint16_t> chosen(routed.layers.size() * tokens.size() *
                                    static_cast<std::size_t>(routed.slots));
  if (generator.is_first_rank()) chosen = generator.routing(row, std::ssize(tokens));
  generator.broadcast(std::span(chosen));
  RoutedText text{.tokens = tokens,
                  .layers = routed.layers,
                  .slots = routed.slots,
                  .experts = routed.experts,
                  .chosen = {}};
  for (const std::uint16_t id : chosen) text.chosen.push_back(id == kNoExpert ? -1 : id);
  return text;
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
      returns_experts(records_routing(config, without)),
      text_rows(rows_to_generate(config, mesh)),
      limits{.slots = text_rows,
             .waiting = std::numeric_limits<std::int32_t>::max(),
             .prompt_chunk = config.get_int("max_target_length"),
             .scored_chunk = texts::scored_chunk_of(model.vocab, config.get_int("max_target_length")),
             .shares_prefixes = false,
             .vocab = ids_to_pick()},
      ranks(static_cast<std::size_t>(mesh.size())),
      accounts(ranks.size()) {
  if (!on_ranks.fill) on_ranks.notes.push_back("random weights: load_parameters_path is not set");
  if (config.is_none("load_full_state_path")) return;
  refuse_packed("load_full_state_path", "set weight_format=dense");
  resume = find_resume_point(config, "", stored_tensors(on_ranks.specs, training().update), &on_ranks.notes);
}

void Engine::Impl::start(const LoadProgress& progress) {
  loop.emplace(config, mesh, *processes, [this](Context& context) { state(context).reset(); });
  loop->run([&](Context& context) {
    accounts[static_cast<std::size_t>(context.comm->rank())] = context.memory.account();
    // A checkpoint that is restored only needs room: nothing is read for it yet.
    state(context).emplace(on_ranks.load(context, resume.candidates.empty() ? progress : nullptr));
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

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

Logits Engine::forward(const TokenBatch& batch, Positions positions, bool experts) {
  Impl& own = *impl_;
  require_whole("forward", batch, vocabulary());
  if (experts) layers_to_route(own.without, "experts");
  own.require_layout(batch.rows);
  std::vector<SlotTokens> fed;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const auto begin = batch.tokens.begin() + row * batch.length;
    fed.push_back({static_cast<std::size_t>(row), {begin, begin + batch.length}});
  }
  Logits logits{batch.rows, positions == Positions::all ? batch.length : 1, vocabulary(), {}};
  own.loop->run([&](Context& context) {
    Generator generator(context, own.without, own.state(context)->parameters, batch.rows, batch.length);
    if (experts) generator.record_routing();
    const Tensor all = positions == Positions::all ? generator.feed_each(fed) : generator.feed(fed);
    std::vector<float> values;
    if (all.defined()) values.assign(all.span<float>().begin(), all.span<float>().end());
    if (own.processes->count() > 1) {  // each has a caller that waits for them
      values.resize(static_cast<std::size_t>(logits.rows * logits.positions * logits.vocabulary));
      generator.broadcast(std::span<float>(values));
    }
    std::vector<RoutedText> routing;
    for (std::size_t row = 0; experts && row < fed.size(); ++row)
      routing.push_back(routing_of(generator, row, fed[row].tokens));
    if (!own.speaks(context)) return;
    logits.values = std::move(values);
    logits.routing = std::move(routing);
  });
  return logits;
}

}  // namespace switchyard
