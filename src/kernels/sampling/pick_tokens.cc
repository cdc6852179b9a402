#include "kernels/sampling/pick_tokens.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/registry/kernel.h"
#include "kernels/sampling/likely_tokens.h"
#include "kernels/sampling/packed_pick.h"

namespace switchyard {
namespace {

// Returns a copy of the logits in which tokens without a bit have -infinity, until the thread's next call.
std::span<float> allowed_logits(std::span<const float> logits, std::span<const std::uint32_t> bits) {
  static thread_local std::vector<float> copy;  // fresh memory costs more than the copy
  copy.assign(logits.begin(), logits.end());
  for (std::size_t word = 0; 32 * word < logits.size(); ++word) {
    if (bits[word] == ~std::uint32_t{0}) continue;
    const std::size_t end = std::min(logits.size(), 32 * word + 32);
    for (std::size_t t = 32 * word; t < end; ++t) {
      if ((bits[word] >> (t % 32) & 1) == 0) copy[t] = -std::numeric_limits<float>::infinity();
    }
  }
  return copy;
}

void add_log_probabilities(std::span<const float> logits, int count, PickedToken& picked) {
  const WeighedLogits weighed(logits);
  picked.top = weighed.top();
  picked.sum = weighed.sum(1);
  if (count == 0) return;
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::erase_if(ids, [&](std::int32_t id) { return logit(id) != logit(id); });
  const auto middle = ids.begin() + std::min<std::ptrdiff_t>(count, std::ssize(ids));
  std::partial_sort(ids.begin(), middle, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  for (auto id = ids.begin(); id != middle; ++id) picked.most_probable[id - ids.begin()] = {*id, logit(*id)};
}

PickedToken picked_from(std::span<float> logits, const TokenPick& pick) {
  PickedToken picked{};
  const auto bad = first_not_finite(logits);
  picked.bad = bad ? static_cast<std::int32_t>(*bad) : -1;
  if (bad) picked.bad_logit = logits[*bad];
  const std::span<float> allowed =
      pick.given || pick.bits.empty() ? logits : allowed_logits(logits, pick.bits);
  picked.token = pick.given ? *pick.given : pick_token(allowed, *pick.config, pick.seen, pick.uniform);
  const auto at = static_cast<std::size_t>(picked.token);
  picked.logit = logits[at];
  if (pick.most_probable < 0) return picked;
  if (!pick.processed) {
    add_log_probabilities(logits, pick.most_probable, picked);
    return picked;
  }
  std::vector<float> processed(logits.size(), -std::numeric_limits<float>::infinity());
  if (pick.given)
    processed[at] = 0;
  else
    processed = processed_logits(allowed, *pick.config, pick.seen);
  picked.logit = processed[at];
  add_log_probabilities(processed, pick.most_probable, picked);
  return picked;
}

void row_by_row(ThreadPool& pool, const PickTokensArgs& args) {
  std::int32_t* const out = args.out.kernel_data<std::int32_t>();
  const std::int64_t width = args.logits.dim(1);
  // A thread takes all picks of a row: pick_token() changes the row's logits meanwhile.
  std::vector<std::int64_t> order(args.picks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto row_of = [&](std::int64_t i) { return args.picks[static_cast<std::size_t>(i)].row; };
  std::ranges::stable_sort(order, {}, row_of);
  std::vector<std::size_t> begins;  // of each row's picks in `order`
  for (std::size_t n = 0; n < order.size(); ++n) {
    if (n == 0 || row_of(order[n]) != row_of(order[n - 1])) begins.push_back(n);
  }
  begins.push_back(order.size());
  pool.for_range(std::ssize(begins) - 1, rows_a_thread(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t n = begins[static_cast<std::size_t>(begin)]; n < begins[static_cast<std::size_t>(end)];
         ++n) {
      const TokenPick& pick = args.picks[static_cast<std::size_t>(order[n])];
      float* const row = args.logits.kernel_data<float>() + pick.row * width;
      const PickedToken picked = picked_from({row, static_cast<std::size_t>(pick.vocab)}, pick);
      std::memcpy(out + order[n] * kPickedWords, &picked, sizeof picked);
    }
  });
}

Work work_of(const PickTokensArgs& args) {
  return {.dtype = DType::f32,
          .flops = 0,
          .bytes = static_cast<double>(std::ssize(args.picks) * args.logits.dim(1)) * sizeof(float)};
}

constexpr Implementation<PickTokensArgs> kRows[] = {{"cuda", Gpu::any, gpu::pick_tokens},
                                                    {"portable", Isa::ref, row_by_row}};
constexpr Kernel<PickTokensArgs> kPickTokens{"pick_tokens", work_of, &PickTokensArgs::logits, kRows};

}  // namespace

std::int64_t rows_a_thread(std::int64_t vocab) {
  constexpr std::int64_t kLogits = 16384;
  return std::max<std::int64_t>(1, kLogits / std::max<std::int64_t>(1, vocab));
}

double log_sum_of(const PickedToken& picked, std::int64_t vocab) {
  return static_cast<double>(picked.top) +
         log_of_sum(picked.sum, weight_bits(static_cast<std::size_t>(vocab)));
}

void pick_tokens(ThreadPool& pool, const PickTokensArgs& args) {
  const TensorView &logits = args.logits, &out = args.out;
  CHECK(logits.rank() == 2 && logits.dtype() == DType::f32 && logits.is_contiguous() &&
            out.dtype() == DType::i32 && out.is_contiguous() &&
            out.size() == std::ssize(args.picks) * kPickedWords,
        "[pick_tokens] logits {} of {}, {} picks into {}", to_string(logits.shape()), name_of(logits.dtype()),
        args.picks.size(), to_string(out.shape()));
  for (const TokenPick& pick : args.picks)
    CHECK(pick.row >= 0 && pick.row < logits.dim(0) && pick.vocab > 0 && pick.vocab <= logits.dim(1) &&
              pick.vocab <= std::int64_t{1} << kTokenBits && pick.config != nullptr &&
              pick.most_probable <= kMostProbable &&
              (!pick.given || (*pick.given >= 0 && *pick.given < pick.vocab)) &&
              (pick.bits.empty() || std::ssize(pick.bits) * 32 >= pick.vocab),
          "[pick_tokens] a pick from row {} of {}, {} of {} logits", pick.row, logits.dim(0), pick.vocab,
          logits.dim(1));
  if (args.picks.empty()) return;
  run(pool, kPickTokens, args);
}

}  // namespace switchyard
