#include "generate/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "models/blocks/layers.h"
#include "models/pipeline.h"
#include "moe/balance.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// What only training needs is left out, and tokens are few: they go to the experts at once.
ModelConfig without_training(ModelConfig model) {
  model.moe_execution.balance_weight = model.indexer_loss = 0;
  model.moe_execution.token_chunks = 1;
  return model;
}

Sharding row_split(const Context& context, const ModelConfig& model, std::int64_t rows) {
  return Sharding{{attention_tokens(context, model, rows, 1).dims[0]}, {}};
}

bool is_finite(const Tensor& x, std::size_t i) {
  if (x.dtype() == DType::f32) return std::isfinite(x.span<float>()[i]);
  constexpr std::uint16_t kInfinity = 0x7f80;  // of bfloat16
  std::uint16_t bits = 0;
  std::memcpy(&bits, x.raw() + i * sizeof bits, sizeof bits);
  return (bits & kInfinity) != kInfinity;
}

std::size_t routing_of_token(const RoutedLayers& routed) {
  return routed.layers.size() * static_cast<std::size_t>(routed.slots);
}

}  // namespace

Generator::Generator(Context& context, const ModelConfig& model, const Parameters& parameters,
                     std::int64_t rows, std::int64_t capacity, bool forgets)
    : context_(context), model_(without_training(model)), parameters_(parameters), capacity_(capacity) {
  const Sharding split = row_split(context_, model_, rows);
  parts_ = context_.mesh->product(split.dims[0]);
  first_here_ = local_offset(*context_.mesh, context_.rank, {rows}, split)[0];
  const std::vector<std::int64_t> none(static_cast<std::size_t>(rows));
  rows_ = drafted_ = {{.capacity = capacity}, none, none};
  for (std::int64_t i = 0; i < model.layers + std::min<std::int64_t>(1, model.predictions); ++i) {
    AttentionCache cache;
    cache.room = {.capacity = capacity, .seen = forgets ? model.seen_in(model.layer(i)) : KeyWindow()};
    cache.int8 = model_.int8_cache;
    cache.lengths.resize(static_cast<std::size_t>(rows / parts_));
    if (cache.room.seen.limits()) (i < model.layers ? rows_ : drafted_).room = cache.room;
    caches_.layers.push_back(std::move(cache));
  }
}

// Each part of the batch has this many rows of its part of all rows; where a smaller batch would be split
// otherwise than all rows are, it has all.
Generator::Places Generator::places_of(std::span<const RowTokens> fed) const {
  const std::int64_t rows_of_part = rows() / parts_;
  std::vector<std::int64_t> used(static_cast<std::size_t>(parts_));
  for (const RowTokens& row : fed) ++used[row.row / static_cast<std::size_t>(rows_of_part)];
  std::int64_t most = *std::max_element(used.begin(), used.end());
  if (row_split(context_, model_, parts_ * most) != row_split(context_, model_, rows())) most = rows_of_part;
  Places places{parts_ * most, {}, std::vector<std::int64_t>(static_cast<std::size_t>(parts_ * most), -1)};
  std::fill(used.begin(), used.end(), 0);
  for (const RowTokens& row : fed) {
    const std::size_t part = row.row / static_cast<std::size_t>(rows_of_part);
    places.fed.push_back(static_cast<std::int64_t>(part) * most + used[part]++);
    places.owner[static_cast<std::size_t>(places.fed.back())] = static_cast<std::int64_t>(row.row);
  }
  return places;
}

