#include "routing/step_routing.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "models/pipeline.h"
#include "moe/block.h"
#include "moe/router.h"

namespace switchyard {
namespace {

std::string first_tokens(std::span<const std::int32_t> tokens) {
  constexpr std::size_t kShown = 8;
  return fmt::format("{}{}", fmt::join(tokens.first(std::min(kShown, tokens.size())), " "),
                     tokens.size() > kShown ? " …" : "");
}

}  // namespace

void StepRouting::begin_step(std::int64_t step, const BatchRows& batch) {
  rows_ = batch.rows, length_ = batch.sequence;
  replayed_ = agreed_ = 0;
  texts_.clear();
  const Batch whole = batch.read(0, rows_);
  const auto tokens = whole.inputs.span<std::int32_t>(),
             segments = whole.inputs_segmentation.span<std::int32_t>();
  for (std::int64_t row = 0; row < rows_; ++row) {
    for (std::int64_t begin = 0, end = 0; begin < length_; begin = end) {
      const auto at = static_cast<std::size_t>(row * length_ + begin);
      while (end < length_ && segments[static_cast<std::size_t>(row * length_ + end)] == segments[at]) ++end;
      if (segments[at] == 0) continue;
      const auto of_text = tokens.subspan(at, static_cast<std::size_t>(end - begin));
      texts_.push_back({{RoutingSource::Kind::train, step, row, begin}, {of_text.begin(), of_text.end()}});
      if (index_ == nullptr) continue;
      const auto found = index_->find(of_text, texts_.back().source);
      if (!found)
        fail_usage(
            "[routing] routing_replay={}: step {}, row {}, token {}: no record of the {} tokens that begin "
            "with {}",
            index_->file().path(), step, row, begin, of_text.size(), first_tokens(of_text));
      texts_.back().found = *found;
    }
  }
}

void StepRouting::begin_pass(std::int64_t first_row) {
  in_pass_ = true;
  pass_row_ = first_row;
}

std::int64_t StepRouting::place_of(std::int64_t layer) const {
  const auto& layers = blocks_.routed().layers;
  const auto place = std::ranges::lower_bound(layers, layer);
  return place == layers.end() || *place != layer ? -1 : place - layers.begin();
}

Tensor StepRouting::recorded(const Context& context, std::int64_t place, const ArrayInfo& logits) const {
  const Shape offset = local_offset(*context.mesh, context.rank, logits.shape, logits.sharding);
  const std::int64_t rows = logits.local[0], columns = logits.local[1], slots = config_.slots,
                     first_row = pass_row_ + offset[0];
  const Tensor choices(Memory(), DType::i32, {rows, columns, slots});
  const auto all = choices.span<std::int32_t>();
  std::ranges::fill(all, -1);
  auto text = std::ranges::lower_bound(texts_, first_row, {}, [](const Text& t) { return t.source.row; });
  for (; text != texts_.end() && text->source.row < first_row + rows; ++text) {
    const std::int64_t begin = std::max(text->source.first, offset[1]),
                       end = std::min(text->source.first + text->found.tokens, offset[1] + columns);
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t at = (text->source.row - first_row) * columns + s - offset[1];
      index_->file().experts(
          *text->found.record, place, s - text->source.first,
          all.subspan(static_cast<std::size_t>(at * slots), static_cast<std::size_t>(slots)));
    }
  }
  return choices;
}

Tensor StepRouting::replay(const Context& context, std::int64_t, std::int64_t layer, std::int64_t,
                           const ArrayInfo& logits) {
  const std::int64_t place = place_of(layer);
  if (!in_pass_ || index_ == nullptr || place < 0) return {};
  return recorded(context, place, logits);
}

void StepRouting::record(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                         const Array& logits, const Array& bias, const Routing& routing) {
  if (!in_pass_ || place_of(layer) < 0) return;
  if (records_) blocks_.add(context, layer, pass_row_, routing.ids);
  if (index_ != nullptr) compare(context, step, layer, first_row, logits, bias, routing.ids);
}

void StepRouting::compare(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                          const Array& logits, const Array& bias, const Array& ids) {
  if (!is_first_of_repeats(context, logits.sharding())) return;
  const Tensor given = recorded(context, place_of(layer), logits.info());
  const Tensor own =
      read_back(context, choices_of_router(context, config_, logits, bias, step, layer, first_row),
                "the router's own experts", [&] { return ids.tensor(); });
  const auto replayed = given.span<std::int32_t>(), chosen = own.span<std::int32_t>();
  const auto slots = static_cast<std::size_t>(config_.slots);
  for (std::size_t at = 0; at < replayed.size(); at += slots) {
    const auto of_token = chosen.subspan(at, slots);
    for (const std::int32_t id : replayed.subspan(at, slots)) {
      if (id < 0) continue;  // the router chooses, or the slot has no expert
      agreed_ += std::ranges::find(of_token, id) != of_token.end();
      ++replayed_;
    }
  }
}

StepRouting::Result StepRouting::end_step(Context& context) {
  Result result;
  if (index_ != nullptr) {
    double sums[] = {static_cast<double>(replayed_), static_cast<double>(agreed_)};
    sum_over_run(context, sums);
    result.agreement.replayed = sums[0], result.agreement.agreed = sums[1];
    std::size_t tokens = 0;
    for (const Text& text : texts_) tokens += text.tokens.size();
    result.agreement.tokens =
        static_cast<double>(tokens * blocks_.routed().layers.size()) * static_cast<double>(config_.slots);
  }
  if (!records_) return result;
  const std::vector<std::uint16_t> experts = blocks_.gather(context, rows_, length_);
  if (context.comm->rank() != 0) return result;
  std::vector<std::uint16_t> of_text;
  for (const Text& text : texts_) {
    of_text.clear();
    for (std::int64_t layer = 0; layer < std::ssize(blocks_.routed().layers); ++layer) {
      const std::int64_t token = (layer * rows_ + text.source.row) * length_ + text.source.first;
      const auto from = experts.begin() + token * config_.slots;
      of_text.insert(of_text.end(), from, from + std::ssize(text.tokens) * config_.slots);
    }
    result.records += routing_record(blocks_.routed(), text.source, text.tokens, of_text);
  }
  return result;
}

}  // namespace switchyard
