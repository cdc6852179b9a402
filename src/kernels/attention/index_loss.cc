#include "kernels/attention/index_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/checks.h"
#include "kernels/attention/index_problem.h"
#include "kernels/product/gemm.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr float kLossInfinity = std::numeric_limits<float>::infinity();

// Adds one head's softmax over the keys of a query to `shares`; scores are overwritten.
void add_softmax(float* scores, std::int64_t keys, float* shares) {
  const float top = *std::max_element(scores, scores + keys);
  if (top == -kLossInfinity) return;
  float sum = 0;
  for (std::int64_t t = 0; t < keys; ++t) sum += (scores[t] = std::exp(scores[t] - top));
  for (std::int64_t t = 0; t < keys; ++t) shares[t] += scores[t] / sum;
}

struct LossRows {
  const float *scores, *shares;
  const std::int32_t* chosen;
  std::int64_t rows, keys;
};

template <typename Args>
LossRows rows_of(const Args& args) {
  const std::int64_t keys = args.scores.shape().back();
  return {args.scores.template kernel_data<float>(), args.shares.template kernel_data<float>(),
          args.chosen.template kernel_data<std::int32_t>(), keys == 0 ? 0 : args.scores.size() / keys, keys};
}

// One row's distributions.
struct LossRow {
  std::vector<float> predicted;  // the softmax of the scores
  float share_sum = 0;
  bool any = false;
};

void read_row(const LossRows& r, std::int64_t row, LossRow& result) {
  const float *const scores = r.scores + row * r.keys, *const shares = r.shares + row * r.keys;
  const std::int32_t* const words = r.chosen == nullptr ? nullptr : r.chosen + row * words_of_keys(r.keys);
  result.predicted.assign(static_cast<std::size_t>(r.keys), 0.0f);
  float top = -kLossInfinity;
  for (std::int64_t t = 0; t < r.keys; ++t) {
    if (is_chosen(words, t)) top = std::max(top, scores[t]);
  }
  result.any = top > -kLossInfinity;
  float sum = 0;
  result.share_sum = kIndexLossEpsilon;
  for (std::int64_t t = 0; result.any && t < r.keys; ++t) {
    result.share_sum += shares[t];
    if (is_chosen(words, t))
      sum += (result.predicted[static_cast<std::size_t>(t)] = std::exp(scores[t] - top));
  }
  for (float& p : result.predicted) p = result.any ? p / sum : 0.0f;
}

void shares_of_queries(ThreadPool& pool, const HeadSharesArgs& a) {
  const IndexSizes s = index_sizes(a);
  const SeenKeys seen = seen_keys(a);
  const std::int64_t most = queries_at_once(s);
  const Tensor products = current_memory().empty(DType::f32, {s.heads, most, s.keys});
  float *const scores = products.view().kernel_data<float>(), *const shares = a.shares.kernel_data<float>();
  const std::int32_t* const chosen = a.chosen.kernel_data<std::int32_t>();
  const std::int64_t row_stride = s.heads * s.width;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t first = 0; first < s.queries; first += most) {
      const std::int64_t count = std::min(most, s.queries - first);
      const auto heads_first = [&](const TensorView& x, std::int64_t vector, std::int64_t vectors) {
        return x.block(vector * row_stride, {s.heads, vectors, s.width}, {s.width, row_stride, 1});
      };
      gemm(pool, {.a = heads_first(a.q, b * s.queries + first, count),
                  .b = heads_first(a.k, b * s.keys, s.keys),
                  .c = products.view().block(0, {s.heads, count, s.keys}, {most * s.keys, s.keys, 1}),
                  .transpose_b = true});
      pool.for_range(count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row = b * s.queries + first + i;
          float* const to = shares + row * s.keys;
          const std::int32_t* const words =
              chosen == nullptr ? nullptr : chosen + row * words_of_keys(s.keys);
          std::fill_n(to, s.keys, 0.0f);
          for (std::int64_t n = 0; n < s.heads; ++n) {
            float* const of_head = scores + (n * most + i) * s.keys;
            for (std::int64_t t = 0; t < s.keys; ++t)
              of_head[t] =
                  seen.sees(b, first + i, t) && is_chosen(words, t) ? a.scale * of_head[t] : -kLossInfinity;
            if (s.keys > 0) add_softmax(of_head, s.keys, to);
          }
        }
      });
    }
  }
}

void loss_of_rows(ThreadPool& pool, const IndexLossArgs& a) {
  const LossRows r = rows_of(a);
  std::vector<double> losses(static_cast<std::size_t>(r.rows));
  pool.for_range(r.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    LossRow row;
    for (std::int64_t i = begin; i < end; ++i) {
      read_row(r, i, row);
      double loss = 0;
      for (std::int64_t t = 0; row.any && t < r.keys; ++t) {
        const float p = r.shares[i * r.keys + t] / row.share_sum;
        loss += static_cast<double>(
            p * (std::log(p + kIndexLossEpsilon) -
                 std::log(row.predicted[static_cast<std::size_t>(t)] + kIndexLossEpsilon)));
      }
      losses[static_cast<std::size_t>(i)] = loss;
    }
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  *a.loss.kernel_data<float>() = static_cast<float>(sum * a.factor);
}

void gradients_of_rows(ThreadPool& pool, const IndexLossBackwardArgs& a) {
  const LossRows r = rows_of(a);
  const float g = *a.gradient.kernel_data<float>() * static_cast<float>(a.factor);
  float* const dscores = a.dscores.kernel_data<float>();
  pool.for_range(r.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    LossRow row;
    for (std::int64_t i = begin; i < end; ++i) {
      read_row(r, i, row);
      float* const to = dscores + i * r.keys;
      // dloss/dc, and its mean under c.
      float mean = 0;
      for (std::int64_t t = 0; t < r.keys; ++t) {
        const float c = row.predicted[static_cast<std::size_t>(t)];
        to[t] = -(r.shares[i * r.keys + t] / row.share_sum) / (c + kIndexLossEpsilon);
        mean += c * to[t];
      }
      for (std::int64_t t = 0; t < r.keys; ++t)
        to[t] = row.any ? g * row.predicted[static_cast<std::size_t>(t)] * (to[t] - mean) : 0.0f;
    }
  });
}