// `least`: of tokens that the batch has room for in a row.
Batch Generator::batch_of(std::span<const RowTokens> fed, const Places& places, std::size_t least) const {
  std::size_t longest = least;
  for (const RowTokens& row : fed) longest = std::max(longest, row.tokens.size());
  const Shape shape{places.batch, static_cast<std::int64_t>(longest)};
  Batch batch;
  for (Tensor* const x : {&batch.inputs, &batch.inputs_position, &batch.inputs_segmentation})
    *x = Memory().zeros(DType::i32, shape);
  for (std::size_t r = 0; r < fed.size(); ++r) {
    const auto before = static_cast<std::int32_t>(rows_.lengths[fed[r].row]);
    for (std::size_t i = 0; i < fed[r].tokens.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(places.fed[r]) * longest + i;
      batch.inputs.span<std::int32_t>()[at] = fed[r].tokens[i];
      batch.inputs_position.span<std::int32_t>()[at] = before + static_cast<std::int32_t>(i);
      batch.inputs_segmentation.span<std::int32_t>()[at] = 1;
    }
  }
  batch.targets = batch.inputs;
  batch.targets_segmentation = batch.inputs_segmentation;
  return batch;
}

// The rows of the call that are this rank's, as rows of its caches, and their tokens.
void Generator::choose_rows(std::span<const RowTokens> fed, const Places& places) {
  const std::int64_t here = places.batch / parts_;
  const std::int64_t begin = first_here_ / (rows() / parts_) * here;
  caches_.rows.clear();
  caches_.tokens.assign(static_cast<std::size_t>(here), 0);
  for (std::int64_t b = begin; b < begin + here; ++b) {
    const std::int64_t owner = places.owner[static_cast<std::size_t>(b)];
    caches_.rows.push_back(owner < 0 ? -1 : owner - first_here_);
  }
  for (std::size_t r = 0; r < fed.size(); ++r) {
    const std::int64_t b = places.fed[r] - begin;
    if (b >= 0 && b < here)
      caches_.tokens[static_cast<std::size_t>(b)] = static_cast<std::int64_t>(fed[r].tokens.size());
  }
}

Tensor Generator::feed(std::span<const RowTokens> fed) {
  return run(fed, {});
}

Tensor Generator::feed_each(std::span<const RowTokens> fed) {
  ForwardOptions options;
  options.every_token = true;
  return run(fed, options);
}

Tensor Generator::draft(std::span<const RowTokens> next) {
  CHECK(trunk_.defined(), "no call before, or a model of {} prediction layers", model_.predictions);
  ForwardOptions options;
  options.draft_of = trunk_;
  // The prediction layer stands where it was left, not where the model is.
  std::swap(rows_, drafted_);
  Tensor logits = run(next, options);
  std::swap(rows_, drafted_);
  return logits;
}

