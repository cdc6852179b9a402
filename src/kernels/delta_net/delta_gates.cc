#include "kernels/delta_net/delta_gates.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/pointwise/float_elements.h"

namespace switchyard {
namespace {

constexpr std::int64_t kRowsOfGates = 64;  // that a thread takes, and that a partial sum is of

// log(1 + e^x) without overflow.
float softplus(float x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
float logistic(float x) {
  return 1 / (1 + std::exp(-x));
}

// The number of rows.
std::int64_t check_gates(const char* op, const DeltaGatesArgs& x) {
  const std::int64_t heads = x.a.shape().back();
  CHECK(is_float(x.a.dtype()) && x.b.dtype() == x.a.dtype() && x.b.shape() == x.a.shape() &&
            x.a.is_contiguous() && x.b.is_contiguous(),
        "[{}] a {} of {}, b {} of {}", op, to_string(x.a.shape()), name_of(x.a.dtype()),
        to_string(x.b.shape()), name_of(x.b.dtype()));
  for (const TensorView* y : {&x.rate, &x.bias})
    CHECK(y->dtype() == DType::f32 && y->shape() == Shape{heads} && y->is_contiguous(),
          "[{}] {} of {} for {} heads", op, to_string(y->shape()), name_of(y->dtype()), heads);
  for (const TensorView* y : {&x.g, &x.beta})
    CHECK(y->dtype() == DType::f32 && y->shape() == x.a.shape() && y->is_contiguous(), "[{}] {} of {} for {}",
          op, to_string(y->shape()), name_of(y->dtype()), to_string(x.a.shape()));
  return heads == 0 ? 0 : x.a.size() / heads;
}

}  // namespace

void delta_gates(ThreadPool& pool, const DeltaGatesArgs& x) {
  constexpr const char* kOp = "delta_gates";
  const std::int64_t rows = check_gates(kOp, x), heads = x.a.shape().back();
  if (pool.skips({kOp, x.a.dtype(), 30 * static_cast<double>(x.a.size()),
                  2 * static_cast<double>(x.a.bytes() + x.g.bytes())}))
    return;
  if (x.a.on_gpu()) return gpu::delta_gates(x);
  const float *const rate = x.rate.kernel_data<float>(), *const bias = x.bias.kernel_data<float>();
  float *const g = x.g.kernel_data<float>(), *const beta = x.beta.kernel_data<float>();
  with_elements(x.a.dtype(), [&]<typename T>(T) {
    const T *const a = x.a.kernel_data<T>(), *const b = x.b.kernel_data<T>();
    pool.for_range(rows, kRowsOfGates, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * heads; i < end * heads; ++i) {
        const std::int64_t h = i % heads;
        g[i] = -std::exp(rate[h]) * softplus(static_cast<float>(a[i]) + bias[h]);
        beta[i] = logistic(static_cast<float>(b[i]));
      }
    });
  });
}

void delta_gates_backward(ThreadPool& pool, const DeltaGatesBackwardArgs& args) {
  constexpr const char* kOp = "delta_gates_backward";
  const DeltaGatesArgs& x = args.forward;
  const std::int64_t rows = check_gates(kOp, x), heads = x.a.shape().back();
  for (const TensorView* y : {&args.dg, &args.dbeta})
    CHECK(y->dtype() == DType::f32 && y->shape() == x.a.shape() && y->is_contiguous(), "[{}] {} of {} for {}",
          kOp, to_string(y->shape()), name_of(y->dtype()), to_string(x.a.shape()));
  for (const TensorView* y : {&args.da, &args.db})
    CHECK(y->dtype() == x.a.dtype() && y->shape() == x.a.shape() && y->is_contiguous(),
          "[{}] {} of {} for {}", kOp, to_string(y->shape()), name_of(y->dtype()), to_string(x.a.shape()));
  for (const TensorView* y : {&args.drate, &args.dbias})
    CHECK(y->dtype() == DType::f32 && y->shape() == Shape{heads} && y->is_contiguous(),
          "[{}] {} of {} for {} heads", kOp, to_string(y->shape()), name_of(y->dtype()), heads);
  if (pool.skips({kOp, x.a.dtype(), 30 * static_cast<double>(x.a.size()),
                  3 * static_cast<double>(x.a.bytes() + x.g.bytes())}))
    return;
  if (x.a.on_gpu()) return gpu::delta_gates_backward(args);
  const float *const rate = x.rate.kernel_data<float>(), *const bias = x.bias.kernel_data<float>();
  const float *const g = x.g.kernel_data<float>(), *const beta = x.beta.kernel_data<float>();
  const float *const dg = args.dg.kernel_data<float>(), *const dbeta = args.dbeta.kernel_data<float>();
  float *const drate = args.drate.kernel_data<float>(), *const dbias = args.dbias.kernel_data<float>();
  const std::int64_t pieces = (rows + kRowsOfGates - 1) / kRowsOfGates;
  std::vector<float> partial(static_cast<std::size_t>(2 * pieces * heads));  // of drate, then dbias, a piece
  with_elements(x.a.dtype(), [&]<typename T>(T) {
    const T* const a = x.a.kernel_data<T>();
    T *const da = args.da.kernel_data<T>(), *const db = args.db.kernel_data<T>();
    pool.for_range(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        float* const sums = partial.data() + 2 * piece * heads;
        const std::int64_t last = std::min(rows, (piece + 1) * kRowsOfGates) * heads;
        for (std::int64_t i = piece * kRowsOfGates * heads; i < last; ++i) {
          const std::int64_t h = i % heads;
          const float to_a = -dg[i] * std::exp(rate[h]) * logistic(static_cast<float>(a[i]) + bias[h]);
          da[i] = static_cast<T>(to_a);
          db[i] = static_cast<T>(dbeta[i] * beta[i] * (1 - beta[i]));
          sums[h] += dg[i] * g[i];
          sums[heads + h] += to_a;
        }
      }
    });
  });
  std::fill(drate, drate + heads, 0.0f);
  std::fill(dbias, dbias + heads, 0.0f);
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    for (std::int64_t h = 0; h < heads; ++h) {
      drate[h] += partial[static_cast<std::size_t>(2 * piece * heads + h)];
      dbias[h] += partial[static_cast<std::size_t>((2 * piece + 1) * heads + h)];
    }
  }
}

}  // namespace switchyard
