#include "kernels/moe/balance.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cuda/kernels.h"

namespace switchyard {
namespace {

constexpr std::int64_t kBalancedAtOnce = 64;  // tokens

void check_operand(const char* op, const char* name, const TensorView& x, DType dtype, const Shape& shape) {
  CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(), "[{}] expected {} {} {}, got {} {}",
        op, name, name_of(dtype), to_string(shape), name_of(x.dtype()), to_string(x.shape()));
}

void check_scores(const char* op, const BalanceScores& scores, const TensorView& segments) {
  const TensorView& logits = scores.logits;
  CHECK(logits.rank() == 3, "[{}] logits {}", op, to_string(logits.shape()));
  check_operand(op, "logits", logits, DType::f32, logits.shape());
  if (scores.bias.defined()) check_operand(op, "bias", scores.bias, DType::f32, {logits.dim(2)});
  if (segments.defined()) check_operand(op, "segments", segments, DType::i32, {logits.dim(0), logits.dim(1)});
}

// Row i of x, f32.
std::span<float> float_row(const TensorView& x, std::int64_t i) {
  const std::int64_t width = x.shape().back();
  return {x.kernel_data<float>() + i * width, static_cast<std::size_t>(width)};
}

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
  router_scores(from.score, float_row(from.logits, t), s);
  for (std::size_t e = 0; e < s.size() && from.bias.defined(); ++e) s[e] += from.bias.kernel_data<float>()[e];
  if (from.softmax_of_scores) return router_scores(RouterScore::softmax, s, probabilities);
  const float sum = scores_each_alone(from.score) ? std::accumulate(s.begin(), s.end(), 0.0f) : 1.0f;
  std::transform(s.begin(), s.end(), probabilities.begin(), [=](float v) { return v / sum; });
}

// From the gradient of one token's probabilities p: dscores, that of scores and bias, and what dlogits gains.
// `scores` is scratch.
void token_backward(const BalanceScores& from, std::int64_t t, std::span<const float> p,
                    std::span<const float> dp, std::span<float> scores, std::span<float> dscores,
                    std::span<float> dlogits) {
  router_scores(from.score, float_row(from.logits, t), scores);
  std::ranges::fill(dscores, 0.0f);
  if (from.softmax_of_scores) {
    router_scores_backward(RouterScore::softmax, p, dp, dscores);
  } else if (scores_each_alone(from.score)) {
    const float sum = std::accumulate(scores.begin(), scores.end(), 0.0f);
    const float mean = mean_from_first(p, dp);
    for (std::size_t e = 0; e < p.size(); ++e) dscores[e] = (dp[e] - dp[0] - mean) / sum;
  } else {
    std::ranges::copy(dp, dscores.begin());
  }
  router_scores_backward(from.score, scores, dscores, dlogits);
}

}  // namespace

void balance_statistics(ThreadPool& pool, const BalanceStatisticsArgs& args) {
  const TensorView& logits = args.scores.logits;
  check_scores("balance_statistics", args.scores, args.segments);
  const std::int64_t batch = logits.dim(0), length = logits.dim(1), experts = logits.dim(2);
  CHECK(args.ids.rank() == 3, "[balance_statistics] ids {}", to_string(args.ids.shape()));
  const std::int64_t slots = args.ids.dim(2);
  check_operand("balance_statistics", "ids", args.ids, DType::i32, {batch, length, slots});
  check_operand("balance_statistics", "probabilities", args.probabilities, DType::f32, logits.shape());
  check_operand("balance_statistics", "sums", args.sums, DType::f64, {batch, 2 * experts + 1});
  if (pool.skips({"balance_statistics", DType::f32, 8 * static_cast<double>(logits.size()),
                  static_cast<double>(3 * logits.bytes() + args.ids.bytes() + args.sums.bytes())}))
    return;
  if (logits.on_gpu()) return gpu::balance_statistics(args);
  each_token(pool, logits, [&](std::int64_t t, std::span<float> scores, std::span<float>) {
    token_probabilities(args.scores, t, scores, float_row(args.probabilities, t));
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
        for (std::int64_t k = 0; k < slots; ++k) {
          const std::int32_t id = ids[t * slots + k];
          if (id >= 0) sums.choices[static_cast<std::size_t>(id)] += 1;
        }
        const auto p = float_row(args.probabilities, t);
        for (std::size_t e = 0; e < p.size(); ++e) sums.probabilities[e] += static_cast<double>(p[e]);
        *sums.tokens += 1;
      }
    }
  });
}