Tensor Generator::run(std::span<const RowTokens> fed, ForwardOptions options) {
  CHECK(!fed.empty(), "no row to go on with");
  caches_.from_beginning = true;
  for (const RowTokens& row : fed) {
    CHECK(row.row < rows_.lengths.size(), "row {} of {}", row.row, rows_.lengths.size());
    const std::int64_t length = rows_.lengths[row.row] + static_cast<std::int64_t>(row.tokens.size());
    CHECK(!row.tokens.empty() && length <= capacity_, "row {}: {} tokens, room for {}", row.row, length,
          capacity_);
    caches_.from_beginning = caches_.from_beginning && rows_.lengths[row.row] == 0;
  }
  const NoGrad no_grad(context_);
  const bool drafts = options.draft_of.defined();
  const Places places = places_of(fed);
  choose_rows(fed, places);
  const Batch batch =
      batch_of(fed, places, drafts ? static_cast<std::size_t>(options.draft_of.shape()[1]) : 0);
  const Shape shape{batch.inputs.dim(0), batch.inputs.dim(1), model_.emb};
  CHECK(!drafts || options.draft_of.shape() == shape, "drafts for {} after {}", to_string(shape),
        to_string(options.draft_of.shape()));
  const std::int64_t of_row = options.every_token ? shape[1] : 1;
  Tensor logits = context_.empty(DType::f32, {shape[0], of_row, model_.vocab});
  if (!drafts) loads_.clear();
  Pipeline(context_, PipelineSchedule::one_forward_one_backward, model_.dtype, shape,
           block_sharding(*context_.rules, shape))
      .evaluate([&](const PipelinePass& pass, const Array& input) {
        options.block = pass.block;
        options.input = input;
        options.caches = &caches_;
        ForwardResult out = forward(context_, model_, parameters_, place_batch(context_, batch), options);
        if (options.keep_hidden) count_broken(out, context_.stage.block(pass.block));
        if (out.logits.defined()) logits = replicate(context_, out.logits).tensor();
        if (!drafts && routing_) {
          for (std::size_t i = 0; i < out.routing.size(); ++i)
            routing_->add(context_, out.loads[i].layer, 0, out.routing[i].ids);
        }
        if (!drafts) {
          trunk_ = model_.predictions > 0 ? out.trunk : Array();
          std::ranges::move(out.loads, std::back_inserter(loads_));
        }
        return StageOutput{out.output, out.loss};
      });
  if (!drafts) read_loads(context_, loads_);
  if (context_.stage.count > 1) {
    context_.comm->broadcast(context_.stage.across, context_.stage.count - 1, logits.view());
  }
  logits =
      read_back(context_, logits, "logits", [&] { return Tensor(Memory(), DType::f32, logits.shape()); });
  if (!drafts && routing_) keep_routing(fed, places, shape[1]);
  for (const RowTokens& row : fed) rows_.add(row.row, std::ssize(row.tokens));
  std::vector<std::int64_t> in_order(static_cast<std::size_t>(shape[0]));
  std::iota(in_order.begin(), in_order.end(), 0);
  Shape result{static_cast<std::int64_t>(fed.size()), model_.vocab};
  if (options.every_token) result.insert(result.begin() + 1, of_row);
  if (places.fed == in_order) return logits.reshaped(result);
  Tensor of_fed(Memory(), DType::f32, result);
  const std::size_t bytes = static_cast<std::size_t>(of_row * model_.vocab) * sizeof(float);
  for (std::size_t r = 0; r < fed.size(); ++r)
    std::memcpy(of_fed.raw() + r * bytes, logits.raw() + static_cast<std::size_t>(places.fed[r]) * bytes,
                bytes);
  return of_fed;
}

bool Generator::can_begin(std::size_t from, std::int64_t tokens) const {
  if (model_.has_delta() && tokens != 0 && tokens != rows_.lengths[from]) return false;
  return rows_.can_cut(from, tokens) && drafted_.can_cut(from, std::min(tokens, drafted_.lengths[from]));
}

void Generator::begin(std::size_t row, std::size_t from, std::int64_t tokens) {
  CHECK(row < rows_.lengths.size() && from < rows_.lengths.size() && can_begin(from, tokens),
        "row {} with {} tokens of row {}", row, tokens, from);
  const std::int64_t rows_of_part = rows() / parts_;
  const auto to_row = static_cast<std::int64_t>(row), from_row = static_cast<std::int64_t>(from);
  CHECK(tokens == 0 || to_row / rows_of_part == from_row / rows_of_part, "rows {} and {} of {} parts", row,
        from, parts_);
  const std::span<AttentionCache> caches(caches_.layers);
  const auto layers = static_cast<std::size_t>(model_.layers);
  rows_.cut(row, from, tokens);
  if (!routed_.empty()) {
    if (row != from) routed_[row] = routed_[from];
    routed_[row].resize(static_cast<std::size_t>(tokens) * routing_of_token(routing_->routed()));
  }
  remember_rows(caches.first(layers), row, from, tokens);
  const std::int64_t drafted = std::min(tokens, drafted_.lengths[from]);
  drafted_.cut(row, from, drafted);
  remember_rows(caches.subspan(layers), row, from, drafted);
}

void Generator::cut(std::size_t row, std::int64_t tokens) {
  CHECK(row < rows_.lengths.size() && rows_.can_cut(row, tokens) && tokens >= drafted_.lengths[row],
        "row {} of {} tokens, {} of them with drafts, cut to {}", row, rows_.lengths[row],
        drafted_.lengths[row], tokens);
  rows_.cut(row, row, tokens);
  if (!routed_.empty())
    routed_[row].resize(static_cast<std::size_t>(tokens) * routing_of_token(routing_->routed()));
  remember_rows(std::span(caches_.layers).first(static_cast<std::size_t>(model_.layers)), row, row, tokens);
}

