#include "kernels/moe/expert_gate.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/moe/expert_gate_problem.h"
#include "kernels/pointwise/float_elements.h"
#include "kernels/registry/simd_list.h"

namespace switchyard {
namespace {

using GateList = ListedRun<ExpertGateKernel, ExpertGateProblem>;
constexpr GateList kExpertGate[] = {SWITCHYARD_SIMD_LIST(expert_gate)};
constexpr GateList kExpertGateBackward[] = {SWITCHYARD_SIMD_LIST(expert_gate_backward)};
constexpr GateList kAddGroupRows[] = {SWITCHYARD_SIMD_LIST(add_group_rows)};

constexpr std::int64_t kElements = 16384;  // of a piece: long against handing it out

std::int64_t columns_of(const TensorView& x) {
  return x.shape().back();
}
std::int64_t rows_of_groups(const TensorView& x) {
  return columns_of(x) > 0 ? x.size() / columns_of(x) : 0;
}

// Rows [begin, end) of a group.
struct GroupRows {
  std::int64_t group, begin, end;
};

// The groups' rows, cut into pieces of about kElements. Of `groups` groups.
std::vector<GroupRows> pieces_of_groups(const TensorView& sizes, std::int64_t groups, std::int64_t rows,
                                        std::int64_t columns) {
  const auto* const counts = sizes.defined() ? sizes.kernel_data<std::int32_t>() : nullptr;
  const std::int64_t most = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, columns));
  std::vector<GroupRows> pieces;
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t end = row + (counts == nullptr ? rows / groups : counts[g]);
    for (; row < end; row += most) pieces.push_back({g, row, std::min(end, row + most)});
    row = end;
  }
  CHECK(row == rows, "{} rows in groups of {}", rows, row);
  return pieces;
}

void check_groups_of(const char* op, const TensorView& sizes, std::int64_t groups, std::int64_t rows) {
  CHECK(groups > 0 &&
            (sizes.defined() ? sizes.dtype() == DType::i32 && sizes.size() == groups : rows % groups == 0),
        "[{}] {} rows in {} groups", op, rows, groups);
}

const std::byte* row_at(const TensorView& x, std::int64_t row) {
  return x.defined() ? x.kernel_address() + static_cast<std::size_t>(row * columns_of(x)) * size_of(x.dtype())
                     : nullptr;
}

// Checks both passes, and runs one: `on_gpu` where it is a GPU's.
void run_gate(ThreadPool& pool, const char* op, const auto& list, const ExpertGateArgs& a,
              ExpertGateProblem problem, double arrays, const std::function<void()>& on_gpu) {
  const std::int64_t columns = columns_of(a.gate), rows = rows_of_groups(a.gate);
  const std::int64_t groups = a.gate_bias.defined() ? a.gate_bias.dim(0) : 1;
  CHECK(is_float(a.gate.dtype()) && a.up.dtype() == a.gate.dtype() && a.up.size() == a.gate.size() &&
            a.gate_bias.defined() == a.up_bias.defined() &&
            (!a.row_weights.defined() || a.row_weights.size() == rows),
        "[{}] gate {} of {}, up {} of {}", op, to_string(a.gate.shape()), name_of(a.gate.dtype()),
        to_string(a.up.shape()), name_of(a.up.dtype()));
  for (const TensorView* bias : {&a.gate_bias, &a.up_bias}) {
    CHECK(!bias->defined() || (bias->dtype() == a.gate.dtype() && bias->shape() == (Shape{groups, columns})),
          "[{}] biases {} of {}", op, to_string(bias->shape()), name_of(bias->dtype()));
  }
  CHECK(!a.form.weighted_inputs || (!a.gate_bias.defined() && a.form.limit == 0),
        "[{}] weights of inputs beside biases or a limit", op);
  const TensorView sizes = a.gate_bias.defined() ? a.group_sizes : TensorView();
  check_groups_of(op, sizes, groups, rows);
  const double elements = static_cast<double>(a.gate.size());
  if (pool.skips({op, a.gate.dtype(), 10 * elements, arrays * static_cast<double>(a.gate.bytes())})) return;
  if (a.gate.on_gpu()) return on_gpu();
  problem.dtype = a.gate.dtype();
  problem.columns = columns;
  problem.gate = a.gate.kernel_address();
  problem.up = a.up.kernel_address();
  problem.row_weights = a.row_weights.kernel_data<float>();
  problem.form = a.form;
  ExpertGateKernel* const kernel = choose(op, list, problem);
  const std::vector<GroupRows> pieces = pieces_of_groups(sizes, groups, rows, columns);
  pool.for_range(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const GroupRows& piece = pieces[static_cast<std::size_t>(i)];
      ExpertGateProblem of_group = problem;
      of_group.gate_bias = row_at(a.gate_bias, piece.group);
      of_group.up_bias = row_at(a.up_bias, piece.group);
      kernel(of_group, piece.begin, piece.end);
    }
  });
}

}  // namespace

