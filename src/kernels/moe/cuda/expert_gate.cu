// The gated activation of experts with biases or clamps, and sums over the rows of groups. The sizes of
// groups are on the device: a kernel adds them up, and each row then finds its group among the sums.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kExpertGateThreads = 256;

// ends[g]: the end of the rows of group g.
GPU_KERNEL sum_sizes(const std::int32_t* sizes, std::int64_t groups, std::int64_t rows, std::int64_t* ends) {
  if (thread_index() != 0) return;
  std::int64_t sum = 0;
  for (std::int64_t g = 0; g < groups; ++g) ends[g] = sum += sizes == nullptr ? rows / groups : sizes[g];
}

GPU_FUNCTION std::int64_t group_of(const std::int64_t* ends, std::int64_t groups, std::int64_t row) {
  std::int64_t low = 0, high = groups - 1;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (row < ends[middle])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The ends of groups of rows, on the device.
class GroupEnds {
 public:
  GroupEnds(const TensorView& like, const TensorView& sizes, std::int64_t groups, std::int64_t rows)
      : memory_(like, static_cast<std::size_t>(groups) * sizeof(std::int64_t)) {
    launch({.blocks = 1, .threads = kWarp}, sum_sizes, sizes.device_data<std::int32_t>(), groups, rows,
           data());
  }
  std::int64_t* data() const { return memory_.data<std::int64_t>(); }

 private:
  const Workspace memory_;
};

template <typename T>
struct Gate {
  const T *gate, *up, *gate_bias, *up_bias;
  const float* row_weights;
  const std::int64_t* ends;
  std::int64_t columns, groups;
  GateForm form;
};

struct Gated {
  float silu, up;               // hidden's factors
  bool gate_passes, up_passes;  // whether a gradient reaches what was clamped
  float slope;                  // of silu
};

// A row's factors of gate and up, and of hidden.
struct Factors {
  float before, after;
};

template <typename T>
GPU_FUNCTION Factors factors_of(const Gate<T>& p, std::int64_t row) {
  const float w = p.row_weights == nullptr ? 1.0f : p.row_weights[row];
  return p.form.weighted_inputs ? Factors{w, 1.0f} : Factors{1.0f, w};
}

// `before`: factor of gate and up.
template <typename T>
GPU_FUNCTION Gated gated(const Gate<T>& p, std::int64_t i, std::int64_t bias, float before) {
  float g = to_float(p.gate[i]) * before, u = to_float(p.up[i]) * before;
  if (p.gate_bias != nullptr) {
    g += to_float(p.gate_bias[bias]);
    u += to_float(p.up_bias[bias]);
  }
  const float limit = p.form.limit;
  const bool gpt_oss = limit != 0 && p.form.clamp == GateClamp::gpt_oss,
             after = limit != 0 && p.form.clamp == GateClamp::after;
  const float alpha = gpt_oss ? p.form.alpha : 1.0f;
  const float cut = limit == 0 || after || g < limit ? g : limit;
  const float sigmoid = 1.0f / (1.0f + expf(-alpha * cut)), silu = cut * sigmoid;
  const float slope = sigmoid * (1.0f + alpha * cut * (1.0f - sigmoid));
  if (limit == 0) return {silu, u, true, true, slope};
  const float within = u < -limit ? -limit : u > limit ? limit : u;
  return {after && silu > limit ? limit : silu, gpt_oss ? within + 1.0f : within,
          (after ? silu : g) <= limit, u >= -limit && u <= limit, slope};
}

template <typename T>
GPU_KERNEL gate_rows(Gate<T> p, T* hidden) {
  const std::int64_t row = block_index();
  const Factors w = factors_of(p, row);
  const std::int64_t bias = p.gate_bias == nullptr ? 0 : group_of(p.ends, p.groups, row) * p.columns;
  for (std::int64_t c = thread_index(); c < p.columns; c += kExpertGateThreads) {
    const Gated x = gated(p, row * p.columns + c, bias + c, w.before);
    hidden[row * p.columns + c] = from_float<T>(x.silu * x.up * w.after);
  }
}

template <typename T>
GPU_KERNEL gate_rows_backward(Gate<T> p, const T* dhidden, T* dgate, T* dup, float* drow_weights) {
  GPU_SHARED(float, scratch, kExpertGateThreads / kWarp);
  const std::int64_t row = block_index();
  const Factors w = factors_of(p, row);
  const std::int64_t bias = p.gate_bias == nullptr ? 0 : group_of(p.ends, p.groups, row) * p.columns;
  float dw = 0;
  for (std::int64_t c = thread_index(); c < p.columns; c += kExpertGateThreads) {
    const std::int64_t i = row * p.columns + c;
    const Gated x = gated(p, i, bias + c, w.before);
    const float dh = to_float(dhidden[i]);
    const float of_up = x.up_passes ? dh * w.after * x.silu : 0.0f,
                of_gate = x.gate_passes ? dh * w.after * x.up * x.slope : 0.0f;
    dw +=
        p.form.weighted_inputs ? of_gate * to_float(p.gate[i]) + of_up * to_float(p.up[i]) : dh * x.silu * x.up;
    dup[i] = from_float<T>(of_up * w.before);
    dgate[i] = from_float<T>(of_gate * w.before);
  }
  if (drow_weights == nullptr) return;  // all threads
  dw = block_sum(dw, scratch);
  if (thread_index() == 0) drow_weights[row] = dw;
}

// A thread takes a column of a group, in the order of rows.
template <typename T>
GPU_KERNEL sum_group_rows(const T* x, const float* row_weights, const std::int64_t* ends,
                          std::int64_t columns, float* out) {
  const std::int64_t group = block_index_y(), column = block_index() * kExpertGateThreads + thread_index();
  if (column >= columns) return;
  float sum = 0;
  for (std::int64_t row = group == 0 ? 0 : ends[group - 1]; row < ends[group]; ++row)
    sum += (row_weights == nullptr ? 1.0f : row_weights[row]) * to_float(x[row * columns + column]);
  out[group * columns + column] = sum;
}

template <typename T>
GPU_KERNEL add_rows_of_groups(const T* x, const T* bias, const float* row_weights, const std::int64_t* ends,
                              std::int64_t groups, std::int64_t columns, T* out) {
  const std::int64_t row = block_index(), group = group_of(ends, groups, row);
  const float w = row_weights == nullptr ? 1.0f : row_weights[row];
  for (std::int64_t c = thread_index(); c < columns; c += kExpertGateThreads) {
    const std::int64_t i = row * columns + c;
    out[i] = from_float<T>(to_float(x[i]) + w * to_float(bias[group * columns + c]));
  }
}

// A warp takes a row.
template <typename T>
GPU_KERNEL multiply_rows_of_groups(const T* dy, const T* bias, const std::int64_t* ends, std::int64_t groups,
                                   std::int64_t rows, std::int64_t columns, float* out) {
  const std::int64_t row = block_index() * (kExpertGateThreads / kWarp) + thread_index() / kWarp;
  if (row >= rows) return;
  const std::int64_t group = group_of(ends, groups, row);
  float sum = 0;
  for (std::int64_t c = thread_index() % kWarp; c < columns; c += kWarp)
    sum += to_float(dy[row * columns + c]) * to_float(bias[group * columns + c]);
  sum = warp_sum(sum);
  if (thread_index() % kWarp == 0) out[row] = sum;
}

std::int64_t groups_of(const ExpertGateArgs& a) {
  return a.gate_bias.defined() ? a.gate_bias.dim(0) : 1;
}

template <typename T>
Gate<T> gate_of(const ExpertGateArgs& a, const GroupEnds& ends) {
  return {a.gate.device_data<T>(),
          a.up.device_data<T>(),
          a.gate_bias.device_data<T>(),
          a.up_bias.device_data<T>(),
          a.row_weights.device_data<float>(),
          ends.data(),
          columns_of(a.gate),
          groups_of(a),
          a.form};
}

GroupEnds ends_of(const ExpertGateArgs& a) {
  return {a.gate, a.gate_bias.defined() ? a.group_sizes : TensorView(), groups_of(a), rows_of(a.gate)};
}

}  // namespace

