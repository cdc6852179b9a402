#include "serve/engine.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "models/pipeline.h"

namespace switchyard::serve {
namespace {

constexpr double kIdleSeconds = 0.2;  // after which the head looks up, and the other ranks hear of it
constexpr double kSumSeconds = 1;     // between two sums of the experts' rows

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Order {
  Step step;
  bool sum_experts = false;
  bool stop = false;
};

std::vector<std::int32_t> to_words(const Order& order) {
  std::vector<std::int32_t> words{order.sum_experts, order.stop, order.step.wants_each(),
                                  static_cast<std::int32_t>(order.step.begun.size()),
                                  static_cast<std::int32_t>(order.step.fed.size())};
  for (const Begun& begun : order.step.begun) {
    words.push_back(static_cast<std::int32_t>(begun.row));
    words.push_back(static_cast<std::int32_t>(begun.from));
    words.push_back(static_cast<std::int32_t>(begun.tokens));
  }
  for (const RowTokens& row : order.step.fed) {
    words.push_back(static_cast<std::int32_t>(row.row));
    words.push_back(static_cast<std::int32_t>(row.tokens.size()));
    words.insert(words.end(), row.tokens.begin(), row.tokens.end());
  }
  return words;
}

Order from_words(const std::vector<std::int32_t>& words) {
  Order order;
  order.sum_experts = words[0] != 0;
  order.stop = words[1] != 0;
  order.step.drafted = words[2] != 0;
  std::size_t at = 5;
  for (std::int32_t i = 0; i < words[3]; ++i, at += 3)
    order.step.begun.push_back(
        {static_cast<std::size_t>(words[at]), static_cast<std::size_t>(words[at + 1]), words[at + 2]});
  for (std::int32_t i = 0; i < words[4]; ++i) {
    const auto row = static_cast<std::size_t>(words[at]);
    const auto tokens = std::span(words).subspan(at + 2, static_cast<std::size_t>(words[at + 1]));
    order.step.fed.push_back({row, {tokens.begin(), tokens.end()}});
    at += 2 + tokens.size();
  }
  return order;
}

// Rank 0's order on all ranks.
Order agree(Context& context, std::optional<Order> own) {
  const ProcessGroup world = everyone(*context.comm, "world");
  if (world.ranks.size() == 1) return *own;
  std::vector<std::int32_t> words;
  if (own) words = to_words(*own);
  auto size = static_cast<std::int64_t>(words.size());
  context.comm->broadcast(world, 0, host_view(std::span(&size, 1)));
  words.resize(static_cast<std::size_t>(size));
  context.comm->broadcast(world, 0, host_view(words));
  return own ? *own : from_words(words);
}

// This rank's part of the rows that experts got, layer after layer, since it was last taken.
class LocalExpertRows {
 public:
  explicit LocalExpertRows(const ModelConfig& model)
      : layers_(without_predictions(model).moe_layers()),
        experts_(static_cast<std::size_t>(model.moe.experts)),
        rows_(layers_.size() * experts_) {}

  void add(std::span<const LayerLoad> loads) {
    for (const LayerLoad& load : loads) {
      const auto at = std::lower_bound(layers_.begin(), layers_.end(), load.layer) - layers_.begin();
      double* const of_layer = rows_.data() + static_cast<std::size_t>(at) * experts_;
      for (std::size_t e = 0; e < experts_; ++e) of_layer[e] += load.rows[e];
    }
  }
  // Sums over the ranks, added to `all` where there is one. Collective.
  void move_to(Context& context, ExpertRows* all) {
    sum_over_run(context, rows_);
    if (all != nullptr) all->add(rows_, layers_, experts_);
    std::fill(rows_.begin(), rows_.end(), 0.0);
  }

 private:
  std::vector<std::int64_t> layers_;  // the numbers of those with experts
  std::size_t experts_;
  std::vector<double> rows_;
};

// After a step that rank 0 has taken, on all ranks: guesses of the tokens after next.
void draft_next(Context& context, Generator& generator, Follow follow, EngineHead* head) {
  std::optional<Order> own;
  if (head != nullptr) own = Order{{std::move(follow.kept), std::move(follow.next)}};
  const Order order = agree(context, std::move(own));
  for (const Begun& kept : order.step.begun) generator.cut(kept.row, kept.tokens);
  const Tensor logits = generator.draft(order.step.fed);
  if (head != nullptr) head->batcher.take_drafts({order.step.begun, order.step.fed}, logits);
}

}  // namespace

void ExpertRows::add(std::span<const double> rows, std::span<const std::int64_t> layers,
                     std::size_t experts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t begin = 0; begin < rows.size(); begin += experts) {
    const std::size_t i = begin / experts;
    if (layers_.size() == i) layers_.push_back({layers[i], std::vector<double>(experts)});
    for (std::size_t e = 0; e < experts; ++e) layers_[i].rows[e] += rows[begin + e];
  }
}

std::vector<ExpertRows::Layer> ExpertRows::layers() const {
  const std::lock_guard lock(mutex_);
  return layers_;
}

void run_engine(Context& context, const ModelConfig& model, Generator& generator, EngineHead* head) {
  LocalExpertRows experts(model);
  if (head != nullptr) {
    head->batcher.share_rows(generator.parts(), [&generator](std::size_t from, std::int64_t tokens) {
      return generator.can_begin(from, tokens);
    });
  }
  std::int64_t recorded = 0;  // texts
  if (head != nullptr && head->routing_record != nullptr) {
    head->batcher.on_finished([&, routed = routed_layers(model)](std::size_t row, std::size_t choice,
                                                                 std::span<const std::int32_t> fed) {
      const RoutingSource source{RoutingSource::Kind::serve, recorded++, static_cast<std::int64_t>(choice)};
      head->routing_record->append(
          routing_record(routed, source, fed, generator.routing(row, std::ssize(fed))));
    });
  }
  double summed = seconds_now();
  bool anything_new = false;
  for (;;) {
    std::optional<Order> own;
    if (head != nullptr) {
      head->between();
      own = Order{head->batcher.next(kIdleSeconds), false, head->batcher.is_done()};
      own->sum_experts = anything_new && (own->stop || seconds_now() - summed > kSumSeconds);
      if (own->sum_experts) {
        summed = seconds_now();
        anything_new = false;
      }
    }
    const Order order = agree(context, std::move(own));
    if (order.sum_experts) experts.move_to(context, head == nullptr ? nullptr : &head->experts);
    if (order.stop) return;
    for (const Begun& begun : order.step.begun) generator.begin(begun.row, begun.from, begun.tokens);
    if (order.step.fed.empty()) continue;
    const double begin = seconds_now();
    const Tensor logits =
        order.step.wants_each() ? generator.feed_each(order.step.fed) : generator.feed(order.step.fed);
    experts.add(generator.loads());
    anything_new = true;
    Follow follow;
    if (head != nullptr)
      follow = head->batcher.take(*context.pool, order.step, logits, seconds_now() - begin);
    if (model.predictions > 0) draft_next(context, generator, std::move(follow), head);
  }
}

}  // namespace switchyard::serve