void balance_loss_value(ThreadPool& pool, const BalanceLossArgs& args) {
  check_operand("balance_loss_value", "sums", args.sums, DType::f64, args.sums.shape());
  check_operand("balance_loss_value", "loss", args.loss, DType::f32, {});
  CHECK(args.sums.rank() == 2 && args.sums.dim(1) % 2 == 1, "[balance_loss_value] sums {}",
        to_string(args.sums.shape()));
  if (pool.skips({"balance_loss_value", DType::f64, static_cast<double>(args.sums.size()),
                  static_cast<double>(args.sums.bytes())}))
    return;
  if (args.sums.on_gpu()) return gpu::balance_loss_value(args);
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

void balance_loss_backward(ThreadPool& pool, const BalanceBackwardArgs& args) {
  const TensorView& logits = args.scores.logits;
  check_scores("balance_loss_backward", args.scores, args.segments);
  const std::int64_t batch = logits.dim(0), length = logits.dim(1), experts = logits.dim(2);
  check_operand("balance_loss_backward", "probabilities", args.probabilities, DType::f32, logits.shape());
  check_operand("balance_loss_backward", "sums", args.sums, DType::f64, {batch, 2 * experts + 1});
  check_operand("balance_loss_backward", "gradient", args.gradient, DType::f32, {});
  check_operand("balance_loss_backward", "dlogits", args.dlogits, DType::f32, logits.shape());
  if (args.dbias.defined())
    check_operand("balance_loss_backward", "dbias", args.dbias, DType::f32, {experts});
  if (pool.skips({"balance_loss_backward", DType::f32, 12 * static_cast<double>(logits.size()),
                  static_cast<double>(3 * logits.bytes() + args.sums.bytes())}))
    return;
  if (logits.on_gpu()) return gpu::balance_loss_backward(args);
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
    const auto dlogits = float_row(args.dlogits, t);
    std::ranges::fill(dlogits, 0.0f);
    if (!counts_token(args.segments, t)) return;
    token_backward(args.scores, t, float_row(args.probabilities, t), of_sequence(t / length), scores, dscores,
                   dlogits);
    if (args.dbias.defined()) std::ranges::copy(dscores, all_dscores.begin() + t * experts);
  });
  if (!args.dbias.defined()) return;
  const auto dbias = float_row(args.dbias, 0);
  std::ranges::fill(dbias, 0.0f);
  for (std::size_t i = 0; i < all_dscores.size(); ++i) dbias[i % dbias.size()] += all_dscores[i];
}

void count_choices(ThreadPool& pool, const CountChoicesArgs& args) {
  const TensorView& ids = args.ids;
  CHECK(ids.rank() == 3, "[count_choices] ids {}", to_string(ids.shape()));
  check_operand("count_choices", "ids", ids, DType::i32, ids.shape());
  check_operand("count_choices", "counts", args.counts, DType::i32, {args.counts.size()});
  if (args.segments.defined())
    check_operand("count_choices", "segments", args.segments, DType::i32, {ids.dim(0), ids.dim(1)});
  if (pool.skips({"count_choices", DType::i32, static_cast<double>(ids.size()),
                  static_cast<double>(ids.bytes() + args.counts.bytes())}))
    return;
  if (ids.on_gpu()) return gpu::count_choices(args);
  auto* const counts = args.counts.kernel_data<std::int32_t>();
  const auto* const id = ids.kernel_data<std::int32_t>();
  std::fill(counts, counts + args.counts.size(), 0);
  const std::int64_t slots = ids.dim(2);
  for (std::int64_t i = 0; i < ids.size(); ++i) {
    if (id[i] >= 0 && counts_token(args.segments, i / slots)) ++counts[id[i]];
  }
}

}  // namespace switchyard
