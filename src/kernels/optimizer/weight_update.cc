#include "kernels/optimizer/weight_update.h"

#include <cstddef>
#include <cstring>
#include <span>

#include "core/error.h"
#include "kernels/optimizer/weight_update_problem.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

FlatArray flat(const TensorView& x) {
  return {x.dtype(), x.kernel_address()};
}
ConstFlatArray constant(const TensorView& x) {
  return {x.dtype(), x.kernel_address()};
}

AdamProblem problem_of(const AdamArgs& args, const AdamArrays& a) {
  AdamProblem problem{host_numbers(args.numbers).adam, flat(a.weight), constant(a.grad), flat(a.mu),
                      flat(a.nu)};
  if (!a.decays) problem.terms.weight_decay = 0;
  return problem;
}
DescentProblem problem_of(const DescentArgs& args, const DescentArrays& a) {
  const AdamTerms& terms = host_numbers(args.numbers).adam;
  return {terms.learning_rate, terms.grad_scale, flat(a.weight), constant(a.grad)};
}
DirectionProblem problem_of(const DirectionArgs& args, const DirectionArrays& a) {
  const double rate = host_numbers(args.numbers).learning_rate;
  return {static_cast<float>(rate * args.factors.scale), static_cast<float>(rate * args.factors.decay),
          a.direction.kernel_data<float>(), flat(a.weight)};
}

// The sum of squares of what the kernel makes of `elements` elements.
template <typename Problem>
double update(ThreadPool& pool, UpdateKernel<Problem>* kernel, const Problem& problem,
              std::int64_t elements) {
  return sum_pieces(pool, elements, [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
    kernel(problem, begin, end, squares);
  });
}

// Rows for lists of arrays.
template <auto* kernel, typename Args>
void update_all(ThreadPool& pool, const Args& args) {
  if (host_numbers(args.numbers).is_good == 0) return;
  for (const auto& arrays : args.updates)
    *arrays.squares.template kernel_data<double>() =
        update(pool, kernel, problem_of(args, arrays), arrays.weight.size());
}

template <UpdateKernel<AdamProblem>* kernel>
void adam(ThreadPool& pool, const AdamArgs& args) {
  update_all<kernel>(pool, args);
}
template <UpdateKernel<DescentProblem>* kernel>
void descent(ThreadPool& pool, const DescentArgs& args) {
  update_all<kernel>(pool, args);
}
template <UpdateKernel<DirectionProblem>* kernel>
void direction(ThreadPool& pool, const DirectionArgs& args) {
  update_all<kernel>(pool, args);
}
template <UpdateKernel<MomentumProblem>* kernel>
void momentum(ThreadPool& pool, const MomentumArgs& args) {
  const UpdateNumbers& numbers = host_numbers(args.numbers);
  if (numbers.is_good == 0) {
    std::memset(args.direction.kernel_address(), 0, args.direction.bytes());
    return;
  }
  const MomentumProblem problem{numbers.momentum, numbers.adam.grad_scale, constant(args.grad),
                                flat(args.momentum), args.direction.kernel_data<float>()};
  update(pool, kernel, problem, args.momentum.size());
}

double bytes_of(const TensorView& x) {
  return static_cast<double>(x.bytes());
}

// Work of a list: flops for each element, and what bytes_of_one(arrays) says.
template <typename Args, typename Bytes>
Work list_work(const Args& args, double flops, const Bytes& bytes_of_one) {
  Work work{.dtype = args.updates[0].weight.dtype()};
  for (const auto& arrays : args.updates) {
    work.flops += flops * static_cast<double>(arrays.weight.size());
    work.bytes += bytes_of_one(arrays);
  }
  return work;
}

Work adam_work(const AdamArgs& args) {
  return list_work(args, 16, [](const AdamArrays& a) {
    return 2 * (bytes_of(a.weight) + bytes_of(a.mu) + bytes_of(a.nu)) + bytes_of(a.grad);
  });
}
Work descent_work(const DescentArgs& args) {
  return list_work(args, 5, [](const DescentArrays& a) { return 2 * bytes_of(a.weight) + bytes_of(a.grad); });
}
Work direction_work(const DirectionArgs& args) {
  return list_work(args, 6,
                   [](const DirectionArrays& a) { return bytes_of(a.direction) + 2 * bytes_of(a.weight); });
}
Work momentum_work(const MomentumArgs& args) {
  return {.dtype = args.momentum.dtype(),
          .flops = 7 * static_cast<double>(args.momentum.size()),
          .bytes = bytes_of(args.direction) + 2 * bytes_of(args.momentum) + bytes_of(args.grad)};
}

