#include "kernels/moe/balance.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kBalancedAtOnce = 64;  // tokens

bool counts_token(const TensorView& segments, std::int64_t token) {
  return !segments.defined() || segments.kernel_data<std::int32_t>()[token] != 0;
}

// A sequence's part of `sums`.
struct SequenceSums {
  SequenceSums(const TensorView& all, std::int64_t sequence) {
    const auto experts = static_cast<std::size_t>(all.dim(1) / 2);
    const std::span<double> row(all.kernel_data<double>() + sequence * all.dim(1), 2 * experts + 1);
    choices = row.first(experts);
    probabilities = row.subspan(experts, experts);
    tokens = &row.back();
  }
  double divisor() const { return std::max(1.0, *tokens); }
  std::span<double> choices, probabilities;
  double* tokens;
};

// Calls visit(token, scratch [E], scratch [E]) for every token.
template <typename Visit>
void each_token(ThreadPool& pool, const TensorView& logits, const Visit& visit) {
  pool.for_range(logits.dim(0) * logits.dim(1), kBalancedAtOnce, [&](std::int64_t begin, std::int64_t end) {
    const auto experts = static_cast<std::size_t>(logits.dim(2));
    std::vector<float> scratch(2 * experts);
    for (std::int64_t t = begin; t < end; ++t)
      visit(t, std::span(scratch).first(experts), std::span(scratch).last(experts));
  });
}

void token_probabilities(const BalanceScores& from, std::int64_t t, std::span<float> s,
                         std::span<float> probabilities) {
  router_scores(from.score, row_of(from.logits, t), s);
  for (std::size_t e = 0; e < s.size() && from.bias.defined(); ++e) s[e] += from.bias.kernel_data<float>()[e];
  if (from.softmax_of_scores) return router_scores(RouterScore::softmax, s, probabilities);
  const float sum = scores_each_alone(from.score) ? std::accumulate(s.begin(), s.end(), 0.0f) : 1.0f;
  if (sum < kVanishingSum) return shares_of_logits(from.score, row_of(from.logits, t), probabilities);
  std::transform(s.begin(), s.end(), probabilities.begin(), [=](float v) { return v / sum; });
}

// Turns dp, the gradient of one token's probabilities p, into dscores, the gradient of scores and bias, and
// adds its part to dlogits. `scores` is scratch.
void token_backward(const BalanceScores& from, std::int64_t t, std::span<const float> p,
                    std::span<const float> dp, std::span<float> scores, std::span<float> dscores,
                    std::span<float> dlogits) {
  router_scores(from.score, row_of(from.logits, t), scores);
  std::ranges::fill(dscores, 0.0f);
  if (from.softmax_of_scores) {
    router_scores_backward(RouterScore::softmax, p, dp, dscores);
  } else if (scores_each_alone(from.score)) {
    const float sum = std::accumulate(scores.begin(), scores.end(), 0.0f);
    const float mean = mean_from_first(p, dp);
    if (sum < kVanishingSum) {  // p is a softmax of the logits times that factor
      for (std::size_t e = 0; e < p.size(); ++e)
        dlogits[e] += share_factor(from.score) * p[e] * (dp[e] - dp[0] - mean);
      return;
    }
    for (std::size_t e = 0; e < p.size(); ++e) dscores[e] = (dp[e] - dp[0] - mean) / sum;
  } else {
    std::ranges::copy(dp, dscores.begin());
  }
  router_scores_backward(from.score, scores, dscores, dlogits);
}

void sequence_sums(ThreadPool& pool, const BalanceStatisticsArgs& args) {
  const TensorView& logits = args.scores.logits;
  const std::int64_t batch = logits.dim(0), length = logits.dim(1), per_token = args.ids.dim(2);
  each_token(pool, logits, [&](std::int64_t t, std::span<float> scores, std::span<float>) {
    token_probabilities(args.scores, t, scores, row_of(args.probabilities, t));
  });
  const auto* const ids = args.ids.kernel_data<std::int32_t>();
  pool.for_range(batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const SequenceSums sums(args.sums, b);
      std::ranges::fill(sums.choices, 0.0);
      std::ranges::fill(sums.probabilities, 0.0);
      *sums.tokens = 0;
      for (std::int64_t t = b * length; t < (b + 1) * length; ++t) {
        if (!counts_token(args.segments, t)) continue;
        for (std::int64_t k = 0; k < per_token; ++k) {
          const std::int32_t id = ids[t * per_token + k];
          if (id >= 0) sums.choices[static_cast<std::size_t>(id)] += 1;
        }
        const auto p = row_of(args.probabilities, t);
        for (std::size_t e = 0; e < p.size(); ++e) sums.probabilities[e] += static_cast<double>(p[e]);
        *sums.tokens += 1;
      }
    }
  });
}