void expert_gate(const ExpertGateArgs& a) {
  const GroupEnds ends = ends_of(a);
  with_float_type(a.gate.dtype(), [&]<typename T>(T) {
    launch({.blocks = rows_of(a.gate), .threads = kExpertGateThreads}, gate_rows<T>, gate_of<T>(a, ends),
           a.hidden.device_data<T>());
  });
}

void expert_gate_backward(const ExpertGateBackwardArgs& args) {
  const ExpertGateArgs& a = args.forward;
  const GroupEnds ends = ends_of(a);
  with_float_type(a.gate.dtype(), [&]<typename T>(T) {
    launch({.blocks = rows_of(a.gate), .threads = kExpertGateThreads}, gate_rows_backward<T>,
           gate_of<T>(a, ends), args.dhidden.device_data<T>(), args.dgate.device_data<T>(),
           args.dup.device_data<T>(),
           a.row_weights.defined() ? args.drow_weights.device_data<float>() : nullptr);
  });
}

void sum_groups(const SumGroupsArgs& a) {
  const std::int64_t columns = columns_of(a.x), groups = a.out.dim(0);
  const GroupEnds ends(a.x, a.group_sizes, groups, rows_of(a.x));
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    launch({.blocks = divide_up(columns, kExpertGateThreads),
            .threads = kExpertGateThreads,
            .blocks_y = static_cast<int>(groups)},
           sum_group_rows<T>, a.x.device_data<T>(), a.row_weights.device_data<float>(), ends.data(), columns,
           a.out.device_data<float>());
  });
}

void add_group_rows(const AddGroupRowsArgs& a) {
  const std::int64_t groups = a.bias.dim(0);
  const GroupEnds ends(a.x, a.group_sizes, groups, rows_of(a.x));
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    launch({.blocks = rows_of(a.x), .threads = kExpertGateThreads}, add_rows_of_groups<T>,
           a.x.device_data<T>(), a.bias.device_data<T>(), a.row_weights.device_data<float>(), ends.data(),
           groups, columns_of(a.x), a.out.device_data<T>());
  });
}

void group_row_products(const GroupRowProductsArgs& a) {
  const std::int64_t groups = a.bias.dim(0), rows = rows_of(a.dy);
  const GroupEnds ends(a.dy, a.group_sizes, groups, rows);
  with_float_type(a.dy.dtype(), [&]<typename T>(T) {
    launch({.blocks = divide_up(rows, kExpertGateThreads / kWarp), .threads = kExpertGateThreads},
           multiply_rows_of_groups<T>, a.dy.device_data<T>(), a.bias.device_data<T>(), ends.data(), groups,
           rows, columns_of(a.dy), a.out.device_data<float>());
  });
}

}  // namespace switchyard::gpu
