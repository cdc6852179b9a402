#include "kernels/weight_update.h"

#include <span>

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

FlatArray flat(const char* op, const TensorView& x, std::int64_t count) {
  CHECK(is_float(x.dtype()) && x.size() == count && x.is_contiguous(), "[{}] {} of {} beside {} elements", op,
        x.size(), name_of(x.dtype()), count);
  return {x.dtype(), x.device_address()};
}
ConstFlatArray constant(const char* op, const TensorView& x, std::int64_t count) {
  const FlatArray array = flat(op, x, count);
  return {array.dtype, array.data};
}
float* direction_of(const char* op, const TensorView& direction, std::int64_t count) {
  CHECK(direction.size() == count && direction.is_contiguous(), "[{}] {} directions for {}", op,
        direction.size(), count);
  return direction.device_data<float>();
}

Work work_of(const char* op, const TensorView& updated, double flops, double bytes) {
  const auto elements = static_cast<double>(updated.size());
  return {op, updated.dtype(), flops * elements, bytes * elements};
}

// Runs the problem on the CPU; the sum of squares of what it makes of `elements` elements.
template <typename Problem, std::size_t kinds>
double run(ThreadPool& pool, const char* op, const UpdateList<Problem> (&list)[kinds], const Problem& problem,
           std::int64_t elements) {
  UpdateKernel<Problem>* const kernel = choose(op, list, problem);
  return sum_pieces(pool, elements, [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
    kernel(problem, begin, end, squares);
  });
}

// All updates, each of the work that work(update) says: on_gpu() makes them where their weights are a GPU's.
template <typename Update, typename Problem, std::size_t kinds>
void run_all(ThreadPool& pool, const char* op, const UpdateList<Problem> (&list)[kinds],
             std::span<const Update> updates, const auto& work, const auto& problem, const auto& on_gpu) {
  bool skips = updates.empty();
  for (const Update& update : updates) {
    static_cast<void>(problem(update));  // its checks
    CHECK(update.squares.size() == 1 && update.squares.dtype() == DType::f64, "[{}] squares {} of {}", op,
          to_string(update.squares.shape()), name_of(update.squares.dtype()));
    skips |= pool.skips(work(update));
  }
  if (skips) return;
  if (updates[0].weight.on_gpu()) return on_gpu();
  for (const Update& update : updates)
    *update.squares.template kernel_data<double>() =
        run(pool, op, list, problem(update), update.weight.size());
}

}  // namespace

void adam_update(ThreadPool& pool, const AdamTerms& terms, std::span<const AdamArrays> updates) {
  run_all(
      pool, "adam", kAdam, updates,
      [](const AdamArrays& a) {
        const double bytes =
            2 * (bytes_of(a.weight.dtype()) + bytes_of(a.mu.dtype()) + bytes_of(a.nu.dtype()));
        return work_of("adam", a.weight, 16, bytes + bytes_of(a.grad.dtype()));
      },
      [&](const AdamArrays& a) {
        const std::int64_t n = a.weight.size();
        AdamProblem problem{terms, flat("adam", a.weight, n), constant("adam", a.grad, n),
                            flat("adam", a.mu, n), flat("adam", a.nu, n)};
        if (!a.decays) problem.terms.weight_decay = 0;
        return problem;
      },
      [&] { gpu::adam_update(terms, updates); });
}

void descent_update(ThreadPool& pool, float rate, float grad_scale, std::span<const DescentArrays> updates) {
  run_all(
      pool, "sgd", kDescent, updates,
      [](const DescentArrays& a) {
        return work_of("sgd", a.weight, 5, 2 * bytes_of(a.weight.dtype()) + bytes_of(a.grad.dtype()));
      },
      [&](const DescentArrays& a) {
        const std::int64_t n = a.weight.size();
        return DescentProblem{rate, grad_scale, flat("sgd", a.weight, n), constant("sgd", a.grad, n)};
      },
      [&] { gpu::descent_update(rate, grad_scale, updates); });
}

void momentum_update(ThreadPool& pool, const MomentumTerms& terms, const TensorView& grad,
                     const TensorView& momentum, const TensorView& direction) {
  const std::int64_t n = momentum.size();
  const MomentumProblem problem{terms, constant("momentum", grad, n), flat("momentum", momentum, n),
                                direction_of("momentum", direction, n)};
  if (pool.skips(
          work_of("momentum", momentum, 7, 4 + 2 * bytes_of(momentum.dtype()) + bytes_of(grad.dtype()))))
    return;
  if (momentum.on_gpu()) return gpu::momentum_update(terms, grad, momentum, direction);
  run(pool, "momentum", kMomentum, problem, n);
}

void direction_update(ThreadPool& pool, float rate, float shrink, const DirectionArrays& update) {
  run_all(
      pool, "direction", kDirection, std::span(&update, 1),
      [](const DirectionArrays& a) {
        return work_of("direction", a.weight, 6, 4 + 2 * bytes_of(a.weight.dtype()));
      },
      [&](const DirectionArrays& a) {
        const std::int64_t n = a.weight.size();
        return DirectionProblem{rate, shrink, direction_of("direction", a.direction, n),
                                flat("direction", a.weight, n)};
      },
      [&] { gpu::direction_update(rate, shrink, update); });
}

}  // namespace switchyard