void loss_of_sums(ThreadPool&, const BalanceLossArgs& args) {
  double loss = 0;
  for (std::int64_t b = 0; b < args.sums.dim(0); ++b) {
    const SequenceSums sums(args.sums, b);
    const double tokens = sums.divisor();
    double of_sequence = 0;
    for (std::size_t e = 0; e < sums.choices.size(); ++e)
      of_sequence += sums.choices[e] / tokens * (sums.probabilities[e] / tokens);
    loss += of_sequence;
  }
  *args.loss.kernel_data<float>() = static_cast<float>(loss * args.factor);
}

void token_gradients(ThreadPool& pool, const BalanceBackwardArgs& args) {
  const TensorView& logits = args.scores.logits;
  const std::int64_t batch = logits.dim(0), length = logits.dim(1), experts = logits.dim(2);
  const float g = *args.gradient.kernel_data<float>();
  std::vector<float> dprobabilities(static_cast<std::size_t>(batch * experts));  // alike in a sequence
  const auto of_sequence = [&](std::int64_t b) {
    return std::span(dprobabilities)
        .subspan(static_cast<std::size_t>(b * experts), static_cast<std::size_t>(experts));
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    const SequenceSums sums(args.sums, b);
    const double tokens = sums.divisor();
    for (std::size_t e = 0; e < sums.choices.size(); ++e)
      of_sequence(b)[e] = static_cast<float>(g * args.factor * (sums.choices[e] / tokens) / tokens);
  }
  // With a bias, the gradients of all tokens' scores, to be added in order.
  std::vector<float> all_dscores(static_cast<std::size_t>(args.dbias.defined() ? logits.size() : 0));
  each_token(pool, logits, [&](std::int64_t t, std::span<float> scores, std::span<float> dscores) {
    const auto dlogits = row_of(args.dlogits, t);
    std::ranges::fill(dlogits, 0.0f);
    if (!counts_token(args.segments, t)) return;
    token_backward(args.scores, t, row_of(args.probabilities, t), of_sequence(t / length), scores, dscores,
                   dlogits);
    if (args.dbias.defined()) std::ranges::copy(dscores, all_dscores.begin() + t * experts);
  });
  if (!args.dbias.defined()) return;
  const auto dbias = row_of(args.dbias, 0);
  std::ranges::fill(dbias, 0.0f);
  for (std::size_t i = 0; i < all_dscores.size(); ++i) dbias[i % dbias.size()] += all_dscores[i];
}

void count_in_turn(ThreadPool&, const CountChoicesArgs& args) {
  auto* const counts = args.counts.kernel_data<std::int32_t>();
  const auto* const id = args.ids.kernel_data<std::int32_t>();
  std::fill(counts, counts + args.counts.size(), 0);
  const std::int64_t per_token = args.ids.dim(2);
  for (std::int64_t i = 0; i < args.ids.size(); ++i) {
    if (id[i] >= 0 && counts_token(args.segments, i / per_token)) ++counts[id[i]];
  }
}

Work statistics_work(const BalanceStatisticsArgs& args) {
  const TensorView& logits = args.scores.logits;
  return {.flops = 8 * static_cast<double>(logits.size()),
          .bytes = static_cast<double>(3 * logits.bytes() + args.ids.bytes() + args.sums.bytes())};
}

Work loss_work(const BalanceLossArgs& args) {
  return {.dtype = DType::f64,
          .flops = static_cast<double>(args.sums.size()),
          .bytes = static_cast<double>(args.sums.bytes())};
}

Work backward_work(const BalanceBackwardArgs& args) {
  return {.flops = 12 * static_cast<double>(args.dlogits.size()),
          .bytes = static_cast<double>(3 * args.dlogits.bytes() + args.sums.bytes())};
}

Work count_work(const CountChoicesArgs& args) {
  return {.dtype = DType::i32,
          .flops = static_cast<double>(args.ids.size()),
          .bytes = static_cast<double>(args.ids.bytes() + args.counts.bytes())};
}

constexpr Implementation<BalanceStatisticsArgs> kStatisticsRows[] = {
    {"cuda", Gpu::any, gpu::balance_statistics}, {"portable", Isa::ref, sequence_sums}};
