#include "texts/loop.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "texts/batcher.h"
#include "texts/expert_counts.h"

namespace switchyard::texts {
namespace {

constexpr double kSumSeconds = 1;         // between two sums of the experts' assignments
constexpr std::size_t kBlockWords = 128;  // of an order: the next tokens of 40 texts

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The order that rank 0 gives the other ranks.
struct Order {
  Call call = {};
  bool sum_experts = false;
  bool stop = false;
  bool wants_each = false;  // logits after every token
  bool drafted = false;
  std::string task = {};  // where it is not empty, nothing else is done
};

std::vector<std::int32_t> to_words(const Order& order) {
  std::vector<std::int32_t> words{order.sum_experts,
                                  order.stop,
                                  order.wants_each + 2 * order.drafted,
                                  static_cast<std::int32_t>(order.call.copies.size()),
                                  static_cast<std::int32_t>(order.call.step.fed.size()),
                                  static_cast<std::int32_t>(order.call.step.kept.size()),
                                  static_cast<std::int32_t>(order.call.begun.size()),
                                  static_cast<std::int32_t>(order.task.size())};
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
  for (const SlotAdapter& of : order.call.begun) {
    words.push_back(static_cast<std::int32_t>(of.slot));
    words.push_back(of.number);
  }
  for (const char c : order.task) words.push_back(c);
  return words;
}

Order from_words(std::span<const std::int32_t> words) {
  Order order{{}, words[0] != 0, words[1] != 0, (words[2] & 1) != 0, (words[2] & 2) != 0};
  std::size_t at = 8;
  for (std::int32_t i = 0; i < words[3]; ++i, at += 3)
    order.call.copies.push_back(
        {static_cast<std::size_t>(words[at]), static_cast<std::size_t>(words[at + 1]), words[at + 2]});
  for (std::int32_t i = 0; i < words[4]; ++i) {
    const auto slot = static_cast<std::size_t>(words[at]);
    const auto tokens = words.subspan(at + 2, static_cast<std::size_t>(words[at + 1]));
    order.call.step.fed.push_back({slot, {tokens.begin(), tokens.end()}});
    at += 2 + tokens.size();
  }
  for (std::int32_t i = 0; i < words[5]; ++i)
    order.call.step.kept.push_back(static_cast<std::size_t>(words[at++]));
  for (std::int32_t i = 0; i < words[6]; ++i, at += 2)
    order.call.begun.push_back({static_cast<std::size_t>(words[at]), words[at + 1]});
  for (std::int32_t i = 0; i < words[7]; ++i) order.task.push_back(static_cast<char>(words[at++]));
  return order;
}

// Returns rank 0's order on all ranks. Most orders fit into one block of words, which takes one collective
// call; the words behind it take another. Collective.
Order agree(Context& context, std::optional<Order> own) {
  const ProcessGroup world = everyone(*context.comm, "world");
  if (world.ranks.size() == 1) return *std::move(own);
  std::vector<std::int32_t> words(kBlockWords);
  if (own) {
    const std::vector<std::int32_t> order = to_words(*own);
    words.assign(1, static_cast<std::int32_t>(order.size()));
    words.insert(words.end(), order.begin(), order.end());
    words.resize(std::max(words.size(), kBlockWords));
  }
  context.comm->broadcast(world, 0, host_view(std::span(words).first(kBlockWords)));
  words.resize(std::max(static_cast<std::size_t>(words[0]) + 1, kBlockWords));
  if (words.size() > kBlockWords)
    context.comm->broadcast(world, 0, host_view(std::span(words).subspan(kBlockWords)));
  return own ? *std::move(own) : from_words(std::span(words).subspan(1));
}

}  // namespace

struct Loop::Impl {
  Generator& generator;
  Context& context = generator.context();
  const std::int64_t drafts;  // that the model makes, at most
  Observer* const observer;   // null on all ranks but 0
  std::optional<ExpertCounts> experts = {};
  std::function<void(const std::string&)> run_task = {};
  std::optional<Batcher> batcher = {};                        // on rank 0
  std::function<std::optional<Loop::Task>()> next_task = {};  // on rank 0
  Inbox* inbox = nullptr;                                     // on rank 0
  double summed = seconds_now();
  bool anything_new = false;  // since the experts' assignments were summed

