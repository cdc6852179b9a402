#include "kernels/delta_net/delta_gates.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "core/error.h"
#include "kernels/delta_net/kernels.h"
#include "kernels/pointwise/float_elements.h"
#include "kernels/registry/kernel.h"

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

std::int64_t rows_of(const DeltaGatesArgs& x) {
  const std::int64_t heads = x.a.shape().back();
  return heads == 0 ? 0 : x.a.size() / heads;
}

void gates(ThreadPool& pool, const DeltaGatesArgs& x) {
  const std::int64_t heads = x.a.shape().back();
  const float *const rate = x.rate.kernel_data<float>(), *const bias = x.bias.kernel_data<float>();
  float *const g = x.g.kernel_data<float>(), *const beta = x.beta.kernel_data<float>();
  with_elements(x.a.dtype(), [&]<typename T>(T) {
    const T *const a = x.a.kernel_data<T>(), *const b = x.b.kernel_data<T>();
    pool.for_range(rows_of(x), kRowsOfGates, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * heads; i < end * heads; ++i) {
        const std::int64_t h = i % heads;
        g[i] = -std::exp(rate[h]) * softplus(static_cast<float>(a[i]) + bias[h]);
        beta[i] = logistic(static_cast<float>(b[i]));
      }
    });
  });
}

void gates_backward(ThreadPool& pool, const DeltaGatesBackwardArgs& args) {
  const DeltaGatesArgs& x = args.forward;
  const std::int64_t rows = rows_of(x), heads = x.a.shape().back();
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

Work forward_work(const DeltaGatesArgs& x) {
  return {.dtype = x.a.dtype(),
          .flops = 30 * static_cast<double>(x.a.size()),
          .bytes = 2 * static_cast<double>(x.a.bytes() + x.g.bytes())};
}

Work backward_work(const DeltaGatesBackwardArgs& args) {
  const DeltaGatesArgs& x = args.forward;
  return {.dtype = x.a.dtype(),
          .flops = 30 * static_cast<double>(x.a.size()),
          .bytes = 3 * static_cast<double>(x.a.bytes() + x.g.bytes())};
}

constexpr Implementation<DeltaGatesArgs> kDeltaGatesForwards[] = {{"cuda", Gpu::any, gpu::delta_gates},
                                                                  {"portable", Isa::ref, gates}};
constexpr Implementation<DeltaGatesBackwardArgs> kDeltaGatesBackwards[] = {
    {"cuda", Gpu::any, gpu::delta_gates_backward}, {"portable", Isa::ref, gates_backward}};
constexpr Kernel<DeltaGatesArgs> kDeltaGates{"delta_gates", forward_work, &DeltaGatesArgs::a,
                                             kDeltaGatesForwards};
constexpr Kernel<DeltaGatesBackwardArgs> kDeltaGatesBackward{
    "delta_gates_backward", backward_work, &DeltaGatesBackwardArgs::dg, kDeltaGatesBackwards};

void check_gates(const char* op, const TensorView& a, DType dtype,
                 std::initializer_list<const TensorView*> like_a) {
  for (const TensorView* y : like_a)
    CHECK(y->dtype() == dtype && y->shape() == a.shape() && y->is_contiguous(), "[{}] {} of {} for {}", op,
          to_string(y->shape()), name_of(y->dtype()), to_string(a.shape()));
}

void check_heads(const char* op, const TensorView& a, std::initializer_list<const TensorView*> of_heads) {
  const std::int64_t heads = a.shape().back();
  for (const TensorView* y : of_heads)
    CHECK(y->dtype() == DType::f32 && y->shape() == Shape{heads} && y->is_contiguous(),
          "[{}] {} of {} for {} heads", op, to_string(y->shape()), name_of(y->dtype()), heads);
}

void check_forward(const char* op, const DeltaGatesArgs& x) {
  CHECK(is_float(x.a.dtype()), "[{}] a of {}", op, name_of(x.a.dtype()));
  check_gates(op, x.a, x.a.dtype(), {&x.a, &x.b});
  check_heads(op, x.a, {&x.rate, &x.bias});
  check_gates(op, x.a, DType::f32, {&x.g, &x.beta});
}

}  // namespace

void delta_gates(ThreadPool& pool, const DeltaGatesArgs& args) {
  check_forward("delta_gates", args);
  run(pool, kDeltaGates, args);
}

void delta_gates_backward(ThreadPool& pool, const DeltaGatesBackwardArgs& args) {
  constexpr const char* kOp = "delta_gates_backward";
  const TensorView& a = args.forward.a;
  check_forward(kOp, args.forward);
  check_gates(kOp, a, DType::f32, {&args.dg, &args.dbeta});
  check_gates(kOp, a, a.dtype(), {&args.da, &args.db});
  check_heads(kOp, a, {&args.drate, &args.dbias});
  run(pool, kDeltaGatesBackward, args);
}

}  // namespace switchyard
