// Arguments of the room's small ops as their tables take them, checks and rows that its ops share, and the
// GPU's implementations. Internal to kernels/moe.
#pragma once

#include <span>

#include "core/error.h"
#include "kernels/moe/balance.h"
#include "kernels/moe/dense_weights.h"
#include "kernels/moe/expert_gate.h"
#include "kernels/moe/plan_rows.h"
#include "kernels/moe/ragged_rows.h"
#include "kernels/moe/route.h"
#include "kernels/moe/router_bias.h"
#include "kernels/moe/row_adapters.h"

namespace switchyard {

struct CountIdsArgs {
  TensorView ids;
  std::int64_t first;
  TensorView counts;
};

inline void check_operand(const char* op, const char* name, const TensorView& x, DType dtype,
                          const Shape& shape) {
  CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(), "[{}] expected {} {} {}, got {} {}",
        op, name, name_of(dtype), to_string(shape), name_of(x.dtype()), to_string(x.shape()));
}

// Row i of x, which the host holds without gaps.
template <typename T = float>
std::span<T> row_of(const TensorView& x, std::int64_t i) {
  const std::int64_t width = x.shape().back();
  return {x.kernel_data<T>() + i * width, static_cast<std::size_t>(width)};
}

// x as a matrix of its last dim's width.
inline std::int64_t columns_of(const TensorView& x) {
  return x.shape().back();
}
inline std::int64_t rows_of(const TensorView& x) {
  return columns_of(x) > 0 ? x.size() / columns_of(x) : 0;
}

namespace gpu {

void ragged_gather(const RaggedGatherArgs& args);
void ragged_gather_reduce(const RaggedGatherReduceArgs& args);
void ragged_row_dot(const RaggedRowDotArgs& args);

void route(const RouteArgs& args);  // no rule.random: ids that are drawn come as choices
void route_backward(const RouteBackwardArgs& args);

void count_ids(const CountIdsArgs& args);
void plan_rows(const PlanRowsArgs& args);
void plan_places(const PlanPlacesArgs& args);

void balance_statistics(const BalanceStatisticsArgs& args);
void balance_loss_value(const BalanceLossArgs& args);
void balance_loss_backward(const BalanceBackwardArgs& args);
void count_choices(const CountChoicesArgs& args);
void update_router_bias(const RouterBiasArgs& args);

void dense_weights(const DenseWeightsArgs& args);
void dense_weights_backward(const DenseWeightsBackwardArgs& args);

void expert_gate(const ExpertGateArgs& args);
void expert_gate_backward(const ExpertGateBackwardArgs& args);
void sum_groups(const SumGroupsArgs& args);
void add_group_rows(const AddGroupRowsArgs& args);
void group_row_products(const GroupRowProductsArgs& args);

void keep_adapter(const KeepAdapterArgs& args);
void part_experts(const PartExpertsArgs& args);
void join_experts(const JoinExpertsArgs& args);

}  // namespace gpu
}  // namespace switchyard