  // Returns rank 0's next order.
  Order next(double idle_seconds, const std::vector<const Pieces*>* only) {
    if (std::optional<Loop::Task> task = next_task ? next_task() : std::nullopt) {
      if (task->ends_texts) batcher->end_all(Finish::aborted);
      Order order;
      order.task = std::move(task->what);
      return order;
    }
    Order order{batcher->next(idle_seconds, only), false, only != nullptr ? only->empty() : inbox->is_done()};
    order.wants_each = order.call.step.wants_each();
    order.drafted = order.call.step.drafted;
    order.sum_experts = anything_new && (order.stop || seconds_now() - summed > kSumSeconds);
    if (order.sum_experts) {
      summed = seconds_now();
      anything_new = false;
    }
    return order;
  }

  // Drafts the tokens after those that rank 0 has accepted. Collective.
  void draft_next(DraftCall call) {
    std::optional<Order> own;
    if (batcher) own = Order{{std::move(call.truncated), {}, {std::move(call.next)}}};
    const Order order = agree(context, std::move(own));
    for (const PrefixCopy& kept : order.call.copies) generator.truncate(kept.slot, kept.tokens);
    const Tensor logits = generator.draft(order.call.step.fed);
    if (batcher) batcher->accept_drafts(*context.pool, order.call.step.fed, logits);
    draft_further(order.call.step.fed);
  }

  // Drafts the tokens behind those drafts, as long as rank 0 wants some. Collective.
  void draft_further(const std::vector<SlotTokens>& after) {
    std::int64_t calls = 0;
    const auto has_room = [&](const SlotTokens& of) { return generator.can_draft_further(of.slot); };
    for (; calls + 1 < drafts && std::ranges::all_of(after, has_room); ++calls) {
      std::optional<Order> own;
      if (batcher) own = Order{{{}, {}, {batcher->wanted_drafts(after)}}};
      const Order order = agree(context, std::move(own));
      if (order.call.step.fed.empty()) break;
      const Tensor logits = generator.draft_further(order.call.step.fed);
      if (batcher) batcher->accept_drafts(*context.pool, order.call.step.fed, logits);
    }
    if (calls > 0) generator.drop_further_drafts(after, calls);
  }

  void call_model(const Step& step, bool wants_each, bool drafted) {
    const double begin = seconds_now();
    const Tensor logits = wants_each ? generator.feed_each(step.fed, drafted) : generator.feed(step.fed);
    if (experts) experts->add(generator.loads());
    anything_new = experts.has_value();
    DraftCall next;
    if (batcher) next = batcher->accept_logits(*context.pool, step, logits, seconds_now() - begin);
    if (drafts > 0) draft_next(std::move(next));
    for (const std::size_t slot : step.kept) generator.keep_checkpoint(slot);
  }
};

Loop::Loop(Generator& generator, const Limits& limits, const Head* head,
           std::function<void(const std::string& task)> run_task)
    : impl_(new Impl{generator, generator.context(), limits.drafts, head ? &head->observer : nullptr}) {
  if (limits.counts_experts) {
    impl_->experts.emplace(impl_->context, generator.model());
    generator.keep_loads();
  }
  impl_->run_task = std::move(run_task);
  if (head == nullptr) return;
  impl_->next_task = head->next_task;
  impl_->inbox = &head->inbox;
  impl_->batcher.emplace(head->tokenizer, limits, head->inbox, head->observer, head->on_finished);
  impl_->batcher->describe_cache(
      generator.slot_groups(),
      [&generator](std::size_t source_slot, std::int64_t tokens) {
        return generator.longest_prefix(source_slot, tokens);
      },
      [&generator](std::size_t slot) { return generator.is_current(slot); }, generator.capacity());
}

Loop::~Loop() = default;

bool Loop::step(double idle_seconds, const std::vector<const Pieces*>* only) {
  std::optional<Order> own;
  if (impl_->batcher) own = impl_->next(idle_seconds, only);
  const Order order = agree(impl_->context, std::move(own));
  if (!order.task.empty()) {
    impl_->run_task(order.task);
    return true;
  }
  if (order.sum_experts) impl_->experts->move_to(impl_->observer);
  for (const PrefixCopy& copy : order.call.copies)
    impl_->generator.copy_prefix(copy.slot, copy.source_slot, copy.tokens);
  for (const SlotAdapter& of : order.call.begun) impl_->generator.use_adapter(of.slot, of.number);
  if (order.stop) return false;
  if (!order.call.step.fed.empty()) impl_->call_model(order.call.step, order.wants_each, order.drafted);
  return true;
}

}  // namespace switchyard::texts