Work shares_work(const HeadSharesArgs& a) {
  const IndexSizes s = index_sizes(a);
  const auto pairs = static_cast<double>(s.batch * s.queries * s.keys);
  return {.dtype = a.q.dtype(),
          .flops = pairs * static_cast<double>(s.heads * (2 * s.width + 4)),
          .bytes = static_cast<double>(a.q.bytes() + a.k.bytes() + a.shares.bytes())};
}

Work loss_work(const IndexLossArgs& a) {
  return {.flops = 8 * static_cast<double>(a.scores.size()),
          .bytes = 2 * static_cast<double>(a.scores.bytes())};
}

Work gradients_work(const IndexLossBackwardArgs& a) {
  return {.flops = 8 * static_cast<double>(a.scores.size()),
          .bytes = 3 * static_cast<double>(a.scores.bytes())};
}

std::size_t shares_workspace(const HeadSharesArgs& a) {
  return products_bytes(index_sizes(a), sizeof(float));
}

constexpr Implementation<HeadSharesArgs> kShares[] = {
    {"cuda", Gpu::any, gpu::head_shares},
    {"portable", Isa::ref, shares_of_queries, nullptr, shares_workspace}};
constexpr Implementation<IndexLossArgs> kLosses[] = {{"cuda", Gpu::any, gpu::index_loss},
                                                     {"portable", Isa::ref, loss_of_rows}};
constexpr Implementation<IndexLossBackwardArgs> kIndexLossGradients[] = {
    {"cuda", Gpu::any, gpu::index_loss_backward}, {"portable", Isa::ref, gradients_of_rows}};
constexpr Kernel<HeadSharesArgs> kHeadShares{"head_shares", shares_work, &HeadSharesArgs::q, kShares};
constexpr Kernel<IndexLossArgs> kIndexLoss{"index_loss", loss_work, &IndexLossArgs::scores, kLosses};
constexpr Kernel<IndexLossBackwardArgs> kIndexLossBackward{
    "index_loss_backward", gradients_work, &IndexLossBackwardArgs::scores, kIndexLossGradients};

void check(const char* op, const char* name, const TensorView& x, DType dtype, std::int64_t elements) {
  CHECK(x.dtype() == dtype && x.size() == elements && x.is_contiguous(),
        "[{}] {} {} of {}, expected {} elements of {}", op, name, to_string(x.shape()), name_of(x.dtype()),
        elements, name_of(dtype));
}

template <typename Args>
void check_rows(const char* op, const Args& a) {
  const std::int64_t keys = a.scores.shape().back(), rows = keys == 0 ? 0 : a.scores.size() / keys;
  check(op, "scores", a.scores, DType::f32, rows * keys);
  check(op, "shares", a.shares, DType::f32, rows * keys);
  if (a.chosen.defined()) check(op, "chosen", a.chosen, DType::i32, rows * words_of_keys(keys));
}

}  // namespace

void head_shares(ThreadPool& pool, const HeadSharesArgs& a) {
  constexpr const char* kOp = "head_shares";
  CHECK(a.q.rank() == 4 && a.k.rank() == 4 && is_float(a.q.dtype()), "[{}] q {} of {}, k {}", kOp,
        to_string(a.q.shape()), name_of(a.q.dtype()), to_string(a.k.shape()));
  const IndexSizes s = index_sizes(a);
  check(kOp, "q", a.q, a.q.dtype(), s.batch * s.queries * s.heads * s.width);
  check(kOp, "k", a.k, a.q.dtype(), s.batch * s.keys * s.heads * s.width);
  check(kOp, "shares", a.shares, DType::f32, s.batch * s.queries * s.keys);
  if (a.chosen.defined())
    check(kOp, "chosen", a.chosen, DType::i32, s.batch * s.queries * words_of_keys(s.keys));
  check_masks(kOp, a);
  run(pool, kHeadShares, a);
}

void index_loss(ThreadPool& pool, const IndexLossArgs& a) {
  check_rows("index_loss", a);
  check("index_loss", "loss", a.loss, DType::f32, 1);
  run(pool, kIndexLoss, a);
}

void index_loss_backward(ThreadPool& pool, const IndexLossBackwardArgs& a) {
  constexpr const char* kOp = "index_loss_backward";
  check_rows(kOp, a);
  check(kOp, "gradient", a.gradient, DType::f32, 1);
  check(kOp, "dscores", a.dscores, DType::f32, a.scores.size());
  run(pool, kIndexLossBackward, a);
}

}  // namespace switchyard
