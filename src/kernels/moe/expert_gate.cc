#include "kernels/moe/expert_gate.h"

#include <algorithm>
#include <vector>

#include "kernels/moe/expert_gate_problem.h"
#include "kernels/moe/kernels.h"
#include "kernels/pointwise/float_elements.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

// The first row of each group, and the end of the last.
std::vector<std::int64_t> begins_of_groups(const TensorView& sizes, std::int64_t groups, std::int64_t rows) {
  const auto* const counts = sizes.kernel_data<std::int32_t>();
  std::vector<std::int64_t> begins{0};
  for (std::int64_t g = 0; g < groups; ++g)
    begins.push_back(begins.back() + (counts == nullptr ? rows / groups : counts[g]));
  CHECK(begins.back() == rows, "{} rows in groups of {}", rows, begins.back());
  return begins;
}

// Calls visit(group, row, end) for pieces of the rows of x's groups.
template <typename Visit>
void for_groups(ThreadPool& pool, const TensorView& x, const TensorView& sizes, std::int64_t groups,
                const Visit& visit) {
  constexpr std::int64_t kElements = 16384;  // of a piece: long against handing it out
  const std::int64_t most = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, columns_of(x)));
  const std::vector<std::int64_t> begins = begins_of_groups(sizes, groups, rows_of(x));
  struct Piece {
    std::int64_t group, row, end;
  };
  std::vector<Piece> pieces;
  for (std::size_t g = 0; g + 1 < begins.size(); ++g) {
    for (std::int64_t row = begins[g]; row < begins[g + 1]; row += most)
      pieces.push_back({static_cast<std::int64_t>(g), row, std::min(begins[g + 1], row + most)});
  }
  pool.for_range(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      visit(piece.group, piece.row, piece.end);
    }
  });
}

const std::byte* row_at(const TensorView& x, std::int64_t row) {
  return x.defined() ? x.kernel_address() + static_cast<std::size_t>(row * columns_of(x)) * size_of(x.dtype())
                     : nullptr;
}

// ---- The gated activation

std::int64_t groups_of(const ExpertGateArgs& args) {
  return args.gate_bias.defined() ? args.gate_bias.dim(0) : 1;
}

// Without biases all rows are of one group.
TensorView sizes_of(const ExpertGateArgs& args) {
  return args.gate_bias.defined() ? args.group_sizes : TensorView();
}

// `problem`: what the pass has beside the operands of both.
void on_rows(ThreadPool& pool, ExpertGateKernel* kernel, const ExpertGateArgs& args,
             ExpertGateProblem problem) {
  problem.dtype = args.gate.dtype();
  problem.columns = columns_of(args.gate);
  problem.gate = args.gate.kernel_address();
  problem.up = args.up.kernel_address();
  problem.row_weights = args.row_weights.kernel_data<float>();
  problem.form = args.form;
  for_groups(pool, args.gate, sizes_of(args), groups_of(args),
             [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
               ExpertGateProblem of_group = problem;
               of_group.gate_bias = row_at(args.gate_bias, group);
               of_group.up_bias = row_at(args.up_bias, group);
               kernel(of_group, begin, end);
             });
}

template <ExpertGateKernel* kernel>
void forward(ThreadPool& pool, const ExpertGateArgs& args) {
  ExpertGateProblem problem;
  problem.hidden = args.hidden.kernel_address();
  on_rows(pool, kernel, args, problem);
}

template <ExpertGateKernel* kernel>
void backward(ThreadPool& pool, const ExpertGateBackwardArgs& args) {
  ExpertGateProblem problem;
  problem.dhidden = args.dhidden.kernel_address();
  problem.dgate = args.dgate.kernel_address();
  problem.dup = args.dup.kernel_address();
  if (args.forward.row_weights.defined()) problem.drow_weights = args.drow_weights.kernel_data<float>();
  on_rows(pool, kernel, args.forward, problem);
}

Work gate_work(const TensorView& gate, int arrays) {
  return {.dtype = gate.dtype(),
          .flops = 10 * static_cast<double>(gate.size()),
          .bytes = arrays * static_cast<double>(gate.bytes())};
}

