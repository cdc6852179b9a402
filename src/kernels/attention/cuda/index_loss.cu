// The loss of an indexer and its gradient. A block takes a query and its threads the keys.
#include "kernels/attention/index_problem.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// The largest of all threads of the block, for all of them.
GPU_FUNCTION float block_max(float x, float* scratch) {
  x = warp_max(x);
  barrier();  // who reads the maximum before this one has read it
  if (thread_index() % kWarp == 0) scratch[thread_index() / kWarp] = x;
  barrier();
  float most = scratch[0];
  for (int i = 1; i < kWarps; ++i) most = scratch[i] > most ? scratch[i] : most;
  return most;
}

template <typename T>
GPU_KERNEL sum_head_shares(IndexSizes s, SeenKeys seen, const T* q, const T* k, const std::int32_t* chosen,
                           float scale, float* shares) {
  GPU_SHARED(float, scratch, kWarps);
  const std::int64_t row = block_index(), batch = row / s.queries, query = row % s.queries;
  const std::int32_t* const words = chosen == nullptr ? nullptr : chosen + row * words_of_keys(s.keys);
  float* const own = shares + row * s.keys;
  for (std::int64_t t = thread_index(); t < s.keys; t += kThreads) own[t] = 0;
  for (std::int64_t n = 0; n < s.heads; ++n) {
    const T* const vector = q + (row * s.heads + n) * s.width;
    const auto score = [&](std::int64_t t) {
      if (!seen.sees(batch, query, t) || !is_chosen(words, t)) return -INFINITY;
      const T* const key = k + ((batch * s.keys + t) * s.heads + n) * s.width;
      float sum = 0;
      for (std::int64_t d = 0; d < s.width; ++d) sum += to_float(vector[d]) * to_float(key[d]);
      return scale * sum;
    };
    float top = -INFINITY;
    for (std::int64_t t = thread_index(); t < s.keys; t += kThreads) {
      const float x = score(t);
      top = x > top ? x : top;
    }
    top = block_max(top, scratch);
    if (top == -INFINITY) continue;  // the whole block
    float sum = 0;
    for (std::int64_t t = thread_index(); t < s.keys; t += kThreads) sum += expf(score(t) - top);
    sum = block_sum(sum, scratch);
    for (std::int64_t t = thread_index(); t < s.keys; t += kThreads) own[t] += expf(score(t) - top) / sum;
  }
}

struct LossRows {
  const float *scores, *shares;
  const std::int32_t* chosen;
  std::int64_t rows, keys;

  GPU_FUNCTION float score(std::int64_t row, std::int64_t t) const {
    const std::int32_t* const words = chosen == nullptr ? nullptr : chosen + row * words_of_keys(keys);
    return is_chosen(words, t) ? scores[row * keys + t] : -INFINITY;
  }
};

// The sums that a row is divided by.
struct RowSums {
  float top, predicted, shares;
};

GPU_FUNCTION RowSums sums_of(const LossRows& r, std::int64_t row, float* scratch) {
  float top = -INFINITY, predicted = 0, shares = 0;
  for (std::int64_t t = thread_index(); t < r.keys; t += kThreads) {
    const float x = r.score(row, t);
    top = x > top ? x : top;
    shares += r.shares[row * r.keys + t];
  }
  top = block_max(top, scratch);
  for (std::int64_t t = thread_index(); top != -INFINITY && t < r.keys; t += kThreads)
    predicted += expf(r.score(row, t) - top);
  predicted = block_sum(predicted, scratch);
  return {top, predicted, block_sum(shares, scratch) + kIndexLossEpsilon};
}

GPU_KERNEL loss_of_rows(LossRows r, float* losses) {
  GPU_SHARED(float, scratch, kWarps);
  const std::int64_t row = block_index();
  const RowSums sums = sums_of(r, row, scratch);
  float loss = 0;
  for (std::int64_t t = thread_index(); sums.top != -INFINITY && t < r.keys; t += kThreads) {
    const float p = r.shares[row * r.keys + t] / sums.shares,
                c = expf(r.score(row, t) - sums.top) / sums.predicted;
    loss += p * (logf(p + kIndexLossEpsilon) - logf(c + kIndexLossEpsilon));
  }
  loss = block_sum(loss, scratch);
  if (thread_index() == 0) losses[row] = loss;
}

// One block.
GPU_KERNEL sum_losses(const float* losses, std::int64_t rows, double factor, float* loss) {
  GPU_SHARED(double, scratch, kWarps);
  double sum = 0;
  for (std::int64_t i = thread_index(); i < rows; i += kThreads) sum += static_cast<double>(losses[i]);
  sum = block_sum(sum, scratch);
  if (thread_index() == 0) *loss = static_cast<float>(sum * factor);
}

GPU_KERNEL gradients_of_rows(LossRows r, const float* gradient, float factor, float* dscores) {
  GPU_SHARED(float, scratch, kWarps);
  const std::int64_t row = block_index();
  const RowSums sums = sums_of(r, row, scratch);
  const auto predicted = [&](std::int64_t t) {
    return sums.top == -INFINITY ? 0.0f : expf(r.score(row, t) - sums.top) / sums.predicted;
  };
  const auto slope = [&](std::int64_t t, float c) {
    return -(r.shares[row * r.keys + t] / sums.shares) / (c + kIndexLossEpsilon);
  };
  float mean = 0;
  for (std::int64_t t = thread_index(); t < r.keys; t += kThreads) {
    const float c = predicted(t);
    mean += c * slope(t, c);
  }
  mean = block_sum(mean, scratch);
  for (std::int64_t t = thread_index(); t < r.keys; t += kThreads) {
    const float c = predicted(t);
    dscores[row * r.keys + t] = *gradient * factor * c * (slope(t, c) - mean);
  }
}

LossRows rows_of(const TensorView& scores, const TensorView& shares, const TensorView& chosen) {
  const std::int64_t keys = scores.shape().back();
  return {scores.device_data<float>(), shares.device_data<float>(), chosen.device_data<std::int32_t>(),
          keys == 0 ? 0 : scores.size() / keys, keys};
}

}  // namespace

void head_shares(const HeadSharesArgs& a) {
  const IndexSizes s = index_sizes(a);
  with_float_type(a.q.dtype(), [&]<typename T>(T) {
    launch({.blocks = s.batch * s.queries, .threads = kThreads}, sum_head_shares<T>, s, seen_keys(a),
           a.q.device_data<T>(), a.k.device_data<T>(), a.chosen.device_data<std::int32_t>(), a.scale,
           a.shares.device_data<float>());
  });
}

void index_loss(const IndexLossArgs& a) {
  const LossRows rows = rows_of(a.scores, a.shares, a.chosen);
  const Workspace losses(a.scores, static_cast<std::size_t>(rows.rows) * sizeof(float));
  launch({.blocks = rows.rows, .threads = kThreads}, loss_of_rows, rows, losses.data<float>());
  launch({.blocks = 1, .threads = kThreads}, sum_losses, losses.data<float>(), rows.rows, a.factor,
         a.loss.device_data<float>());
}

void index_loss_backward(const IndexLossBackwardArgs& a) {
  const LossRows rows = rows_of(a.scores, a.shares, a.chosen);
  launch({.blocks = rows.rows, .threads = kThreads}, gradients_of_rows, rows, a.gradient.device_data<float>(),
         static_cast<float>(a.factor), a.dscores.device_data<float>());
}

}  // namespace switchyard::gpu
