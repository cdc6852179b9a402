// A thread takes a token; the loss is one block's sum.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/loss/kernels.h"

namespace switchyard::gpu {
namespace {

// The number that sums are divided by: `there`, unless that is null.
struct Count {
  double here;
  const double* there;

  template <typename Args>
  static Count of(const Args& args) {
    return {args.count,
            args.count_there.defined() ? args.count_there.template device_data<double>() : nullptr};
  }
  GPU_FUNCTION double value() const { return there == nullptr ? here : *there; }
};

GPU_FUNCTION double weight_of(const float* weights, std::int64_t row) {
  return weights == nullptr ? 1.0 : static_cast<double>(weights[row]);
}

GPU_KERNEL combine_parts(const float* parts, std::int64_t count, std::int64_t rows, float* lse) {
  const std::int64_t row = thread_of_grid();
  if (row >= rows) return;
  float top = -INFINITY;
  for (std::int64_t p = 0; p < count; ++p) top = fmaxf(top, parts[p * rows + row]);
  double sum = 0;
  for (std::int64_t p = 0; p < count; ++p)
    sum += exp(static_cast<double>(parts[p * rows + row]) - static_cast<double>(top));
  lse[row] = static_cast<float>(static_cast<double>(top) + log(sum));
}

GPU_KERNEL make_coefficients(const float* lse, const std::int32_t* segments, const float* weights,
                             const float* gradient, float* softmax, float* target, std::int64_t rows,
                             Count count, double z_loss_multiplier) {
  const std::int64_t row = thread_of_grid();
  if (row >= rows) return;
  const double g = gradient == nullptr ? 1.0 : static_cast<double>(*gradient);
  const double w = segments[row] != 0 ? weight_of(weights, row) * (g / count.value()) : 0.0;
  target[row] = static_cast<float>(w);
  softmax[row] = static_cast<float>(w * (1 + 2 * z_loss_multiplier * static_cast<double>(lse[row])));
}

constexpr int kLossThreads = 1024;

GPU_KERNEL sum_tokens(const float* lse, const float* target_logit, const std::int32_t* segments,
                      const float* weights, std::int64_t rows, Count count, double z_loss_multiplier,
                      float* loss, float* z_loss) {
  GPU_SHARED(double, scratch, kLossThreads / kWarp);
  double entropy = 0, z = 0;
  for (std::int64_t row = thread_index(); row < rows; row += kLossThreads) {
    if (segments[row] == 0) continue;
    const double l = static_cast<double>(lse[row]), w = weight_of(weights, row);
    entropy += w * (l - static_cast<double>(target_logit[row]));
    z += w * (z_loss_multiplier * l * l);
  }
  entropy = block_sum(entropy, scratch);
  z = block_sum(z, scratch);
  if (thread_index() != 0) return;
  *loss = static_cast<float>((entropy + z) / count.value());
  *z_loss = static_cast<float>(z / count.value());
}

template <typename T, int width>
GPU_KERNEL scale_by(T* x, const float* factor, std::int64_t count) {
  const float by = *factor;
  const std::int64_t first = thread_of_grid() * width;
  if (by == 1.0f || first >= count) return;
  float values[width];
  load_floats<width>(x + first, values);
  for (int i = 0; i < width; ++i) values[i] *= by;
  store_floats<width>(values, x + first);
}

}  // namespace

void combine_log_sums(const CombineLogSumsArgs& args) {
  const TensorView &parts = args.parts, &lse = args.lse;
  launch(threads_for(lse.size()), combine_parts, parts.device_data<float>(), parts.dim(0), lse.size(),
         lse.device_data<float>());
}

void loss_coefficients(const LossCoefficientsArgs& args) {
  launch(threads_for(args.lse.size()), make_coefficients, args.lse.device_data<float>(),
         args.segments.device_data<std::int32_t>(), args.weights.device_data<float>(),
         args.gradient.device_data<float>(), args.softmax_coefficient.device_data<float>(),
         args.target_coefficient.device_data<float>(), args.lse.size(), Count::of(args),
         args.z_loss_multiplier);
}

void sum_token_loss(const SumTokenLossArgs& args) {
  launch({.blocks = 1, .threads = kLossThreads}, sum_tokens, args.lse.device_data<float>(),
         args.target_logit.device_data<float>(), args.segments.device_data<std::int32_t>(),
         args.weights.device_data<float>(), args.lse.size(), Count::of(args), args.z_loss_multiplier,
         args.loss.device_data<float>(), args.z_loss.device_data<float>());
}

void scale_in_place(const ScaleInPlaceArgs& args) {
  const TensorView &x = args.x, &factor = args.factor;
  with_float_type(x.dtype(), [&]<typename T>(T) {
    T* const data = x.device_data<T>();
    with_width<T>(x.size() % kWide<T> == 0 && are_wide({data}), [&](auto width) {
      launch(threads_for(x.size() / width.value), scale_by<T, width.value>, data, factor.device_data<float>(),
             x.size());
    });
  });
}

}  // namespace switchyard::gpu
