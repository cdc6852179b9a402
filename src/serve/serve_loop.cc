#include "serve/serve_loop.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "models/pipeline.h"
#include "moe/balance.h"

namespace switchyard::serve {
namespace {

constexpr double kIdleSeconds = 0.2;  // rank 0's longest wait: the other ranks wait for it in a collective
constexpr double kSumSeconds = 1;     // between two sums of the experts' assignments

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The order that rank 0 gives the other ranks.
struct Order {
  Call call = {};
  bool sum_experts = false;
  bool stop = false;
  bool wants_each = false;  // logits after every token
};

std::vector<std::int32_t> to_words(const Order& order) {
  std::vector<std::int32_t> words{order.sum_experts,
                                  order.stop,
                                  order.wants_each,
                                  static_cast<std::int32_t>(order.call.copies.size()),
                                  static_cast<std::int32_t>(order.call.step.fed.size()),
                                  static_cast<std::int32_t>(order.call.step.kept.size())};
  for (const PrefixCopy& copy : order.call.copies) {
    words.push_back(static_cast<std::int32_t>(copy.slot));
    words.push_back(static_cast<std::int32_t>(copy.source_slot));
    words.push_back(static_cast<std::int32_t>(copy.tokens));
  }
  for (const SlotTokens& fed : order.call.step.fed) {
    words.push_back(static_cast<std::int32_t>(fed.slot));
    words.push_back(static_cast<std::int32_t>(fed.tokens.size()));
    words.insert(words.end(), fed.tokens.begin(), fed.tokens.end());
  }
  for (const std::size_t slot : order.call.step.kept) words.push_back(static_cast<std::int32_t>(slot));
  return words;
}

Order from_words(const std::vector<std::int32_t>& words) {
  Order order{{}, words[0] != 0, words[1] != 0, words[2] != 0};
  std::size_t at = 6;
  for (std::int32_t i = 0; i < words[3]; ++i, at += 3)
    order.call.copies.push_back(
        {static_cast<std::size_t>(words[at]), static_cast<std::size_t>(words[at + 1]), words[at + 2]});
  for (std::int32_t i = 0; i < words[4]; ++i) {
    const auto slot = static_cast<std::size_t>(words[at]);
    const auto tokens = std::span(words).subspan(at + 2, static_cast<std::size_t>(words[at + 1]));
    order.call.step.fed.push_back({slot, {tokens.begin(), tokens.end()}});
    at += 2 + tokens.size();
  }
  for (std::int32_t i = 0; i < words[5]; ++i)
    order.call.step.kept.push_back(static_cast<std::size_t>(words[at++]));
  return order;
}

// Returns rank 0's order on all ranks. Collective.
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

// This rank's share of the experts' assignments, layer after layer, since they were last summed. The counts
// stay on the device until then: to read them at every token would make the host wait for a GPU.
class LocalAssignments {
 public:
  LocalAssignments(Context& context, const ModelConfig& model)
      : context_(context),
        layers_(without_predictions(model).moe_layers()),
        experts_(static_cast<std::size_t>(model.moe.experts)),
        assignments_(layers_.size() * experts_) {}

  void add(std::span<const LayerLoad> loads) {
    unread_.insert(unread_.end(), loads.begin(), loads.end());
    if (unread_.size() >= kMostUnread) read();
  }
  // Moves the sums over all ranks to `statistics`, where that is not null. Collective.
  void move_to(Statistics* statistics) {
    read();
    sum_over_run(context_, assignments_);
    if (statistics != nullptr) statistics->add_assignments(assignments_, layers_, experts_);
    std::ranges::fill(assignments_, 0.0);
  }

 private:
  static constexpr std::size_t kMostUnread = 4096;  // layers' counts, of a few hundred bytes to some KB each

  void read() {
    read_loads(context_, unread_);
    for (const LayerLoad& load : unread_) {
      const auto at = std::ranges::lower_bound(layers_, load.layer) - layers_.begin();
      double* const of_layer = assignments_.data() + static_cast<std::size_t>(at) * experts_;
      for (std::size_t e = 0; e < experts_; ++e) of_layer[e] += load.rows[e];
    }
    unread_.clear();
  }

  Context& context_;
  std::vector<LayerLoad> unread_;
  std::vector<std::int64_t> layers_;  // those with experts
  std::size_t experts_;
  std::vector<double> assignments_;
};

// Drafts the tokens after those that rank 0 has accepted. Collective.
void draft_next(Context& context, Generator& generator, DraftCall drafts, ServeHead* head) {
  std::optional<Order> own;
  if (head != nullptr) own = Order{{std::move(drafts.truncated), {std::move(drafts.next)}}};
  const Order order = agree(context, std::move(own));
  for (const PrefixCopy& kept : order.call.copies) generator.truncate(kept.slot, kept.tokens);
  const Tensor logits = generator.draft(order.call.step.fed);
  if (head != nullptr) head->batcher.accept_drafts(*context.pool, order.call.step.fed, logits);
}

}  // namespace

void run_serve_loop(Context& context, const ModelConfig& model, Generator& generator, ServeHead* head) {
  LocalAssignments experts(context, model);
  generator.keep_loads();
  if (head != nullptr) {
    head->batcher.describe_cache(
        generator.slot_groups(),
        [&generator](std::size_t source_slot, std::int64_t tokens) {
          return generator.longest_prefix(source_slot, tokens);
        },
        generator.capacity());
  }
  std::int64_t recorded = 0;  // texts
  if (head != nullptr && head->routing_record != nullptr) {
    head->batcher.on_finished([&, routed = routed_layers(model)](std::size_t slot, std::size_t choice,
                                                                 std::span<const std::int32_t> cached) {
      const RoutingSource source{RoutingSource::Kind::serve, recorded++, static_cast<std::int64_t>(choice)};
      head->routing_record->append(
          routing_record(routed, source, cached, generator.routing(slot, std::ssize(cached))));
    });
  }
  double summed = seconds_now();
  bool anything_new = false;
  for (;;) {
    std::optional<Order> own;
    if (head != nullptr) {
      head->between();
      own = Order{head->batcher.next(kIdleSeconds), false, head->queue.is_done()};
      own->wants_each = own->call.step.wants_each();
      own->sum_experts = anything_new && (own->stop || seconds_now() - summed > kSumSeconds);
      if (own->sum_experts) {
        summed = seconds_now();
        anything_new = false;
      }
    }
    const Order order = agree(context, std::move(own));
    if (order.sum_experts) experts.move_to(head == nullptr ? nullptr : &head->statistics);
    if (order.stop) return;
    for (const PrefixCopy& copy : order.call.copies)
      generator.copy_prefix(copy.slot, copy.source_slot, copy.tokens);
    const Step& step = order.call.step;
    if (step.fed.empty()) continue;
    const double begin = seconds_now();
    const Tensor logits = order.wants_each ? generator.feed_each(step.fed) : generator.feed(step.fed);
    experts.add(generator.loads());
    anything_new = true;
    DraftCall drafts;
    if (head != nullptr)
      drafts = head->batcher.accept_logits(*context.pool, step, logits, seconds_now() - begin);
    if (model.predictions > 0) draft_next(context, generator, std::move(drafts), head);
    for (const std::size_t slot : step.kept) generator.keep_checkpoint(slot);
  }
}

}  // namespace switchyard::serve
