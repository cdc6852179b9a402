#include "kernels/weight_update.h"

#include "core/error.h"
#include "kernels/gpu/kernels.h"
#include "kernels/simd_list.h"
#include "kernels/weight_update_problem.h"

namespace switchyard {
namespace {

template <typename Problem>
using UpdateList = Implementation<UpdateKernel<Problem>, Problem>;

constexpr UpdateList<AdamProblem> kAdam[] = {SWITCHYARD_SIMD_LIST(adam)};
constexpr UpdateList<DescentProblem> kDescent[] = {SWITCHYARD_SIMD_LIST(descent)};
constexpr UpdateList<MomentumProblem> kMomentum[] = {SWITCHYARD_SIMD_LIST(momentum)};
constexpr UpdateList<DirectionProblem> kDirection[] = {SWITCHYARD_SIMD_LIST(direction)};

double bytes_of(DType dtype) {
  return static_cast<double>(size_of(dtype));
}

// Work of `flops` and `bytes` an element; `on_gpu()` does it where `updated` is a GPU's.
template <typename Problem, std::size_t kinds, typename OnGpu>
double run(ThreadPool& pool, const char* op, const UpdateList<Problem> (&list)[kinds], const Problem& problem,
           const TensorView& updated, double flops, double bytes, const OnGpu& on_gpu) {
  const auto elements = static_cast<double>(updated.size());
  if (pool.skips({op, updated.dtype(), flops * elements, bytes * elements})) return 0;
  if (updated.on_gpu()) return on_gpu();
  UpdateKernel<Problem>* const kernel = choose(op, list, problem);
  return sum_pieces(pool, updated.size(), [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
    kernel(problem, begin, end, squares);
  });
}

FlatArray flat(const char* op, const TensorView& x, std::int64_t count) {
  CHECK(is_float(x.dtype()) && x.size() == count && x.is_contiguous(), "[{}] {} of {} beside {} elements", op,
        x.size(), name_of(x.dtype()), count);
  return {x.dtype(), x.device_address()};
}
ConstFlatArray constant(const char* op, const TensorView& x, std::int64_t count) {
  const FlatArray array = flat(op, x, count);
  return {array.dtype, array.data};
}

}  // namespace

double adam_update(ThreadPool& pool, const AdamTerms& terms, const AdamArrays& arrays) {
  const auto& [weight, grad, mu, nu] = arrays;
  const std::int64_t n = weight.size();
  const double bytes =
      2 * (bytes_of(weight.dtype()) + bytes_of(mu.dtype()) + bytes_of(nu.dtype())) + bytes_of(grad.dtype());
  return run(
      pool, "adam", kAdam,
      {terms, flat("adam", weight, n), constant("adam", grad, n), flat("adam", mu, n), flat("adam", nu, n)},
      weight, 16, bytes, [&] { return gpu::adam_update(terms, arrays); });
}

double descent_update(ThreadPool& pool, float rate, float grad_scale, const TensorView& weight,
                      const TensorView& grad) {
  const std::int64_t n = weight.size();
  return run(pool, "sgd", kDescent, {rate, grad_scale, flat("sgd", weight, n), constant("sgd", grad, n)},
             weight, 5, 2 * bytes_of(weight.dtype()) + bytes_of(grad.dtype()),
             [&] { return gpu::descent_update(rate, grad_scale, weight, grad); });
}

void momentum_update(ThreadPool& pool, const MomentumTerms& terms, const TensorView& grad,
                     const TensorView& momentum, const TensorView& direction) {
  const std::int64_t n = momentum.size();
  CHECK(direction.size() == n && direction.is_contiguous(), "[momentum] {} directions for {}",
        direction.size(), n);
  run(pool, "momentum", kMomentum,
      {terms, constant("momentum", grad, n), flat("momentum", momentum, n), direction.device_data<float>()},
      momentum, 7, 4 + 2 * bytes_of(momentum.dtype()) + bytes_of(grad.dtype()), [&] {
        gpu::momentum_update(terms, grad, momentum, direction);
        return 0.0;
      });
}

double direction_update(ThreadPool& pool, float rate, float shrink, const TensorView& direction,
                        const TensorView& weight) {
  const std::int64_t n = weight.size();
  CHECK(direction.size() == n && direction.is_contiguous(), "[direction] {} directions for {}",
        direction.size(), n);
  return run(pool, "direction", kDirection,
             {rate, shrink, direction.device_data<float>(), flat("direction", weight, n)}, weight, 6,
             4 + 2 * bytes_of(weight.dtype()),
             [&] { return gpu::direction_update(rate, shrink, direction, weight); });
}

}  // namespace switchyard