template <typename Args>
const TensorView& first_weight(const Args& args) {
  return args.updates[0].weight;
}

constexpr Implementation<AdamArgs> kAdams[] = {{"cuda", Gpu::any, gpu::adam_update},
                                               SWITCHYARD_SIMD_ROWS(adam, adam)};
constexpr Implementation<DescentArgs> kDescents[] = {{"cuda", Gpu::any, gpu::descent_update},
                                                     SWITCHYARD_SIMD_ROWS(descent, descent)};
constexpr Implementation<MomentumArgs> kMomentums[] = {{"cuda", Gpu::any, gpu::momentum_update},
                                                       SWITCHYARD_SIMD_ROWS(momentum, momentum)};
constexpr Implementation<DirectionArgs> kDirections[] = {{"cuda", Gpu::any, gpu::direction_update},
                                                         SWITCHYARD_SIMD_ROWS(direction, direction)};
constexpr Kernel<AdamArgs> kAdam{"adam", adam_work, first_weight<AdamArgs>, kAdams};
constexpr Kernel<DescentArgs> kDescent{"sgd", descent_work, first_weight<DescentArgs>, kDescents};
constexpr Kernel<MomentumArgs> kMomentum{"momentum", momentum_work, &MomentumArgs::momentum, kMomentums};
constexpr Kernel<DirectionArgs> kDirection{"direction", direction_work, first_weight<DirectionArgs>,
                                           kDirections};

void check_arrays(const char* op, std::int64_t count, std::initializer_list<const TensorView*> arrays) {
  for (const TensorView* x : arrays)
    CHECK(is_float(x->dtype()) && x->size() == count && x->is_contiguous(),
          "[{}] {} of {} beside {} elements", op, x->size(), name_of(x->dtype()), count);
}

void check_squares(const char* op, const TensorView& squares) {
  CHECK(squares.size() == 1 && squares.dtype() == DType::f64, "[{}] squares {} of {}", op,
        to_string(squares.shape()), name_of(squares.dtype()));
}

}  // namespace

void check_numbers(const char* op, const TensorView& numbers) {
  CHECK(numbers.size() == kUpdateNumbers && numbers.dtype() == DType::f32 && numbers.is_contiguous(),
        "[{}] numbers {} of {}", op, to_string(numbers.shape()), name_of(numbers.dtype()));
}

TensorView is_good_of(const TensorView& numbers) {
  constexpr std::int64_t place = offsetof(UpdateNumbers, is_good) / sizeof(float);
  return numbers.rows(place, place + 1);
}

const UpdateNumbers& host_numbers(const TensorView& numbers) {
  return *reinterpret_cast<const UpdateNumbers*>(numbers.kernel_data<float>());
}

void adam_update(ThreadPool& pool, const TensorView& numbers, std::span<const AdamArrays> updates) {
  check_numbers("adam", numbers);
  for (const AdamArrays& a : updates) {
    check_arrays("adam", a.weight.size(), {&a.weight, &a.grad, &a.mu, &a.nu});
    check_squares("adam", a.squares);
  }
  if (!updates.empty()) run(pool, kAdam, {numbers, updates});
}

void descent_update(ThreadPool& pool, const TensorView& numbers, std::span<const DescentArrays> updates) {
  check_numbers("sgd", numbers);
  for (const DescentArrays& a : updates) {
    check_arrays("sgd", a.weight.size(), {&a.weight, &a.grad});
    check_squares("sgd", a.squares);
  }
  if (!updates.empty()) run(pool, kDescent, {numbers, updates});
}

void momentum_update(ThreadPool& pool, const TensorView& numbers, const MomentumArrays& update) {
  check_numbers("momentum", numbers);
  check_arrays("momentum", update.momentum.size(), {&update.grad, &update.momentum, &update.direction});
  run(pool, kMomentum, {numbers, update.grad, update.momentum, update.direction});
}

void direction_update(ThreadPool& pool, const TensorView& numbers, const DirectionFactors& factors,
                      const DirectionArrays& update) {
  check_numbers("direction", numbers);
  check_arrays("direction", update.weight.size(), {&update.weight, &update.direction});
  check_squares("direction", update.squares);
  run(pool, kDirection, {numbers, std::span(&update, 1), factors});
}

}  // namespace switchyard
