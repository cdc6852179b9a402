// Decay and strength of the gated delta rule. Sums over rows are of kRowsOfPart rows first, then of those.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/delta_net/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr std::int64_t kRowsOfPart = 64;

// log(1 + e^x) without overflow.
GPU_FUNCTION float soft_plus(float x) {
  return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
}
GPU_FUNCTION float logistic_function(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <typename T>
GPU_KERNEL make_delta_gates(const T* a, const T* b, const float* rate, const float* bias, float* g,
                            float* beta, std::int64_t count, std::int64_t heads) {
  const std::int64_t i = thread_of_grid();
  if (i >= count) return;
  const std::int64_t h = i % heads;
  g[i] = -expf(rate[h]) * soft_plus(to_float(a[i]) + bias[h]);
  beta[i] = logistic_function(to_float(b[i]));
}

template <typename T>
struct DeltaGateGradients {
  const T* a;
  const float *rate, *bias, *g, *beta, *dg, *dbeta;
  T *da, *db;
  float* sums;  // [parts, 2, heads]: of drate, then of dbias
  std::int64_t rows, heads;
};

// A thread takes a head of a part's rows.
template <typename T>
GPU_KERNEL delta_gate_gradients(DeltaGateGradients<T> p) {
  const std::int64_t i = thread_of_grid(), part = i / p.heads, h = i % p.heads, first = part * kRowsOfPart;
  if (first >= p.rows) return;
  const float rate = expf(p.rate[h]), bias = p.bias[h];
  float to_rate = 0, to_bias = 0;
  for (std::int64_t row = first; row < first + kRowsOfPart && row < p.rows; ++row) {
    const std::int64_t at = row * p.heads + h;
    const float to_a = -p.dg[at] * rate * logistic_function(to_float(p.a[at]) + bias);
    p.da[at] = from_float<T>(to_a);
    p.db[at] = from_float<T>(p.dbeta[at] * p.beta[at] * (1.0f - p.beta[at]));
    to_rate += p.dg[at] * p.g[at];
    to_bias += to_a;
  }
  p.sums[2 * part * p.heads + h] = to_rate;
  p.sums[(2 * part + 1) * p.heads + h] = to_bias;
}

// A warp takes one of 2 · heads sums.
GPU_KERNEL sum_delta_gate_parts(const float* sums, std::int64_t parts, std::int64_t heads, float* drate,
                                float* dbias) {
  const std::int64_t i = block_index();
  float sum = 0;
  for (std::int64_t part = thread_index(); part < parts; part += kWarp) sum += sums[2 * part * heads + i];
  sum = warp_sum(sum);
  if (thread_index() == 0) (i < heads ? drate[i] : dbias[i - heads]) = sum;
}

}  // namespace

void delta_gates(const DeltaGatesArgs& x) {
  with_float_type(x.a.dtype(), [&]<typename T>(T) {
    launch(threads_for(x.a.size()), make_delta_gates<T>, x.a.device_data<T>(), x.b.device_data<T>(),
           x.rate.device_data<float>(), x.bias.device_data<float>(), x.g.device_data<float>(),
           x.beta.device_data<float>(), x.a.size(), x.rate.dim(0));
  });
}

void delta_gates_backward(const DeltaGatesBackwardArgs& args) {
  const DeltaGatesArgs& x = args.forward;
  const std::int64_t heads = x.rate.dim(0), rows = heads == 0 ? 0 : x.a.size() / heads,
                     parts = divide_up(rows, kRowsOfPart);
  const Workspace sums(x.a, static_cast<std::size_t>(2 * parts * heads) * sizeof(float));
  with_float_type(x.a.dtype(), [&]<typename T>(T) {
    const DeltaGateGradients<T> gradients{.a = x.a.device_data<T>(),
                                          .rate = x.rate.device_data<float>(),
                                          .bias = x.bias.device_data<float>(),
                                          .g = x.g.device_data<float>(),
                                          .beta = x.beta.device_data<float>(),
                                          .dg = args.dg.device_data<float>(),
                                          .dbeta = args.dbeta.device_data<float>(),
                                          .da = args.da.device_data<T>(),
                                          .db = args.db.device_data<T>(),
                                          .sums = sums.data<float>(),
                                          .rows = rows,
                                          .heads = heads};
    launch(threads_for(parts * heads), delta_gate_gradients<T>, gradients);
  });
  launch({.blocks = 2 * heads, .threads = kWarp}, sum_delta_gate_parts, sums.data<float>(), parts, heads,
         args.drate.device_data<float>(), args.dbias.device_data<float>());
}

}  // namespace switchyard::gpu