Work forward_work(const ExpertGateArgs& args) {
  return gate_work(args.gate, 3);
}

Work backward_work(const ExpertGateBackwardArgs& args) {
  return gate_work(args.forward.gate, 5);
}

constexpr Implementation<ExpertGateArgs> kExpertGateForwards[] = {{"cuda", Gpu::any, gpu::expert_gate},
                                                                  SWITCHYARD_SIMD_ROWS(forward, expert_gate)};
constexpr Implementation<ExpertGateBackwardArgs> kExpertGateBackwards[] = {
    {"cuda", Gpu::any, gpu::expert_gate_backward}, SWITCHYARD_SIMD_ROWS(backward, expert_gate_backward)};
constexpr Kernel<ExpertGateArgs> kExpertGate{"expert_gate", forward_work, &ExpertGateArgs::gate,
                                             kExpertGateForwards};
constexpr Kernel<ExpertGateBackwardArgs> kExpertGateBackward{
    "expert_gate_backward", backward_work, &ExpertGateBackwardArgs::dhidden, kExpertGateBackwards};

void check_groups(const char* op, const TensorView& sizes, std::int64_t groups, std::int64_t rows) {
  CHECK(groups > 0 &&
            (sizes.defined() ? sizes.dtype() == DType::i32 && sizes.size() == groups : rows % groups == 0),
        "[{}] {} rows in {} groups", op, rows, groups);
}

void check_gate(const char* op, const ExpertGateArgs& a, std::initializer_list<const TensorView*> others) {
  const std::int64_t columns = columns_of(a.gate), rows = rows_of(a.gate), groups = groups_of(a);
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
  check_groups(op, sizes_of(a), groups, rows);
  for (const TensorView* x : others)
    CHECK(x->dtype() == a.gate.dtype() && x->size() == a.gate.size(), "[{}] {} beside {}", op, x->size(),
          a.gate.size());
}

}  // namespace

void expert_gate(ThreadPool& pool, const ExpertGateArgs& args) {
  check_gate("expert_gate", args, {&args.hidden});
  run(pool, kExpertGate, args);
}

void expert_gate_backward(ThreadPool& pool, const ExpertGateBackwardArgs& args) {
  check_gate("expert_gate_backward", args.forward, {&args.dhidden, &args.dgate, &args.dup});
  run(pool, kExpertGateBackward, args);
}

// ---- Biases of rows

namespace {

// A thread takes some columns of a group, in the order of rows.
void sum_columns(ThreadPool& pool, const SumGroupsArgs& args) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t columns = columns_of(args.x), groups = args.out.dim(0),
                     strips = (columns + kColumns - 1) / kColumns;
  const std::vector<std::int64_t> begins = begins_of_groups(args.group_sizes, groups, rows_of(args.x));
  const float* const weights = args.row_weights.kernel_data<float>();
  with_elements(args.x.dtype(), [&]<typename T>(T) {
    const T* const x = args.x.kernel_data<T>();
    pool.for_range(groups * strips, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t group = i / strips, first = i % strips * kColumns,
                           last = std::min(columns, first + kColumns);
        float* const sums = args.out.kernel_data<float>() + group * columns;
        std::fill(sums + first, sums + last, 0.0f);
        for (std::int64_t row = begins[static_cast<std::size_t>(group)];
             row < begins[static_cast<std::size_t>(group) + 1]; ++row) {
          const float w = weights == nullptr ? 1.0f : weights[row];
          for (std::int64_t j = first; j < last; ++j) sums[j] += w * static_cast<float>(x[row * columns + j]);
        }
      }
    });
  });
}

template <ExpertGateKernel* kernel>
void add_biases(ThreadPool& pool, const AddGroupRowsArgs& args) {
  ExpertGateArgs rows;
  rows.gate = args.x;
  rows.gate_bias = args.bias;
  rows.group_sizes = args.group_sizes;
  rows.row_weights = args.row_weights;
  ExpertGateProblem problem;
  problem.hidden = args.out.kernel_address();
  on_rows(pool, kernel, rows, problem);
}

