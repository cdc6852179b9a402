#include "kernels/weight_update.h"

#include "core/error.h"
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

// Work of `flops` and `bytes` an element.
template <typename Problem, std::size_t kinds>
double run(ThreadPool& pool, const char* op, const UpdateList<Problem> (&list)[kinds], const Problem& problem,
           DType dtype, double flops, double bytes, std::int64_t count) {
  CHECK(count >= 0, "{} of {} elements", op, count);
  const auto elements = static_cast<double>(count);
  if (pool.skips({op, dtype, flops * elements, bytes * elements})) return 0;
  UpdateKernel<Problem>* const kernel = choose(op, list, problem);
  return sum_pieces(pool, count, [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
    kernel(problem, begin, end, squares);
  });
}

void check_types(const char* op, std::initializer_list<DType> types) {
  for (const DType dtype : types) CHECK(is_float(dtype), "{} of {}", op, name_of(dtype));
}

}  // namespace

double adam_update(ThreadPool& pool, const AdamTerms& terms, FlatArray weight, ConstFlatArray grad,
                   FlatArray mu, FlatArray nu, std::int64_t count) {
  check_types("adam", {weight.dtype, grad.dtype, mu.dtype, nu.dtype});
  const double bytes =
      2 * (bytes_of(weight.dtype) + bytes_of(mu.dtype) + bytes_of(nu.dtype)) + bytes_of(grad.dtype);
  return run(pool, "adam", kAdam, {terms, weight, grad, mu, nu}, weight.dtype, 16, bytes, count);
}

double descent_update(ThreadPool& pool, float rate, float grad_scale, FlatArray weight, ConstFlatArray grad,
                      std::int64_t count) {
  check_types("sgd", {weight.dtype, grad.dtype});
  return run(pool, "sgd", kDescent, {rate, grad_scale, weight, grad}, weight.dtype, 5,
             2 * bytes_of(weight.dtype) + bytes_of(grad.dtype), count);
}

void momentum_update(ThreadPool& pool, const MomentumTerms& terms, ConstFlatArray grad, FlatArray momentum,
                     float* direction, std::int64_t count) {
  check_types("momentum", {grad.dtype, momentum.dtype});
  run(pool, "momentum", kMomentum, {terms, grad, momentum, direction}, momentum.dtype, 7,
      4 + 2 * bytes_of(momentum.dtype) + bytes_of(grad.dtype), count);
}

double direction_update(ThreadPool& pool, float rate, float shrink, const float* direction, FlatArray weight,
                        std::int64_t count) {
  check_types("direction", {weight.dtype});
  return run(pool, "direction", kDirection, {rate, shrink, direction, weight}, weight.dtype, 6,
             4 + 2 * bytes_of(weight.dtype), count);
}

}  // namespace switchyard
