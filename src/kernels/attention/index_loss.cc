#include "kernels/attention/index_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/index_keys.h"
#include "kernels/attention/index_problem.h"
#include "kernels/cuda/kernels.h"
#include "kernels/product/gemm.h"

namespace switchyard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kProductsAtOnce = std::int64_t{1} << 20;

void check(const char* op, const char* name, const TensorView& x, DType dtype, std::int64_t elements) {
  CHECK(x.dtype() == dtype && x.size() == elements && x.is_contiguous(),
        "[{}] {} {} of {}, expected {} elements of {}", op, name, to_string(x.shape()), name_of(x.dtype()),
        elements, name_of(dtype));
}

std::int64_t queries_at_once(const IndexSizes& s) {
  return std::clamp<std::int64_t>(kProductsAtOnce / std::max<std::int64_t>(1, s.heads * s.keys), 1,
                                  std::max<std::int64_t>(1, s.queries));
}

// Adds one head's softmax over the keys of a query to `shares`; scores are overwritten.
void add_softmax(float* scores, std::int64_t keys, float* shares) {
  const float top = *std::max_element(scores, scores + keys);
  if (top == -kInfinity) return;
  float sum = 0;
  for (std::int64_t t = 0; t < keys; ++t) sum += (scores[t] = std::exp(scores[t] - top));
  for (std::int64_t t = 0; t < keys; ++t) shares[t] += scores[t] / sum;
}

struct LossRows {
  const float *scores, *shares;
  const std::int32_t* chosen;
  std::int64_t rows, keys;
};

LossRows rows_of(const char* op, const TensorView& scores, const TensorView& shares,
                 const TensorView& chosen) {
  const std::int64_t keys = scores.shape().back(), rows = keys == 0 ? 0 : scores.size() / keys;
  check(op, "scores", scores, DType::f32, rows * keys);
  check(op, "shares", shares, DType::f32, rows * keys);
  if (chosen.defined()) check(op, "chosen", chosen, DType::i32, rows * words_of_keys(keys));
  return {scores.device_data<float>(), shares.device_data<float>(), chosen.device_data<std::int32_t>(), rows,
          keys};
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
  float top = -kInfinity;
  for (std::int64_t t = 0; t < r.keys; ++t) {
    if (is_chosen(words, t)) top = std::max(top, scores[t]);
  }
  result.any = top > -kInfinity;
  float sum = 0;
  result.share_sum = kIndexLossEpsilon;
  for (std::int64_t t = 0; result.any && t < r.keys; ++t) {
    result.share_sum += shares[t];
    if (is_chosen(words, t))
      sum += (result.predicted[static_cast<std::size_t>(t)] = std::exp(scores[t] - top));
  }
  for (float& p : result.predicted) p = result.any ? p / sum : 0.0f;
}

}  // namespace

void head_shares(ThreadPool& pool, const HeadSharesArgs& a) {
  constexpr const char* kOp = "head_shares";
  CHECK(a.q.rank() == 4 && a.k.rank() == 4 && is_float(a.q.dtype()), "[{}] q {} of {}, k {}", kOp,
        to_string(a.q.shape()), name_of(a.q.dtype()), to_string(a.k.shape()));
  const IndexSizes s{a.q.dim(0), a.q.dim(1), a.k.dim(1), a.q.dim(2), a.q.dim(3)};
  check(kOp, "q", a.q, a.q.dtype(), s.batch * s.queries * s.heads * s.width);
  check(kOp, "k", a.k, a.q.dtype(), s.batch * s.keys * s.heads * s.width);
  check(kOp, "shares", a.shares, DType::f32, s.batch * s.queries * s.keys);
  if (a.chosen.defined())
    check(kOp, "chosen", a.chosen, DType::i32, s.batch * s.queries * words_of_keys(s.keys));
  const SeenKeys seen =
      seen_keys(kOp, {s.batch, s.queries}, {s.batch, s.keys}, a.q_index, a.q_segment, a.kv_segment);
  const std::int64_t most = queries_at_once(s);
  const auto pairs = static_cast<double>(s.batch * s.queries * s.keys);
  if (pool.skips({kOp, a.q.dtype(), pairs * static_cast<double>(s.heads * (2 * s.width + 4)),
                  static_cast<double>(a.q.bytes() + a.k.bytes() + a.shares.bytes())})) {
    const Buffer taken(
        pool.counts_workspace() ? static_cast<std::size_t>(most * s.heads * s.keys) * sizeof(float) : 0);
    return;
  }
  if (a.q.on_gpu()) return gpu::head_shares(a, s, seen);
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
                  seen.sees(b, first + i, t) && is_chosen(words, t) ? a.scale * of_head[t] : -kInfinity;
            if (s.keys > 0) add_softmax(of_head, s.keys, to);
          }
        }
      });
    }
  }
}

void index_loss(ThreadPool& pool, const IndexLossArgs& a) {
  const LossRows r = rows_of("index_loss", a.scores, a.shares, a.chosen);
  check("index_loss", "loss", a.loss, DType::f32, 1);
  if (pool.skips({"index_loss", DType::f32, 8 * static_cast<double>(a.scores.size()),
                  2 * static_cast<double>(a.scores.bytes())}))
    return;
  if (a.scores.on_gpu()) return gpu::index_loss(a);
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

void index_loss_backward(ThreadPool& pool, const IndexLossBackwardArgs& a) {
  constexpr const char* kOp = "index_loss_backward";
  const LossRows r = rows_of(kOp, a.scores, a.shares, a.chosen);
  check(kOp, "gradient", a.gradient, DType::f32, 1);
  check(kOp, "dscores", a.dscores, DType::f32, r.rows * r.keys);
  if (pool.skips({kOp, DType::f32, 8 * static_cast<double>(a.scores.size()),
                  3 * static_cast<double>(a.scores.bytes())}))
    return;
  if (a.scores.on_gpu()) return gpu::index_loss_backward(a);
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

}  // namespace switchyard
