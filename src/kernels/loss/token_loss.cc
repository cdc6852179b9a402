#include "kernels/loss/token_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loss/kernels.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTokensAtOnce = 512;

double weight_of(const auto& args, std::int64_t row) {
  return args.weights.defined() ? static_cast<double>(args.weights.template kernel_data<float>()[row]) : 1.0;
}

double count_of(const auto& args) {
  return args.count_there.defined() ? *args.count_there.template kernel_data<double>() : args.count;
}

void combine(ThreadPool& pool, const CombineLogSumsArgs& args) {
  const std::int64_t count = args.parts.dim(0), rows = args.lse.size();
  const float* const part = args.parts.kernel_data<float>();
  float* const out = args.lse.kernel_data<float>();
  pool.for_range(rows, kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float top = -std::numeric_limits<float>::infinity();
      for (std::int64_t p = 0; p < count; ++p) top = std::max(top, part[p * rows + r]);
      double sum = 0;
      for (std::int64_t p = 0; p < count; ++p) sum += std::exp(static_cast<double>(part[p * rows + r]) - top);
      out[r] = static_cast<float>(top + std::log(sum));
    }
  });
}

void make_coefficients(ThreadPool& pool, const LossCoefficientsArgs& args) {
  const float g = args.gradient.defined() ? *args.gradient.kernel_data<float>() : 1.0f;
  const double count = count_of(args);
  const auto* const segment = args.segments.kernel_data<std::int32_t>();
  const float* const lse = args.lse.kernel_data<float>();
  float* const softmax = args.softmax_coefficient.kernel_data<float>();
  float* const target = args.target_coefficient.kernel_data<float>();
  pool.for_range(args.lse.size(), kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const double w = segment[r] != 0 ? weight_of(args, r) * (g / count) : 0.0;
      target[r] = static_cast<float>(w);
      const double z = 2 * args.z_loss_multiplier * static_cast<double>(lse[r]);
      softmax[r] = static_cast<float>(w * (1 + z));
    }
  });
}

void sum_tokens(ThreadPool&, const SumTokenLossArgs& args) {
  const auto* const segment = args.segments.kernel_data<std::int32_t>();
  const float* const lse = args.lse.kernel_data<float>();
  const float* const target = args.target_logit.kernel_data<float>();
  const double count = count_of(args);
  double loss = 0, z_loss = 0;
  for (std::int64_t r = 0; r < args.lse.size(); ++r) {
    if (segment[r] == 0) continue;
    const double l = lse[r], w = weight_of(args, r);
    loss += w * (l - static_cast<double>(target[r]));
    z_loss += w * (args.z_loss_multiplier * l * l);
  }
  *args.loss.kernel_data<float>() = static_cast<float>((loss + z_loss) / count);
  *args.z_loss.kernel_data<float>() = static_cast<float>(z_loss / count);
}

void scale_unless_one(ThreadPool& pool, const ScaleInPlaceArgs& args) {
  const float by = *args.factor.kernel_data<float>();
  if (by != 1) scale(pool, args.x, by, args.x);
}

Work combine_work(const CombineLogSumsArgs& args) {
  return {.flops = static_cast<double>(args.parts.size()),
          .bytes = static_cast<double>(args.parts.bytes() + args.lse.bytes())};
}

Work coefficients_work(const LossCoefficientsArgs& args) {
  return {.flops = 2 * static_cast<double>(args.lse.size()),
          .bytes = 4 * static_cast<double>(args.lse.bytes())};
}

Work sum_work(const SumTokenLossArgs& args) {
  return {.flops = 4 * static_cast<double>(args.lse.size()),
          .bytes = 3 * static_cast<double>(args.lse.bytes())};
}

// Counts what a step does: the gradient of its loss is 1.
Work scale_work(const ScaleInPlaceArgs& args) {
  return {.dtype = args.x.dtype(), .bytes = static_cast<double>(args.factor.bytes())};
}

constexpr Implementation<CombineLogSumsArgs> kCombines[] = {{"cuda", Gpu::any, gpu::combine_log_sums},
                                                            {"portable", Isa::ref, combine}};