// Counts this rank's parts: first the embedding's, then each layer's.
void Generator::count_broken(const ForwardResult& out, const Stage::Block& block) {
  auto at = static_cast<std::size_t>(layers_of(block, model_.layers).begin) + (block.is_first() ? 0 : 1);
  for (const Array& hidden : out.hidden) {
    const Tensor& own = hidden.tensor();
    const Tensor x =
        read_back(context_, own, "outputs", [&] { return Memory().zeros(own.dtype(), own.shape()); });
    for (std::size_t i = 0; i < static_cast<std::size_t>(num_elements(x.shape())); ++i)
      broken_[at] += is_finite(x, i) ? 0 : 1;
    ++at;
  }
}

std::int64_t Generator::first_broken_layer(const RowTokens& text) {
  constexpr std::size_t kPiece = 128;  // of tokens whose outputs exist together
  ForwardOptions options;
  options.keep_hidden = true;
  forget(text.row);
  for (std::size_t begin = 0; begin < text.tokens.size(); begin += kPiece) {
    const auto piece = std::span(text.tokens).subspan(begin, std::min(kPiece, text.tokens.size() - begin));
    const RowTokens fed{text.row, {piece.begin(), piece.end()}};
    broken_.assign(static_cast<std::size_t>(model_.layers) + 1, 0.0);
    run(std::span(&fed, 1), options);
    sum_over_run(context_, broken_);
    const auto first = std::find_if(broken_.begin(), broken_.end(), [](double count) { return count > 0; });
    if (first != broken_.end()) return first - broken_.begin() - 1;
  }
  return model_.layers;
}

void Generator::record_routing() {
  routing_.emplace(routed_layers(model_));
  if (context_.comm->rank() == 0) routed_.resize(rows_.lengths.size());
}

void Generator::keep_routing(std::span<const RowTokens> fed, const Places& places, std::int64_t length) {
  const std::vector<std::uint16_t> all = routing_->gather(context_, places.batch, length);
  if (routed_.empty()) return;  // not rank 0
  const std::int64_t slots = routing_->routed().slots;
  for (std::size_t r = 0; r < fed.size(); ++r) {
    std::vector<std::uint16_t>& of_row = routed_[fed[r].row];
    for (std::int64_t s = 0; s < std::ssize(fed[r].tokens); ++s) {
      for (std::int64_t layer = 0; layer < std::ssize(routing_->routed().layers); ++layer) {
        const auto from = all.begin() + ((layer * places.batch + places.fed[r]) * length + s) * slots;
        of_row.insert(of_row.end(), from, from + slots);
      }
    }
  }
}

std::vector<std::uint16_t> Generator::routing(std::size_t row, std::int64_t tokens) const {
  CHECK(routing_ && row < routed_.size() && tokens <= rows_.lengths[row], "{} tokens of row {}", tokens, row);
  const std::int64_t slots = routing_->routed().slots;
  std::vector<std::uint16_t> result;
  for (std::int64_t layer = 0; layer < std::ssize(routing_->routed().layers); ++layer) {
    for (std::int64_t s = 0; s < tokens; ++s) {
      const auto from = routed_[row].begin() + (s * std::ssize(routing_->routed().layers) + layer) * slots;
      result.insert(result.end(), from, from + slots);
    }
  }
  return result;
}

// Of this rank's rows only.
void Generator::remember_rows(std::span<AttentionCache> caches, std::size_t row, std::size_t from,
                              std::int64_t tokens) {
  const std::int64_t here = static_cast<std::int64_t>(row) - first_here_,
                     there = static_cast<std::int64_t>(from) - first_here_;
  if (here < 0 || here >= rows() / parts_) return;
  for (AttentionCache& cache : caches) remember_of(context_, cache, here, there, tokens);
}

}  // namespace switchyard