void multiply_rows(ThreadPool& pool, const GroupRowProductsArgs& args) {
  const std::int64_t columns = columns_of(args.dy);
  float* const out = args.out.kernel_data<float>();
  with_elements(args.dy.dtype(), [&]<typename T>(T) {
    const T *const dy = args.dy.kernel_data<T>(), *const biases = args.bias.kernel_data<T>();
    for_groups(pool, args.dy, args.group_sizes, args.bias.dim(0),
               [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row)
                   out[row] = dot_product(dy + row * columns, biases + group * columns, columns);
               });
  });
}

Work work_of(const TensorView& x, std::size_t bytes) {
  return {
      .dtype = x.dtype(), .flops = 2 * static_cast<double>(x.size()), .bytes = static_cast<double>(bytes)};
}

Work sum_work(const SumGroupsArgs& args) {
  return work_of(args.x, args.x.bytes() + args.out.bytes());
}

Work add_work(const AddGroupRowsArgs& args) {
  return work_of(args.x, 2 * args.x.bytes());
}

Work products_work(const GroupRowProductsArgs& args) {
  return work_of(args.dy, args.dy.bytes());
}

constexpr Implementation<SumGroupsArgs> kSums[] = {{"cuda", Gpu::any, gpu::sum_groups},
                                                   {"portable", Isa::ref, sum_columns}};
constexpr Implementation<AddGroupRowsArgs> kAdds[] = {{"cuda", Gpu::any, gpu::add_group_rows},
                                                      SWITCHYARD_SIMD_ROWS(add_biases, add_group_rows)};
constexpr Implementation<GroupRowProductsArgs> kProducts[] = {{"cuda", Gpu::any, gpu::group_row_products},
                                                              {"portable", Isa::ref, multiply_rows}};
constexpr Kernel<SumGroupsArgs> kSumGroups{"sum_groups", sum_work, &SumGroupsArgs::x, kSums};
constexpr Kernel<AddGroupRowsArgs> kAddGroupRows{"add_group_rows", add_work, &AddGroupRowsArgs::x, kAdds};
constexpr Kernel<GroupRowProductsArgs> kGroupRowProducts{"group_row_products", products_work,
                                                         &GroupRowProductsArgs::dy, kProducts};

void check_biases(const char* op, const TensorView& x, const TensorView& biases, DType dtype,
                  const TensorView& sizes) {
  CHECK(is_float(x.dtype()) && biases.dtype() == dtype &&
            biases.shape() == (Shape{biases.dim(0), columns_of(x)}),
        "[{}] {} of {} and {} of {}", op, to_string(x.shape()), name_of(x.dtype()), to_string(biases.shape()),
        name_of(biases.dtype()));
  check_groups(op, sizes, biases.dim(0), rows_of(x));
}

}  // namespace

void sum_groups(ThreadPool& pool, const SumGroupsArgs& args) {
  check_biases("sum_groups", args.x, args.out, DType::f32, args.group_sizes);
  run(pool, kSumGroups, args);
}

void add_group_rows(ThreadPool& pool, const AddGroupRowsArgs& args) {
  check_biases("add_group_rows", args.x, args.bias, args.x.dtype(), args.group_sizes);
  CHECK(args.out.dtype() == args.x.dtype() && args.out.size() == args.x.size(),
        "[add_group_rows] {} of {} into {} of {}", args.x.size(), name_of(args.x.dtype()), args.out.size(),
        name_of(args.out.dtype()));
  run(pool, kAddGroupRows, args);
}

void group_row_products(ThreadPool& pool, const GroupRowProductsArgs& args) {
  check_biases("group_row_products", args.dy, args.bias, args.dy.dtype(), args.group_sizes);
  CHECK(args.out.dtype() == DType::f32 && args.out.size() == rows_of(args.dy),
        "[group_row_products] {} rows into {} of {}", rows_of(args.dy), args.out.size(),
        name_of(args.out.dtype()));
  run(pool, kGroupRowProducts, args);
}

}  // namespace switchyard