constexpr Implementation<LossCoefficientsArgs> kCoefficients[] = {{"cuda", Gpu::any, gpu::loss_coefficients},
                                                                  {"portable", Isa::ref, make_coefficients}};
constexpr Implementation<SumTokenLossArgs> kSums[] = {{"cuda", Gpu::any, gpu::sum_token_loss},
                                                      {"portable", Isa::ref, sum_tokens}};
constexpr Implementation<ScaleInPlaceArgs> kScales[] = {{"cuda", Gpu::any, gpu::scale_in_place},
                                                        {"portable", Isa::ref, scale_unless_one}};
constexpr Kernel<CombineLogSumsArgs> kCombineLogSums{"combine_log_sums", combine_work,
                                                     &CombineLogSumsArgs::lse, kCombines};
constexpr Kernel<LossCoefficientsArgs> kLossCoefficients{"loss_coefficients", coefficients_work,
                                                         &LossCoefficientsArgs::lse, kCoefficients};
constexpr Kernel<SumTokenLossArgs> kSumTokenLoss{"sum_token_loss", sum_work, &SumTokenLossArgs::lse, kSums};
constexpr Kernel<ScaleInPlaceArgs> kScaleInPlace{"scale_in_place", scale_work, &ScaleInPlaceArgs::x, kScales};

void check_rows(const TensorView& x, DType dtype, std::int64_t rows, const char* op, const char* name) {
  CHECK(x.dtype() == dtype && x.size() == rows && x.is_contiguous(), "[{}] {} is {} {} for {} rows", op, name,
        name_of(x.dtype()), to_string(x.shape()), rows);
}

}  // namespace

void combine_log_sums(ThreadPool& pool, const TensorView& parts, const TensorView& lse) {
  const std::int64_t rows = lse.size();
  CHECK(parts.rank() == 2 && parts.dim(1) == rows, "[combine_log_sums] parts {} of {} rows",
        to_string(parts.shape()), rows);
  check_rows(lse, DType::f32, rows, "combine_log_sums", "lse");
  check_rows(parts, DType::f32, parts.dim(0) * rows, "combine_log_sums", "parts");
  run(pool, kCombineLogSums, {parts, lse});
}

void loss_coefficients(ThreadPool& pool, const LossCoefficientsArgs& args) {
  const std::int64_t rows = args.lse.size();
  check_rows(args.lse, DType::f32, rows, "loss_coefficients", "lse");
  check_rows(args.segments, DType::i32, rows, "loss_coefficients", "segments");
  check_rows(args.softmax_coefficient, DType::f32, rows, "loss_coefficients", "softmax_coefficient");
  check_rows(args.target_coefficient, DType::f32, rows, "loss_coefficients", "target_coefficient");
  if (args.weights.defined()) check_rows(args.weights, DType::f32, rows, "loss_coefficients", "weights");
  if (args.gradient.defined())
    check_rows(args.gradient, DType::f32, 1, "loss_coefficients", "the gradient of the loss");
  if (args.count_there.defined())
    check_rows(args.count_there, DType::f64, 1, "loss_coefficients", "the count");
  run(pool, kLossCoefficients, args);
}

void sum_token_loss(ThreadPool& pool, const SumTokenLossArgs& args) {
  const std::int64_t rows = args.lse.size();
  check_rows(args.lse, DType::f32, rows, "sum_token_loss", "lse");
  check_rows(args.target_logit, DType::f32, rows, "sum_token_loss", "target_logit");
  check_rows(args.segments, DType::i32, rows, "sum_token_loss", "segments");
  if (args.weights.defined()) check_rows(args.weights, DType::f32, rows, "sum_token_loss", "weights");
  check_rows(args.loss, DType::f32, 1, "sum_token_loss", "loss");
  check_rows(args.z_loss, DType::f32, 1, "sum_token_loss", "z_loss");
  if (args.count_there.defined()) check_rows(args.count_there, DType::f64, 1, "sum_token_loss", "the count");
  run(pool, kSumTokenLoss, args);
}

void scale_in_place(ThreadPool& pool, const TensorView& x, const TensorView& factor) {
  check_rows(factor, DType::f32, 1, "scale_in_place", "factor");
  run(pool, kScaleInPlace, {x, factor});
}

}  // namespace switchyard