void expert_gate(ThreadPool& pool, const ExpertGateArgs& a) {
  CHECK(a.hidden.dtype() == a.gate.dtype() && a.hidden.size() == a.gate.size(), "[expert_gate] {} into {}",
        a.gate.size(), a.hidden.size());
  ExpertGateProblem problem;
  problem.hidden = a.hidden.device_address();
  run_gate(pool, "expert_gate", kExpertGate, a, problem, 3, [&] { gpu::expert_gate(a); });
}

void expert_gate_backward(ThreadPool& pool, const ExpertGateBackwardArgs& args) {
  const ExpertGateArgs& a = args.forward;
  for (const TensorView* x : {&args.dhidden, &args.dgate, &args.dup})
    CHECK(x->dtype() == a.gate.dtype() && x->size() == a.gate.size(), "[expert_gate_backward] {} beside {}",
          x->size(), a.gate.size());
  ExpertGateProblem problem;
  problem.dhidden = args.dhidden.device_address();
  problem.dgate = args.dgate.device_address();
  problem.dup = args.dup.device_address();
  if (a.row_weights.defined()) problem.drow_weights = args.drow_weights.device_data<float>();
  run_gate(pool, "expert_gate_backward", kExpertGateBackward, a, problem, 5,
           [&] { gpu::expert_gate_backward(args); });
}

void sum_groups(ThreadPool& pool, const SumGroupsArgs& a) {
  const std::int64_t columns = columns_of(a.x), rows = rows_of_groups(a.x), groups = a.out.dim(0);
  CHECK(a.out.dtype() == DType::f32 && a.out.shape() == (Shape{groups, columns}) && is_float(a.x.dtype()),
        "[sum_groups] {} of {} into {}", to_string(a.x.shape()), name_of(a.x.dtype()),
        to_string(a.out.shape()));
  check_groups_of("sum_groups", a.group_sizes, groups, rows);
  if (pool.skips({"sum_groups", a.x.dtype(), 2 * static_cast<double>(a.x.size()),
                  static_cast<double>(a.x.bytes() + a.out.bytes())}))
    return;
  if (a.x.on_gpu()) return gpu::sum_groups(a);
  std::vector<std::int64_t> begins{0};
  const auto* const counts = a.group_sizes.defined() ? a.group_sizes.kernel_data<std::int32_t>() : nullptr;
  for (std::int64_t g = 0; g < groups; ++g)
    begins.push_back(begins.back() + (counts == nullptr ? rows / groups : counts[g]));
  CHECK(begins.back() == rows, "[sum_groups] {} rows in groups of {}", rows, begins.back());
  const float* const weights = a.row_weights.kernel_data<float>();
  float* const out = a.out.kernel_data<float>();
  // Some columns of a group a piece.
  constexpr std::int64_t kColumns = 64;
  const std::int64_t parts = (columns + kColumns - 1) / kColumns;
  with_elements(a.x.dtype(), [&]<typename T>(T) {
    const T* const x = a.x.kernel_data<T>();
    pool.for_range(groups * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t g = piece / parts, first = piece % parts * kColumns,
                           last = std::min(columns, first + kColumns);
        float* const sums = out + g * columns;
        std::fill(sums + first, sums + last, 0.0f);
        for (std::int64_t row = begins[static_cast<std::size_t>(g)];
             row < begins[static_cast<std::size_t>(g) + 1]; ++row) {
          const float w = weights == nullptr ? 1.0f : weights[row];
          for (std::int64_t i = first; i < last; ++i) sums[i] += w * static_cast<float>(x[row * columns + i]);
        }
      }
    });
  });
}

