// Measures grouped matrix products of the up projection, [T·K, M] x [E, M, H], and the two gradients.
#include <algorithm>
#include <numeric>

#include "bench/cases.h"
#include "bench/moe_shapes.h"
#include "bench/random_tensor.h"
#include "kernels/product/grouped_matmul.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kGmmDirections{"fwd", "dlhs", "drhs"};

struct GmmCall {
  MoeShape shape;
  std::string skew, direction;
  DType dtype;
};

// Elements of the rows, of the outputs, and of the weights that this product reads or writes: a gradient is
// written for every expert, weights are read of those with rows only.
double compulsory_elements(const GmmCall& call, std::span<const std::int64_t> sizes) {
  const auto r = static_cast<double>(call.shape.rows()), m = static_cast<double>(call.shape.emb),
             h = static_cast<double>(call.shape.mlp), e = static_cast<double>(call.shape.experts);
  const auto used = static_cast<double>(
      std::count_if(sizes.begin(), sizes.end(), [](std::int64_t size) { return size > 0; }));
  return r * m + r * h + (call.direction == "drhs" ? e : used) * m * h;
}

Measurement measure_gmm(Bench& bench, const GmmCall& call) {
  const MoeShape& s = call.shape;
  const bool forward = call.direction == "fwd", dlhs = call.direction == "dlhs";
  const std::vector<std::int64_t> sizes = rows_of_experts(s, call.skew);
  const std::vector<std::int32_t> counts(sizes.begin(), sizes.end());
  const Tensor group_sizes = to_device(bench.memory, Tensor::of<std::int32_t>({s.experts}, counts));
  const TensorView groups = group_sizes.view();
  // Fills the operands with random numbers; the result is zeros.
  const auto make = [&](const Shape& shape, bool result, std::uint32_t seed) {
    return result ? bench.memory.zeros(call.dtype, shape) : random_tensor(bench, call.dtype, shape, seed);
  };
  const Tensor rows = make({s.rows(), s.emb}, dlhs, 1);
  const Tensor weights = make({s.experts, s.emb, s.mlp}, !forward && !dlhs, 2);
  const Tensor outputs = make({s.rows(), s.mlp}, forward, 3);
  Measurement m;
  m.name = "gmm";
  m.shape = shape_json(s, call.skew);
  m.dtype = call.dtype;
  m.threads = bench.pool.threads();
  m.direction = call.direction;
  m.flops = 2.0 * static_cast<double>(s.rows()) * static_cast<double>(s.emb) * static_cast<double>(s.mlp);
  m.bytes = compulsory_elements(call, sizes) * static_cast<double>(size_of(call.dtype));
  m.time = time_rounds(bench, [&] {
    if (forward)
      gmm(bench.pool, {.lhs = rows.view(),
                       .rhs = weights.view(),
                       .bias = {},
                       .group_sizes = groups,
                       .out = outputs.view()});
    else if (dlhs)
      gmm_dlhs(bench.pool, {outputs.view(), weights.view(), groups, rows.view()});
    else
      gmm_drhs(bench.pool, {rows.view(), outputs.view(), groups, weights.view()});
  });
  return m;
}

}  // namespace

std::vector<Key> gmm_keys() {
  std::vector<Key> keys = moe_shape_keys("all");
  keys.push_back({"direction", "all", "fwd, dlhs, drhs; or all"});
  keys.push_back({"dtype", "bf16", "bf16 or f32"});
  return keys;
}

std::vector<Job> gmm_jobs(const Keys& keys) {
  std::vector<Job> jobs;
  const DType dtype = parse_float_dtype(keys.text("dtype"), "dtype");
  for (const MoeShape& shape : moe_shapes(keys)) {
    const auto r = static_cast<double>(shape.rows()), m = static_cast<double>(shape.emb),
               h = static_cast<double>(shape.mlp), e = static_cast<double>(shape.experts);
    const double bytes = (r * m + r * h + e * m * h) * static_cast<double>(size_of(dtype));
    for (const auto& skew : skews(keys)) {
      for (const auto& direction : keys.words("direction", kGmmDirections)) {
        const GmmCall call{shape, skew, direction, dtype};
        jobs.push_back({"gmm " + direction + " " + shape_json(shape, skew).dump(), bytes,
                        [call](Bench& bench) { return std::vector{measure_gmm(bench, call)}; }});
      }
    }
  }
  return jobs;
}

}  // namespace switchyard::bench