constexpr Implementation<BalanceLossArgs> kLossRows[] = {{"cuda", Gpu::any, gpu::balance_loss_value},
                                                         {"portable", Isa::ref, loss_of_sums}};
constexpr Implementation<BalanceBackwardArgs> kBackwardRows[] = {
    {"cuda", Gpu::any, gpu::balance_loss_backward}, {"portable", Isa::ref, token_gradients}};
constexpr Implementation<CountChoicesArgs> kCountRows[] = {{"cuda", Gpu::any, gpu::count_choices},
                                                           {"portable", Isa::ref, count_in_turn}};
constexpr Kernel<BalanceStatisticsArgs> kStatistics{"balance_statistics", statistics_work,
                                                    &BalanceStatisticsArgs::probabilities, kStatisticsRows};
constexpr Kernel<BalanceLossArgs> kLoss{"balance_loss_value", loss_work, &BalanceLossArgs::sums, kLossRows};
constexpr Kernel<BalanceBackwardArgs> kBackward{"balance_loss_backward", backward_work,
                                                &BalanceBackwardArgs::dlogits, kBackwardRows};
constexpr Kernel<CountChoicesArgs> kCount{"count_choices", count_work, &CountChoicesArgs::ids, kCountRows};

void check_scores(const char* op, const BalanceScores& scores, const TensorView& segments) {
  const TensorView& logits = scores.logits;
  CHECK(logits.rank() == 3, "[{}] logits {}", op, to_string(logits.shape()));
  check_operand(op, "logits", logits, DType::f32, logits.shape());
  if (scores.bias.defined()) check_operand(op, "bias", scores.bias, DType::f32, {logits.dim(2)});
  if (segments.defined()) check_operand(op, "segments", segments, DType::i32, {logits.dim(0), logits.dim(1)});
}

}  // namespace

void balance_statistics(ThreadPool& pool, const BalanceStatisticsArgs& args) {
  const char* const op = "balance_statistics";
  const TensorView& logits = args.scores.logits;
  check_scores(op, args.scores, args.segments);
  const std::int64_t batch = logits.dim(0);
  CHECK(args.ids.rank() == 3, "[{}] ids {}", op, to_string(args.ids.shape()));
  check_operand(op, "ids", args.ids, DType::i32, {batch, logits.dim(1), args.ids.dim(2)});
  check_operand(op, "probabilities", args.probabilities, DType::f32, logits.shape());
  check_operand(op, "sums", args.sums, DType::f64, {batch, 2 * logits.dim(2) + 1});
  run(pool, kStatistics, args);
}

void balance_loss_value(ThreadPool& pool, const BalanceLossArgs& args) {
  const char* const op = "balance_loss_value";
  check_operand(op, "sums", args.sums, DType::f64, args.sums.shape());
  check_operand(op, "loss", args.loss, DType::f32, {});
  CHECK(args.sums.rank() == 2 && args.sums.dim(1) % 2 == 1, "[{}] sums {}", op, to_string(args.sums.shape()));
  run(pool, kLoss, args);
}

void balance_loss_backward(ThreadPool& pool, const BalanceBackwardArgs& args) {
  const char* const op = "balance_loss_backward";
  const TensorView& logits = args.scores.logits;
  check_scores(op, args.scores, args.segments);
  check_operand(op, "probabilities", args.probabilities, DType::f32, logits.shape());
  check_operand(op, "sums", args.sums, DType::f64, {logits.dim(0), 2 * logits.dim(2) + 1});
  check_operand(op, "gradient", args.gradient, DType::f32, {});
  check_operand(op, "dlogits", args.dlogits, DType::f32, logits.shape());
  if (args.dbias.defined()) check_operand(op, "dbias", args.dbias, DType::f32, {logits.dim(2)});
  run(pool, kBackward, args);
}

void count_choices(ThreadPool& pool, const CountChoicesArgs& args) {
  const char* const op = "count_choices";
  const TensorView& ids = args.ids;
  CHECK(ids.rank() == 3, "[{}] ids {}", op, to_string(ids.shape()));
  check_operand(op, "ids", ids, DType::i32, ids.shape());
  check_operand(op, "counts", args.counts, DType::i32, {args.counts.size()});
  if (args.segments.defined())
    check_operand(op, "segments", args.segments, DType::i32, {ids.dim(0), ids.dim(1)});
  run(pool, kCount, args);
}

}  // namespace switchyard