void add_group_rows(ThreadPool& pool, const AddGroupRowsArgs& a) {
  const std::int64_t columns = columns_of(a.x), rows = rows_of_groups(a.x), groups = a.bias.dim(0);
  CHECK(is_float(a.x.dtype()) && a.bias.dtype() == a.x.dtype() && a.out.dtype() == a.x.dtype() &&
            a.bias.shape() == (Shape{groups, columns}) && a.out.size() == a.x.size(),
        "[add_group_rows] {} of {} and {} of {}", to_string(a.x.shape()), name_of(a.x.dtype()),
        to_string(a.bias.shape()), name_of(a.bias.dtype()));
  check_groups_of("add_group_rows", a.group_sizes, groups, rows);
  if (pool.skips({"add_group_rows", a.x.dtype(), 2 * static_cast<double>(a.x.size()),
                  2 * static_cast<double>(a.x.bytes())}))
    return;
  if (a.x.on_gpu()) return gpu::add_group_rows(a);
  const std::vector<GroupRows> pieces = pieces_of_groups(a.group_sizes, groups, rows, columns);
  ExpertGateProblem problem;
  problem.dtype = a.x.dtype();
  problem.columns = columns;
  problem.gate = a.x.kernel_address();
  problem.row_weights = a.row_weights.kernel_data<float>();
  problem.hidden = a.out.kernel_address();
  ExpertGateKernel* const kernel = choose("add_group_rows", kAddGroupRows, problem);
  pool.for_range(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const GroupRows& piece = pieces[static_cast<std::size_t>(i)];
      ExpertGateProblem of_group = problem;
      of_group.gate_bias = row_at(a.bias, piece.group);
      kernel(of_group, piece.begin, piece.end);
    }
  });
}

void group_row_products(ThreadPool& pool, const GroupRowProductsArgs& a) {
  const std::int64_t columns = columns_of(a.dy), rows = rows_of_groups(a.dy), groups = a.bias.dim(0);
  CHECK(is_float(a.dy.dtype()) && a.bias.dtype() == a.dy.dtype() &&
            a.bias.shape() == (Shape{groups, columns}) && a.out.dtype() == DType::f32 && a.out.size() == rows,
        "[group_row_products] {} of {} and {} of {}", to_string(a.dy.shape()), name_of(a.dy.dtype()),
        to_string(a.bias.shape()), name_of(a.bias.dtype()));
  check_groups_of("group_row_products", a.group_sizes, groups, rows);
  if (pool.skips({"group_row_products", a.dy.dtype(), 2 * static_cast<double>(a.dy.size()),
                  static_cast<double>(a.dy.bytes())}))
    return;
  if (a.dy.on_gpu()) return gpu::group_row_products(a);
  const std::vector<GroupRows> pieces = pieces_of_groups(a.group_sizes, groups, rows, columns);
  float* const out = a.out.kernel_data<float>();
  with_elements(a.dy.dtype(), [&]<typename T>(T) {
    const T *const dy = a.dy.kernel_data<T>(), *const biases = a.bias.kernel_data<T>();
    pool.for_range(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const GroupRows& some = pieces[static_cast<std::size_t>(piece)];
        const T* const bias = biases + some.group * columns;
        for (std::int64_t row = some.begin; row < some.end; ++row)
          out[row] = dot_product(dy + row * columns, bias, columns);
      }
    });
  });
}

}  // namespace switchyard
