// Projection and cross-entropy: gemm makes the logits of some rows in float32, a block of threads sums a
// row's exponentials, and the gradient of a row's logits takes the logits' place,
// rounded to the operands' type.
#include "kernels/cuda/launch_pool.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/gemm.h"

namespace switchyard::gpu {
namespace {

constexpr int kCrossEntropyThreads = 256;
constexpr int kQuad = 4;

void gemm(const GemmArgs& args) {
  LaunchPool pool;
  switchyard::gemm(pool, args);
}

// Logits of some rows: where they are, and what is done with each.
struct Logits {
  float* at;
  std::int64_t columns, leading;
  const std::int32_t* targets;
  std::int64_t first_id;  // the target that column 0 is
  float soft_cap;

  GPU_FUNCTION float capped(float x) const { return soft_cap > 0 ? soft_cap * tanhf(x / soft_cap) : x; }
  // The row's target as a column, or -1.
  GPU_FUNCTION std::int64_t target(std::int64_t row) const {
    const std::int64_t column = targets[row] - first_id;
    return column >= 0 && column < columns ? column : -1;
  }
};

// The sum of two sums' terms.
GPU_FUNCTION RowSum joined(const RowSum& x, const RowSum& y) {
  if (!(x.maximum > -INFINITY)) return y;
  if (!(y.maximum > -INFINITY)) return x;
  const float maximum = fmaxf(x.maximum, y.maximum);
  return {maximum, x.sum * expf(x.maximum - maximum) + y.sum * expf(y.maximum - maximum)};
}

// The quad of a row that begins at `column`; -inf where the row has ended.
GPU_FUNCTION void load_quad(const Logits& logits, const float* row, std::int64_t column, float* to) {
  if (column + kQuad <= logits.columns) {
    load_floats<kQuad>(row + column, to);
  } else {
    for (int i = 0; i < kQuad; ++i) to[i] = column + i < logits.columns ? row[column + i] : -INFINITY;
  }
}

// A block a row.
GPU_KERNEL sum_logits(Logits logits, float* lse, float* target_logit) {
  GPU_SHARED(RowSum, scratch, kCrossEntropyThreads / kWarp);
  const std::int64_t row = block_index();
  const float* const x = logits.at + row * logits.leading;
  RowSum sum{-INFINITY, 0};
  for (std::int64_t column = static_cast<std::int64_t>(thread_index()) * kQuad; column < logits.columns;
       column += static_cast<std::int64_t>(kCrossEntropyThreads) * kQuad) {
    float values[kQuad];
    load_quad(logits, x, column, values);
    float maximum = sum.maximum;
    for (int i = 0; i < kQuad; ++i) {
      if (column + i < logits.columns) values[i] = logits.capped(values[i]);
      maximum = fmaxf(maximum, values[i]);
    }
    float total = 0;
    for (int i = 0; i < kQuad; ++i) total += expf(values[i] - maximum);
    sum = joined(sum, {maximum, total});
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    sum = joined(sum, {shuffle_xor(sum.maximum, mask), shuffle_xor(sum.sum, mask)});
  if (thread_index() % kWarp == 0) scratch[thread_index() / kWarp] = sum;
  barrier();
  if (thread_index() != 0) return;
  for (int i = 1; i < kCrossEntropyThreads / kWarp; ++i) sum = joined(sum, scratch[i]);
  lse[row] = sum.maximum + logf(sum.sum);
  const std::int64_t target = logits.target(row);
  target_logit[row] = target >= 0 ? logits.capped(x[target]) : 0;
}

// A block a row. Gradients of type T are neighbours from where the row of logits began.
template <typename T>
GPU_KERNEL make_gradients(Logits logits, const float* lse, const float* softmax_coefficient,
                          const float* target_coefficient) {
  const std::int64_t row = block_index(), target = logits.target(row);
  float* const x = logits.at + row * logits.leading;
  T* const out = reinterpret_cast<T*>(x);
  const float of_softmax = softmax_coefficient[row], of_target = target_coefficient[row], log_sum = lse[row];
  for (std::int64_t first = 0; first < logits.columns;
       first += static_cast<std::int64_t>(kCrossEntropyThreads) * kQuad) {
    const std::int64_t column = first + static_cast<std::int64_t>(thread_index()) * kQuad;
    float values[kQuad];
    load_quad(logits, x, column, values);
    for (int i = 0; i < kQuad; ++i) {
      const float of_cap = logits.soft_cap > 0 ? tanhf(values[i] / logits.soft_cap) : 0;
      const float logit = logits.soft_cap > 0 ? logits.soft_cap * of_cap : values[i];
      const float gradient = of_softmax * expf(logit - log_sum) - (column + i == target ? of_target : 0.0f);
      values[i] = gradient * (1.0f - of_cap * of_cap);
    }
    // Narrower gradients take the place of logits that other threads read.
    if constexpr (sizeof(T) < sizeof(float)) barrier();
    if (column + kQuad <= logits.columns) {
      store_floats<kQuad>(values, out + column);
    } else {
      for (int i = 0; i < kQuad; ++i) {
        if (column + i < logits.columns) out[column + i] = from_float<T>(values[i]);
      }
    }
  }
}

class Loss {
 public:
  Loss(const CrossEntropyLogits& args, std::int64_t rows_at_once)
      : args_(args),
        rows_(args.targets.size()),
        emb_(args.hidden.shape().back()),
        columns_(local_columns(args)),
        leading_(divide_up(columns_, kAligned) * kAligned),
        rows_at_once_(rows_at_once),
        hidden_(args.hidden.reshaped({rows_, emb_})),
        workspace_(args.hidden,
                   static_cast<std::size_t>(std::min(rows_, rows_at_once_) * leading_) * sizeof(float)) {}

  // Calls body(begin, end) for blocks of rows, when their logits are made.
  template <typename Body>
  void for_blocks(const Body& body) const {
    for (std::int64_t begin = 0; begin < rows_; begin += rows_at_once_) {
      const std::int64_t end = std::min(rows_, begin + rows_at_once_);
      if (columns_ > 0)
        gemm({.a = hidden_.rows(begin, end),
              .b = args_.weight,
              .c = matrix(DType::f32, end - begin),
              .transpose_b = args_.weight_vocab_major});
      body(begin, end);
    }
  }

  void sum(std::int64_t begin, std::int64_t end, const TensorView& lse,
           const TensorView& target_logit) const {
    launch({.blocks = end - begin, .threads = kCrossEntropyThreads}, sum_logits, logits(begin),
           lse.device_data<float>() + begin, target_logit.device_data<float>() + begin);
  }

  // The gradients of the block's logits, of hidden, and of what the block adds to the weight's.
  void differentiate(std::int64_t begin, std::int64_t end, const LinearCrossEntropyBackwardArgs& to,
                     const TensorView& dweight) const {
    with_float_type(hidden_.dtype(), [&]<typename T>(T) {
      launch({.blocks = columns_ > 0 ? end - begin : 0, .threads = kCrossEntropyThreads}, make_gradients<T>,
             logits(begin), to.lse.device_data<float>() + begin,
             to.softmax_coefficient.device_data<float>() + begin,
             to.target_coefficient.device_data<float>() + begin);
    });
    const TensorView gradient = matrix(hidden_.dtype(), end - begin);
    gemm({.a = gradient,
          .b = args_.weight,
          .c = to.dhidden.reshaped({rows_, emb_}).rows(begin, end),
          .transpose_b = !args_.weight_vocab_major});
    add_to_weight(begin, end, dweight);
  }

  // Calls body(dweight) with where the blocks are to be added up, and leaves their sum in to.dweight.
  template <typename Body>
  void with_weight_gradient(const TensorView& dweight, const Body& body) const {
    if (!dweight.defined()) return body(dweight);
    if (rows_ == 0) return add_to_weight(0, 0, dweight);
    if (rows_ <= rows_at_once_ || dweight.dtype() == DType::f32) return body(dweight);
    const Workspace sums(dweight, static_cast<std::size_t>(dweight.size()) * sizeof(float));
    const TensorView wide = sums.view(DType::f32, dweight.shape());
    body(wide);
    LaunchPool pool;
    convert(pool, wide, dweight);
  }

 private:
  static constexpr std::int64_t kAligned = 32;

  Logits logits(std::int64_t begin) const {
    return {workspace_.data<float>(),
            columns_,
            leading_,
            args_.targets.device_data<std::int32_t>() + begin,
            args_.vocab_begin,
            args_.logit_soft_cap};
  }

  // The logits, or their gradients in a narrower type in the same rows.
  TensorView matrix(DType dtype, std::int64_t rows) const {
    const std::int64_t leading =
        leading_ * static_cast<std::int64_t>(sizeof(float)) / static_cast<std::int64_t>(size_of(dtype));
    return workspace_.view(dtype, {rows * leading}).block(0, {rows, columns_}, {leading, 1});
  }

  void add_to_weight(std::int64_t begin, std::int64_t end, const TensorView& dweight) const {
    const TensorView gradient = matrix(hidden_.dtype(), end - begin), hidden = hidden_.rows(begin, end);
    if (!dweight.defined() || dweight.size() == 0) return;
    gemm({.a = args_.weight_vocab_major ? gradient : hidden,
          .b = args_.weight_vocab_major ? hidden : gradient,
          .c = dweight,
          .transpose_a = true,
          .accumulate = begin > 0});
  }

  const CrossEntropyLogits& args_;
  const std::int64_t rows_, emb_, columns_, leading_, rows_at_once_;
  const TensorView hidden_;
  const Workspace workspace_;
};

}  // namespace

void linear_cross_entropy(const LinearCrossEntropyArgs& args) {
  const Loss loss(args.logits, loss_rows_of(local_columns(args.logits), true));
  loss.for_blocks(
      [&](std::int64_t begin, std::int64_t end) { loss.sum(begin, end, args.lse, args.target_logit); });
}

void linear_cross_entropy_backward(const LinearCrossEntropyBackwardArgs& args) {
  const Loss loss(args.logits, loss_rows_of(local_columns(args.logits), true));
  loss.with_weight_gradient(args.dweight, [&](const TensorView& dweight) {
    loss.for_blocks(
        [&](std::int64_t begin, std::int64_t end) { loss.differentiate(begin, end, args, dweight); });
  });
}

void linear_cross_entropy_with_gradients(const LossGradientsArgs& args) {
  const Loss loss(args.logits, loss_rows_at_once(args.logits));
  const LinearCrossEntropyBackwardArgs to{
      args.logits, args.lse, args.softmax_coefficient, args.target_coefficient, args.dhidden, args.dweight};
  loss.with_weight_gradient(args.dweight, [&](const TensorView& dweight) {
    loss.for_blocks([&](std::int64_t begin, std::int64_t end) {
      loss.sum(begin, end, args.lse, args.target_logit);
      args.summed(begin, end);
      loss.differentiate(begin, end, to, dweight);
    });
  });
}

}  // namespace switchyard::gpu
