#include "bench/choices.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/rng.h"

namespace switchyard::bench {
namespace {

// The topk largest of log(weight) + Gumbel noise are a draw without replacement, proportional to weights.
void draw(RngKey key, std::int64_t token, std::span<const std::int32_t> order, std::span<std::int32_t> out) {
  std::vector<std::pair<double, std::int32_t>> keys;
  const auto experts = static_cast<std::int64_t>(order.size());
  for (std::int64_t i = 0; i < experts; ++i) {
    const double u = std::max(
        1e-9, static_cast<double>(rng_uniform(key, static_cast<std::uint64_t>(token * experts + i))));
    keys.emplace_back(-std::log(static_cast<double>(i + 1)) - std::log(-std::log(u)),
                      order[static_cast<std::size_t>(i)]);
  }
  const auto topk = static_cast<std::ptrdiff_t>(out.size());
  std::partial_sort(keys.begin(), keys.begin() + topk, keys.end(), std::greater<>());
  for (std::size_t j = 0; j < out.size(); ++j) out[j] = keys[j].second;
}

}  // namespace

Tensor choices(const MoeShape& shape, const std::string& skew, std::int64_t round) {
  Tensor ids(DType::i32, {1, shape.tokens, shape.topk});
  const auto experts = rng_permutation(rng_key(11), shape.experts);
  const auto tokens = rng_permutation(rng_key(12), shape.tokens);
  const RngKey key = rng_fold_in(rng_key(13), static_cast<std::uint32_t>(round));
  for (std::int64_t i = 0; i < shape.tokens; ++i) {
    const std::int64_t token = tokens[static_cast<std::size_t>(i)];
    const auto out = ids.span<std::int32_t>().subspan(static_cast<std::size_t>(token * shape.topk),
                                                      static_cast<std::size_t>(shape.topk));
    if (skew == "zipf") {
      draw(key, token, experts, out);
      continue;
    }
    const std::int64_t first = skew == "one_hot" ? 0 : (round * shape.tokens + i) * shape.topk;
    for (std::int64_t j = 0; j < shape.topk; ++j)
      out[static_cast<std::size_t>(j)] = experts[static_cast<std::size_t>((first + j) % shape.experts)];
  }
  return ids;
}

Tensor FixedChoices::replay(const Context&, std::int64_t step, std::int64_t, std::int64_t, const ArrayInfo&) {
  return choices_[static_cast<std::size_t>(step) % choices_.size()];
}

double FixedChoices::mean_experts_used() const {
  double sum = 0;
  for (const Tensor& ids : choices_) {
    const Tensor there = to_host(ids);
    const auto all = there.span<std::int32_t>();
    sum += static_cast<double>(std::set<std::int32_t>(all.begin(), all.end()).size());
  }
  return sum / static_cast<double>(choices_.size());
}

}  // namespace switchyard::bench
