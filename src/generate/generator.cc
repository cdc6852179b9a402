#include "generate/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <mutex>
#include <numeric>
#include <utility>

#include "autograd/ahead.h"
#include "core/messages.h"
#include "kernels/pointwise/strided_copy.h"
#include "models/blocks/mixer.h"
#include "models/finite.h"
#include "models/pipeline.h"
#include "ops/gather_to_first.h"

namespace switchyard {
namespace {

// Without losses of training, and without chunks of tokens for the experts: a call has few tokens.
ModelConfig without_training(ModelConfig model) {
  model.moe_execution.balance_weight = model.indexer_loss = 0;
  model.moe_execution.token_chunks = 1;
  return model;
}

// Steps have so many rows, filled up with padding, or a multiple of the last: each number has its own graph.
constexpr std::array<std::int64_t, 9> kStepRows{1, 2, 4, 8, 16, 24, 32, 48, 64};

std::int64_t rows_of_step(std::int64_t texts) {
  const auto found = std::ranges::lower_bound(kStepRows, texts);
  return found != kStepRows.end() ? *found
                                  : (texts + kStepRows.back() - 1) / kStepRows.back() * kStepRows.back();
}

Sharding split_of_rows(const Context& context, const ModelConfig& model, std::int64_t rows) {
  return Sharding{{attention_tokens(context, model, rows, 1).dims[0]}, {}};
}

std::size_t routing_of_token(const RoutedLayers& routed) {
  return routed.layers.size() * static_cast<std::size_t>(routed.slots);
}

}  // namespace

std::vector<PickedToken> pick_there(ThreadPool& pool, const Tensor& logits,
                                    std::span<const TokenPick> picks) {
  if (picks.empty()) return {};
  if (logits.view().on_gpu() && std::ranges::any_of(picks, &TokenPick::processed))
    return pick_there(pool, to_host(logits), picks);
  std::vector<PickedToken> picked(picks.size());
  const Shape words{std::ssize(picks), kPickedWords};
  if (!logits.view().on_gpu()) {
    pick_tokens(pool, {logits.view(), picks, {}, TensorView::of_host(DType::i32, picked.data(), words)});
    return picked;
  }
  const Tensor packed = to_device(logits.memory(), pack_picks(picks)),
               out = logits.memory().empty(DType::i32, words);
  pick_tokens(pool, {logits.view(), picks, packed.view(), out.view()});
  const Tensor here = to_host(out);
  std::memcpy(picked.data(), here.raw(), here.bytes());
  return picked;
}

namespace {

// Returns what a slot of the layer's cache keeps.
CacheWindow window_of(const ModelConfig& model, const LayerSpec& layer, std::int64_t capacity, bool evicts,
                      std::int64_t taken_back) {
  return {.capacity = capacity,
          .seen = evicts ? model.seen_in(layer) : KeyWindow(),
          .taken_back = taken_back,
          .whole = mixer_of(model, layer).keeps_states};
}

}  // namespace

Prefixes prefixes_of(const ModelConfig& model, bool evicts) {
  Prefixes prefixes = Prefixes::any;
  for (const LayerSpec& layer : model.layer_specs) {
    const CacheWindow window = window_of(model, layer, 1, evicts, 1);
    if (window.whole) return Prefixes::whole;
    if (!window.cuts_freely()) prefixes = Prefixes::long_ones;
  }
  return prefixes;
}

std::string broken_layer_text(std::int64_t layer, std::int64_t layers) {
  if (layer < 0) return "the embedding's output is not finite";
  if (layer == layers) return "the outputs of all layers are finite";
  return fmt::format("the first output that is not finite is that of layer {}", layer);
}

Generator::Generator(Context& context, const ModelConfig& model, const Parameters& parameters,
                     std::int64_t slots, std::int64_t capacity, bool evicts, std::int64_t checkpoints,
                     std::int64_t taken_back)
    : context_(context),
      model_(without_training(model)),
      parameters_(parameters),
      capacity_(capacity),
      model_slots_(static_cast<std::size_t>(slots)),
      draft_slots_(static_cast<std::size_t>(slots)) {
  const Sharding split = split_of_rows(context_, model_, slots);
  groups_ = context_.mesh->product(split.dims[0]);
  first_here_ = local_offset(*context_.mesh, context_.rank, {slots}, split)[0];
  versions_.resize(static_cast<std::size_t>(slots));
  adapters_.resize(versions_.size());
  base_ = model_;
  base_.adapter = nullptr;
  drafted_from_.assign(versions_.size(), -1);
  checkpoints_.assign(versions_.size(), std::vector<Checkpoint>(static_cast<std::size_t>(checkpoints)));
  for (std::int64_t i = 0; i < model.layers + std::min<std::int64_t>(1, model.predictions); ++i) {
    LayerCache cache;
    cache.window = window_of(model, model.layer(i), capacity, evicts, taken_back);
    cache.int8 = model_.int8_cache;
    const std::int64_t states = cache.window.cuts_freely() ? 1 : 1 + checkpoints;
    cache.lengths.resize(static_cast<std::size_t>(slots / groups_ * states));
    (i < model.layers ? model_slots_ : draft_slots_).add(cache.window);
    caches_.layers.push_back(std::move(cache));
  }
  // Scans count tokens within a call, indexers choose keys on the host, drafts need the call before.
  const bool can_hold =
      prefixes_of(model_, evicts) != Prefixes::whole && !model_.has_indexer() && model_.predictions == 0;
  if (!context_.memory.device().is_gpu() || context_.memory.device().is_abstract() ||
      context_.comm->size() > 1 || !can_hold)
    return;
  if (!parameters_.any_away(context_)) {
    graphs_ = std::make_unique<gpu::GraphCache>(context_.memory.device(), "decoding", 2 * kStepRows.size());
    return;
  }
  // A graph would keep every fetched weight on the device.
  static std::once_flag said;
  std::call_once(said, [] { say("switchyard: decoding: without a graph: weights lie on the host"); });
}

void Generator::follow_weights() {
  if (derived_version_ == parameters_.version()) return;
  derived_version_ = parameters_.version();
  for (LayerCache& cache : caches_.layers) cache.key_up = cache.value_up = {};
  trunk_ = {};
  clear_graphs();  // a graph reads what was derived at its old address
}

void Generator::clear_graphs() {
  if (graphs_ == nullptr) return;
  loads_.clear();
  graphs_->clear();
}

void Generator::follow_adapters(std::shared_ptr<const Adapter> adapter) {
  model_.adapter = std::move(adapter);
  clear_graphs();
}

// Every group of slots gets as many batch rows as the group with most fed slots needs. Where a batch of that
// size would be split otherwise than all slots are, every slot gets a row.
Generator::BatchRows Generator::batch_rows(std::span<const SlotTokens> fed, std::int64_t least) const {
  const std::int64_t group_slots = slots() / groups_;
  std::vector<std::int64_t> used(static_cast<std::size_t>(groups_));
  for (const SlotTokens& f : fed) ++used[f.slot / static_cast<std::size_t>(group_slots)];
  std::int64_t most = std::max(*std::max_element(used.begin(), used.end()), std::min(least, group_slots));
  if (split_of_rows(context_, model_, groups_ * most) != split_of_rows(context_, model_, slots()))
    most = group_slots;
  BatchRows rows{groups_ * most, {}, std::vector<std::int64_t>(static_cast<std::size_t>(groups_ * most), -1)};
  std::fill(used.begin(), used.end(), 0);
  for (const SlotTokens& f : fed) {
    const std::size_t group = f.slot / static_cast<std::size_t>(group_slots);
    rows.of_fed.push_back(static_cast<std::int64_t>(group) * most + used[group]++);
    rows.slot_of[static_cast<std::size_t>(rows.of_fed.back())] = static_cast<std::int64_t>(f.slot);
  }
  return rows;
}

// `least`: the batch has at least so many tokens a row.
Batch Generator::batch_of(std::span<const SlotTokens> fed, const BatchRows& rows, std::size_t least) const {
  std::size_t longest = least;
  for (const SlotTokens& f : fed) longest = std::max(longest, f.tokens.size());
  const Shape shape{rows.count, static_cast<std::int64_t>(longest)};
  Batch batch;
  for (Tensor* const x : {&batch.inputs, &batch.inputs_position, &batch.inputs_segmentation})
    *x = Memory().zeros(DType::i32, shape);
  if (any_adapted_) batch.adapters = Memory().zeros(DType::i32, shape);
  for (std::size_t n = 0; n < fed.size(); ++n) {
    const auto before = static_cast<std::int32_t>(model_slots_.lengths[fed[n].slot]);
    for (std::size_t i = 0; i < fed[n].tokens.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(rows.of_fed[n]) * longest + i;
      batch.inputs.span<std::int32_t>()[at] = fed[n].tokens[i];
      batch.inputs_position.span<std::int32_t>()[at] = before + static_cast<std::int32_t>(i);
      batch.inputs_segmentation.span<std::int32_t>()[at] = 1;
      if (any_adapted_) batch.adapters.span<std::int32_t>()[at] = adapters_[fed[n].slot];
    }
  }
  batch.targets = batch.inputs;
  batch.targets_segmentation = batch.inputs_segmentation;
  return batch;
}

// Tells the caches which of this rank's slots the call's batch rows belong to, and how many tokens they get.
void Generator::choose_slots(std::span<const SlotTokens> fed, const BatchRows& rows) {
  const std::int64_t here = rows.count / groups_;
  const std::int64_t begin = first_here_ / (slots() / groups_) * here;
  caches_.slots.clear();
  caches_.tokens.assign(static_cast<std::size_t>(here), 0);
  for (std::int64_t b = begin; b < begin + here; ++b) {
    const std::int64_t slot = rows.slot_of[static_cast<std::size_t>(b)];
    caches_.slots.push_back(slot < 0 ? -1 : slot - first_here_);
  }
  for (std::size_t n = 0; n < fed.size(); ++n) {
    const std::int64_t b = rows.of_fed[n] - begin;
    if (b >= 0 && b < here)
      caches_.tokens[static_cast<std::size_t>(b)] = static_cast<std::int64_t>(fed[n].tokens.size());
  }
}

Tensor Generator::feed(std::span<const SlotTokens> fed) {
  return run(fed, {});
}

Tensor Generator::feed_each(std::span<const SlotTokens> fed, bool drafted) {
  return run(fed, {.every_token = true, .drafted = drafted});
}

Tensor Generator::draft(std::span<const SlotTokens> next) {
  return run_prediction(next, trunk_, false);
}

Tensor Generator::draft_further(std::span<const SlotTokens> drafted) {
  return run_prediction(drafted, draft_trunk_, true);
}

Tensor Generator::run_prediction(std::span<const SlotTokens> next, Array before, bool further) {
  follow_weights();
  CHECK(before.defined(), "no call before, or a model of {} prediction layers", model_.predictions);
  // The prediction layer continues after its own last token, not after the model's.
  std::swap(model_slots_, draft_slots_);
  Tensor logits = run(next, {.draft_of = std::move(before), .further = further});
  std::swap(model_slots_, draft_slots_);
  return logits;
}

void Generator::drop_further_drafts(std::span<const SlotTokens> drafted, std::int64_t calls) {
  for (const SlotTokens& of : drafted) {
    draft_slots_.cut(of.slot, of.slot, draft_slots_.lengths[of.slot] - calls);
    copy_state({of.slot}, {of.slot}, model_slots_.lengths[of.slot], draft_slots_.lengths[of.slot]);
  }
}

Tensor Generator::run(std::span<const SlotTokens> fed, const CallKind& kind) {
  CHECK(!fed.empty(), "no slot to feed");
  ran_graph_ = false;
  follow_weights();
  caches_.from_beginning = true;
  caches_.drafted = kind.drafted;
  for (const SlotTokens& f : fed) {
    CHECK(f.slot < model_slots_.lengths.size(), "slot {} of {}", f.slot, model_slots_.lengths.size());
    const std::int64_t length = model_slots_.lengths[f.slot] + std::ssize(f.tokens);
    CHECK(!f.tokens.empty() && length <= capacity_, "slot {}: {} tokens, capacity {}", f.slot, length,
          capacity_);
    CHECK(is_current(f.slot), "slot {} has tokens of other weights", f.slot);
    versions_[f.slot] = derived_version_;
    if (!kind.draft_of.defined()) drafted_from_[f.slot] = kind.drafted ? model_slots_.lengths[f.slot] : -1;
    caches_.from_beginning = caches_.from_beginning && model_slots_.lengths[f.slot] == 0;
  }
  any_adapted_ = std::ranges::any_of(fed, [&](const SlotTokens& f) { return adapters_[f.slot] > 0; });
  const NoGrad no_grad(context_);
  const bool drafts = kind.draft_of.defined();
  const bool is_step = makes_graphs() && !caches_.from_beginning && !drafts && !kind.every_token &&
                       std::ranges::all_of(fed, [](const SlotTokens& f) { return f.tokens.size() == 1; });
  const BatchRows rows = batch_rows(fed, is_step ? rows_of_step(std::ssize(fed)) : 1);
  choose_slots(fed, rows);
  const Batch batch = batch_of(fed, rows, drafts ? static_cast<std::size_t>(kind.draft_of.shape()[1]) : 0);
  const Tensor logits = is_step && can_begin_step(caches_)
                            ? logits_of_step(batch)
                            : logits_of(
                                  batch.inputs.shape(), [&] { return place_tokens(context_, batch); }, kind);
  caches_.numbers.clear();
  if (!drafts && routing_) keep_routing(fed, rows, batch.inputs.dim(1));
  for (const SlotTokens& f : fed) model_slots_.append(f.slot, std::ssize(f.tokens));
  if (!logits.defined()) return {};
  std::vector<std::int64_t> in_order(fed.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  Shape result{std::ssize(fed), model_.vocab};
  if (kind.every_token) result.insert(result.begin() + 1, logits.dim(1));
  if (rows.of_fed == in_order) return logits.slice_rows(0, std::ssize(fed)).reshaped(result);
  const std::int64_t of_row = logits.dim(1) * model_.vocab;
  if (logits.view().on_gpu()) {
    const Tensor of_fed = logits.memory().empty(DType::f32, result);
    const TensorView from = logits.view().reshaped({rows.count, of_row}),
                     to = of_fed.view().reshaped({std::ssize(fed), of_row});
    for (std::int64_t n = 0; n < std::ssize(fed); ++n) {
      const std::int64_t row = rows.of_fed[static_cast<std::size_t>(n)];
      strided_copy(*context_.pool, from.rows(row, row + 1), to.rows(n, n + 1));
    }
    return of_fed;
  }
  const Tensor of_fed(Memory(), DType::f32, result);
  const std::size_t row_bytes = static_cast<std::size_t>(of_row) * sizeof(float);
  for (std::size_t n = 0; n < fed.size(); ++n)
    std::memcpy(of_fed.raw() + n * row_bytes,
                logits.raw() + static_cast<std::size_t>(rows.of_fed[n]) * row_bytes, row_bytes);
  return of_fed;
}

bool Generator::makes_graphs() const {
  return graphs_ != nullptr && keeps_logits_there_ && !routing_ && graphs_->reason().empty();
}

Tensor Generator::logits_of_step(const Batch& batch) {
  // The loads of the call before may lie in another graph's memory, which a recording may not release.
  loads_.clear();
  const std::int64_t rows = batch.inputs.dim(0);
  std::vector<std::int32_t> numbers;
  const std::vector<const Tensor*> parts = batch.parts_to_continue();
  for (const Tensor* const x : parts) {
    const auto values = x->span<std::int32_t>();
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  const std::vector<std::int32_t> lists = begin_step(caches_);
  numbers.insert(numbers.end(), lists.begin(), lists.end());
  Tensor& there = step_numbers_[any_adapted_ ? -rows : rows];
  if (!there.defined()) there = context_.empty(DType::i32, {std::ssize(numbers)});
  copy(TensorView::of_host(numbers.data(), there.shape()), there.view());
  const std::int64_t of_batch = std::ssize(parts) * rows;
  caches_.numbers.step = step_lists(caches_, there.slice_rows(of_batch, there.size()));
  const bool padded = std::ranges::find(caches_.slots, -1) != caches_.slots.end();
  const std::string key = fmt::format("{} rows{}{}{}", rows, padded ? ", padding" : "",
                                      keeps_loads_ ? ", loads" : "", any_adapted_ ? ", adapters" : "");
  const StepOutput out = graphs_->run<StepOutput>(key, [&] {
    const Shape& tokens = batch.inputs.shape();
    const Tensor placed = there.slice_rows(0, of_batch).reshaped({of_batch, 1});
    Tensor logits = logits_of(tokens, [&] { return placed_tokens(context_, placed, tokens); }, {});
    return StepOutput{logits, loads_};
  });
  ran_graph_ = graphs_->last_way() != gpu::GraphCache::Way::eager;
  loads_ = out.loads;
  return out.logits;
}

Tensor Generator::logits_of(const Shape& tokens, const std::function<DeviceBatch()>& place,
                            const CallKind& kind) {
  const Shape shape{tokens[0], tokens[1], model_.emb};
  const bool drafts = kind.draft_of.defined();
  CHECK(!drafts || kind.draft_of.shape() == shape, "drafts for {} after {}", to_string(shape),
        to_string(kind.draft_of.shape()));
  Tensor logits;
  if (!drafts) loads_.clear();
  // A call of the model asks for the same weights as the call before: they are fetched ahead.
  GathersAhead* const ahead =
      !drafts && context_.comm->size() == 1 && parameters_.any_away(context_) ? context_.ahead : nullptr;
  if (ahead != nullptr) ahead->begin_step();
  Pipeline(context_, PipelineSchedule::one_forward_one_backward, model_.dtype, shape,
           block_sharding(*context_.rules, shape))
      .evaluate([&](const PipelinePass& pass, const Array& input) {
        const DeviceBatch batch = place();
        NextLogits out;
        if (drafts) {
          out = draft_logits(context_, model_of_call(), parameters_, batch, caches_, kind.draft_of,
                             kind.further);
          draft_trunk_ = out.trunk;
        } else {
          out = next_logits(context_, model_of_call(), parameters_, batch, caches_,
                            {.block = pass.block, .input = input, .keep_hidden = kind.keep_hidden},
                            kind.every_token);
        }
        if (kind.keep_hidden) count_broken(out, context_.stage.block(pass.block));
        if (out.logits.defined())
          logits = keeps_logits_there_ ? gather_to_first_device(context_, out.logits)
                                       : gather_to_first(context_, out.logits, "logits");
        if (!drafts && routing_) {
          for (std::size_t i = 0; i < out.routing.size(); ++i)
            routing_->add(context_, out.loads[i].layer, 0, out.routing[i].ids);
        }
        if (!drafts) {
          trunk_ = model_.predictions > 0 ? out.trunk : Array();
          if (keeps_loads_) std::ranges::move(out.loads, std::back_inserter(loads_));
        }
        return StageOutput{out.output, {}};
      });
  if (ahead != nullptr) ahead->end_step(context_);
  if (context_.stage.count == 1 || context_.rank != 0) return logits;
  // The last stage's first rank sends them to the first stage's, which is rank 0 of the run.
  const auto stages = static_cast<std::size_t>(context_.stage.count);
  std::vector<std::int64_t> none(stages), sent(stages), received(stages);
  if (context_.stage.is_last()) sent.front() = 1;
  if (context_.stage.is_first()) {
    received.back() = 1;
    logits = Memory().zeros(DType::f32, {shape[0], kind.every_token ? shape[1] : 1, model_.vocab});
  }
  const std::int64_t size = shape[0] * (kind.every_token ? shape[1] : 1) * model_.vocab;
  const Tensor nothing(Memory(), DType::f32, {0, size});
  const TensorView whole = logits.defined() ? logits.view().reshaped({1, size}) : nothing.view();
  context_.comm->ragged_all_to_all(context_.stage.across, context_.stage.is_last() ? whole : nothing.view(),
                                   {none, sent}, context_.stage.is_first() ? whole : nothing.view(),
                                   {none, received});
  return context_.stage.is_first() ? logits : Tensor();
}

void Generator::Slots::add(const CacheWindow& window) {
  if (window.cuts_freely() || std::ranges::find(windows, window) != windows.end()) return;
  windows.push_back(window);
  for (std::vector<std::int64_t>& of_slot : firsts) of_slot.push_back(0);
}

bool Generator::Slots::can_cut(std::size_t slot, std::int64_t tokens) const {
  if (tokens > lengths[slot]) return false;
  for (std::size_t w = 0; w < windows.size(); ++w)
    if (!windows[w].can_cut(firsts[slot][w], lengths[slot], tokens)) return false;
  return true;
}

void Generator::Slots::begin(std::size_t slot, std::int64_t tokens, std::vector<std::int64_t> first) {
  if (tokens == 0) first.assign(windows.size(), 0);
  firsts[slot] = std::move(first);
  lengths[slot] = tokens;
}

void Generator::Slots::append(std::size_t slot, std::int64_t tokens) {
  for (std::size_t w = 0; w < windows.size(); ++w)
    firsts[slot][w] = windows[w].begins(firsts[slot][w], lengths[slot], tokens).after;
  lengths[slot] += tokens;
}

// Without a checkpoint.
bool Generator::can_cut(std::size_t slot, std::int64_t tokens) const {
  return model_slots_.can_cut(slot, tokens) &&
         draft_slots_.can_cut(slot, std::min(tokens, draft_slots_.lengths[slot]));
}

std::int64_t Generator::longest_prefix(std::size_t source_slot, std::int64_t most) const {
  if (!is_current(source_slot)) return 0;
  if (can_cut(source_slot, most)) return most;
  std::int64_t longest = 0;
  for (const Checkpoint& kept : checkpoints_[source_slot]) {
    if (kept.tokens <= most) longest = std::max(longest, kept.tokens);
  }
  return longest;
}

// Returns the state from which the slot's first `tokens` tokens can be copied: CHECKs can_copy_prefix().
Generator::State Generator::state_after(std::size_t slot, std::int64_t tokens) const {
  if (can_cut(slot, tokens)) return {slot};
  const auto kept = std::ranges::find(checkpoints_[slot], tokens, &Checkpoint::tokens);
  CHECK(kept != checkpoints_[slot].end(), "{} tokens of slot {} with {}", tokens, slot,
        model_slots_.lengths[slot]);
  return {slot, kept - checkpoints_[slot].begin()};
}

void Generator::keep_checkpoint(std::size_t slot) {
  CHECK(slot < checkpoints_.size(), "slot {} of {}", slot, checkpoints_.size());
  std::vector<Checkpoint>& all = checkpoints_[slot];
  const std::int64_t tokens = model_slots_.lengths[slot], draft_tokens = draft_slots_.lengths[slot];
  if (all.empty() || tokens == 0 || std::ranges::count(all, tokens, &Checkpoint::tokens) > 0) return;
  const auto kept = std::ranges::min_element(all, {}, &Checkpoint::tokens);
  *kept = {tokens, draft_tokens, model_slots_.firsts[slot], draft_slots_.firsts[slot]};
  copy_state({slot, kept - all.begin()}, {slot}, tokens, draft_tokens);
}

// Gives a slot those checkpoints of the source that are no longer than `tokens`.
void Generator::copy_checkpoints(std::size_t slot, std::size_t source_slot, std::int64_t tokens) {
  for (std::size_t i = 0; i < checkpoints_[slot].size(); ++i) {
    Checkpoint& to = checkpoints_[slot][i];
    const Checkpoint from = checkpoints_[source_slot][i];
    to = from.tokens <= tokens ? from : Checkpoint();
    const auto number = static_cast<std::int64_t>(i);
    if (slot != source_slot && to.tokens > 0)
      copy_state({slot, number}, {source_slot, number}, to.tokens, to.draft_tokens);
  }
}

void Generator::copy_prefix(std::size_t slot, std::size_t source_slot, std::int64_t tokens) {
  if (slot == source_slot && takes_back(slot, tokens)) return truncate(slot, tokens);
  CHECK(slot < model_slots_.lengths.size() && source_slot < model_slots_.lengths.size() &&
            can_copy_prefix(source_slot, tokens),
        "slot {} with {} tokens of slot {}", slot, tokens, source_slot);
  const auto group_slots = static_cast<std::size_t>(slots() / groups_);
  CHECK(tokens == 0 || slot / group_slots == source_slot / group_slots, "slots {} and {} of {} groups", slot,
        source_slot, groups_);
  const State from = state_after(source_slot, tokens);
  std::int64_t drafted = std::min(tokens, draft_slots_.lengths[source_slot]);
  if (from.checkpoint >= 0) {
    const Checkpoint& kept = checkpoints_[source_slot][static_cast<std::size_t>(from.checkpoint)];
    drafted = kept.draft_tokens;
    model_slots_.begin(slot, tokens, kept.firsts);
    draft_slots_.begin(slot, drafted, kept.draft_firsts);
  } else {
    model_slots_.cut(slot, source_slot, tokens);
    draft_slots_.cut(slot, source_slot, drafted);
  }
  if (!routed_.empty()) {
    if (slot != source_slot) routed_[slot] = routed_[source_slot];
    routed_[slot].resize(static_cast<std::size_t>(tokens) * routing_of_token(routing_->routed()));
  }
  versions_[slot] = versions_[source_slot];
  drafted_from_[slot] = -1;
  copy_state({slot}, from, tokens, drafted);
  copy_checkpoints(slot, source_slot, tokens);
}

void Generator::truncate(std::size_t slot, std::int64_t tokens) {
  CHECK(slot < model_slots_.lengths.size() &&
            (model_slots_.can_cut(slot, tokens) || takes_back(slot, tokens)) &&
            tokens >= draft_slots_.lengths[slot],
        "slot {} of {} tokens, {} of them with drafts, truncated to {}", slot, model_slots_.lengths[slot],
        draft_slots_.lengths[slot], tokens);
  model_slots_.cut(slot, slot, tokens);
  drafted_from_[slot] = -1;
  if (!routed_.empty())
    routed_[slot].resize(static_cast<std::size_t>(tokens) * routing_of_token(routing_->routed()));
  copy_state({slot}, {slot}, tokens, draft_slots_.lengths[slot]);
  copy_checkpoints(slot, slot, tokens);
}

// Counts values of this rank's shards: first the embedding's, then each layer's.
void Generator::count_broken(const BlockOutput& out, const Stage::Block& block) {
  auto at = static_cast<std::size_t>(layers_of(block, model_.layers).begin) + (block.is_first() ? 0 : 1);
  for (const Array& hidden : out.hidden) broken_[at++] += count_not_finite(context_, hidden);
}

std::int64_t Generator::first_broken_layer(const SlotTokens& sequence) {
  constexpr std::size_t kChunk = 128;  // most tokens whose outputs exist at once
  clear(sequence.slot);
  for (std::size_t begin = 0; begin < sequence.tokens.size(); begin += kChunk) {
    const auto chunk =
        std::span(sequence.tokens).subspan(begin, std::min(kChunk, sequence.tokens.size() - begin));
    const SlotTokens fed{sequence.slot, {chunk.begin(), chunk.end()}};
    broken_.assign(static_cast<std::size_t>(model_.layers) + 1, 0.0);
    run(std::span(&fed, 1), {.keep_hidden = true});
    sum_over_run(context_, broken_);
    const auto first = std::find_if(broken_.begin(), broken_.end(), [](double count) { return count > 0; });
    if (first != broken_.end()) return first - broken_.begin() - 1;
  }
  return model_.layers;
}

void Generator::record_routing() {
  routing_.emplace(routed_layers(model_));
  if (context_.comm->rank() == 0) routed_.resize(model_slots_.lengths.size());
}

void Generator::keep_routing(std::span<const SlotTokens> fed, const BatchRows& rows, std::int64_t length) {
  const std::vector<std::uint16_t> all = routing_->gather(context_, rows.count, length);
  if (routed_.empty()) return;                           // not rank 0
  const std::int64_t chosen = routing_->routed().slots;  // experts of a token
  for (std::size_t r = 0; r < fed.size(); ++r) {
    std::vector<std::uint16_t>& of_slot = routed_[fed[r].slot];
    for (std::int64_t s = 0; s < std::ssize(fed[r].tokens); ++s) {
      for (std::int64_t layer = 0; layer < std::ssize(routing_->routed().layers); ++layer) {
        const auto from = all.begin() + ((layer * rows.count + rows.of_fed[r]) * length + s) * chosen;
        of_slot.insert(of_slot.end(), from, from + chosen);
      }
    }
  }
}

std::vector<std::uint16_t> Generator::routing(std::size_t slot, std::int64_t tokens) const {
  CHECK(routing_ && slot < routed_.size() && tokens <= model_slots_.lengths[slot], "{} tokens of slot {}",
        tokens, slot);
  const std::int64_t chosen = routing_->routed().slots;  // experts of a token
  std::vector<std::uint16_t> result;
  for (std::int64_t layer = 0; layer < std::ssize(routing_->routed().layers); ++layer) {
    for (std::int64_t s = 0; s < tokens; ++s) {
      const auto from = routed_[slot].begin() + (s * std::ssize(routing_->routed().layers) + layer) * chosen;
      result.insert(result.end(), from, from + chosen);
    }
  }
  return result;
}

// Does nothing on ranks that do not hold the slots. Where a layer is cut freely, the slot itself has the
// tokens of its checkpoints.
void Generator::copy_state(State to, State from, std::int64_t tokens, std::int64_t draft_tokens) {
  const std::int64_t slots_here = slots() / groups_, here = static_cast<std::int64_t>(to.slot) - first_here_,
                     source = static_cast<std::int64_t>(from.slot) - first_here_;
  if (here < 0 || here >= slots_here) return;
  for (std::size_t layer = 0; layer < caches_.layers.size(); ++layer) {
    LayerCache& cache = caches_.layers[layer];
    const bool keeps = std::ssize(cache.lengths) > slots_here;
    if (!keeps && to.checkpoint >= 0) continue;
    const auto place = [&](std::int64_t slot, std::int64_t checkpoint) {
      return keeps ? slot + (1 + checkpoint) * slots_here : slot;
    };
    cache_copy_prefix(context_, cache, place(here, to.checkpoint), place(source, from.checkpoint),
                      std::cmp_less(layer, model_.layers) ? tokens : draft_tokens);
  }
}

}  // namespace switchyard
