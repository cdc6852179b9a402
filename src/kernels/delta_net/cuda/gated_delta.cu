// The gated delta rule token by token. The backward pass keeps the state before each stage of tokens, and
// takes stages from the last one on: it makes a stage's states again, and goes back through them.
#include <algorithm>

#include "kernels/cuda/workspace.h"
#include "kernels/delta_net/cuda/gated_delta.h"
#include "kernels/delta_net/gated_delta_problem.h"
#include "kernels/delta_net/kernels.h"

namespace switchyard::gpu {
namespace {

// A warp takes a vector: what makes it a unit vector.
template <typename T>
GPU_KERNEL unit_factors(const T* x, std::int64_t vectors, int width, float* factors) {
  const std::int64_t vector = block_index() * (kDeltaThreads / kWarp) + thread_index() / kWarp;
  if (vector >= vectors) return;
  float squares = 0;
  for (int i = thread_index() % kWarp; i < width; i += kWarp) {
    const float value = to_float(x[vector * width + i]);
    squares += value * value;
  }
  squares = warp_sum(squares);
  if (thread_index() % kWarp == 0) factors[vector] = 1.0f / sqrtf(squares + kUnitEpsilon);
}

// The memory of a thread's numbers of states, that no other thread looks at: number r of state s is at
// s · stride + r · kDeltaThreads.
template <typename Layout>
GPU_FUNCTION float* own_states(float* memory) {
  const std::int64_t block = block_index_y() * block_count() + block_index();
  return memory + block * Layout::rows * kDeltaThreads + thread_index();
}
template <typename Layout>
GPU_FUNCTION void keep_state(const float* state, float* to) {
  GPU_UNROLL
  for (int r = 0; r < Layout::rows; ++r) to[r * kDeltaThreads] = state[r];
}
template <typename Layout>
GPU_FUNCTION void get_state(const float* from, float* state) {
  GPU_UNROLL
  for (int r = 0; r < Layout::rows; ++r) state[r] = from[r * kDeltaThreads];
}

// A block takes some columns of a head of a sequence. With `checkpoints` it keeps the states before stages
// there, and has no other result.
template <typename T, typename Layout>
GPU_KERNEL delta_forward(Delta<T> p, float* checkpoints, std::int64_t stride) {
  const DeltaStage<Layout> stage(dynamic_shared<float>());
  const std::int64_t b = block_index() / p.value_heads, head = block_index() % p.value_heads;
  const int first_column = block_index_y() * Layout::columns, column = first_column + Layout::column(),
            lane = Layout::lane();
  float* const kept =
      p.state == nullptr ? nullptr : p.state + block_index() * p.key_width * p.value_width + column;
  float state[Layout::rows];
  GPU_UNROLL
  for (int r = 0; r < Layout::rows; ++r) {
    const int row = r * Layout::lanes + lane;
    const bool given = kept != nullptr && row < p.key_width && column < p.value_width;
    state[r] = given ? kept[static_cast<std::int64_t>(row) * p.value_width] : 0.0f;
  }
  for (std::int64_t first = 0; first < p.length; first += kDeltaStage) {
    const int count = static_cast<int>(p.length - first < kDeltaStage ? p.length - first : kDeltaStage);
    if (checkpoints != nullptr)
      keep_state<Layout>(state, own_states<Layout>(checkpoints) + first / kDeltaStage * stride);
    stage.fetch(p, b, head, first_column, first, count);
    barrier();
    for (int t = 0; t < count; ++t) {
      const float error = stage.decay_state(t, state);
      stage.add_to_state(t, error, state);
      if (checkpoints != nullptr) continue;
      const float* const q = stage.q + t * Layout::width + lane;
      float sum = 0;
      GPU_UNROLL
      for (int r = 0; r < Layout::rows; ++r) sum += state[r] * q[r * Layout::lanes];
      sum = Layout::column_sum(sum);
      if (lane == 0) stage.outs[t * Layout::columns + Layout::column()] = sum;
    }
    barrier();
    if (checkpoints == nullptr) stage.put_outs(p, b, head, first_column, first, count, p.out);
  }
  if (kept == nullptr) return;
  GPU_UNROLL
  for (int r = 0; r < Layout::rows; ++r) {
    const int row = r * Layout::lanes + lane;
    if (row < p.key_width && column < p.value_width)
      kept[static_cast<std::int64_t>(row) * p.value_width] = state[r];
  }
}

// The memory that the backward pass works in. Sums over columns are
// of a warp's columns first: those are parts.
struct DeltaGradients {
  float* checkpoints;  // states before stages
  float* states;       // of a stage's tokens, after their decay
  float* dstate;       // the gradient of the state after the stage
  std::int64_t stride;
  float *dq, *dk;  // [parts, B, kDeltaStage, Hv, Dk], of unit vectors (dq but for the scale)
  float* numbers;  // [parts, B, kDeltaStage, Hv, 2]: dg and dbeta
  int parts;

  // The vector number of a token of the stage, of a part.
  template <typename T>
  GPU_FUNCTION std::int64_t vector(const Delta<T>& p, std::int64_t part, std::int64_t b, int t,
                                   std::int64_t head) const {
    return ((part * p.batch + b) * kDeltaStage + t) * p.value_heads + head;
  }
};

// Sums x over a warp's columns and writes its rows: each time columns exchange half of what they hold.
template <typename Layout>
GPU_FUNCTION void put_row_sums(float* x, int width, float* to) {
  int held = Layout::rows, first = 0;
  GPU_UNROLL
  for (int mask = Layout::lanes; mask < kWarp; mask *= 2) {
    held /= 2;
    const bool upper = (thread_index() & mask) != 0;
    GPU_UNROLL
    for (int r = 0; r < Layout::rows / 2; ++r) {
      if (r >= held) continue;
      const float mine = upper ? x[r + held] : x[r], other = upper ? x[r] : x[r + held];
      x[r] = mine + shuffle_xor(other, mask);
    }
    if (upper) first += held;
  }
  GPU_UNROLL
  for (int r = 0; r < Layout::rows / Layout::columns_of_warp; ++r) {
    const int row = (first + r) * Layout::lanes + Layout::lane();
    if (row < width) to[row] = x[r];
  }
}

// Goes back through a stage of tokens, of the same blocks as delta_forward.
template <typename T, typename Layout>
GPU_KERNEL delta_backward(Delta<T> p, DeltaGradients to, std::int64_t first, T* dv) {
  const DeltaStage<Layout> stage(dynamic_shared<float>());
  const std::int64_t b = block_index() / p.value_heads, head = block_index() % p.value_heads;
  const int first_column = block_index_y() * Layout::columns, lane = Layout::lane();
  const std::int64_t part = block_index_y() * Layout::warps + thread_index() / kWarp;
  const int count = static_cast<int>(p.length - first < kDeltaStage ? p.length - first : kDeltaStage);
  float* const states = own_states<Layout>(to.states);
  stage.fetch(p, b, head, first_column, first, count);
  barrier();
  float state[Layout::rows], sums[Layout::rows];
  get_state<Layout>(own_states<Layout>(to.checkpoints) + first / kDeltaStage * to.stride, state);
  for (int t = 0; t < count; ++t) {
    const int at = t * Layout::columns + Layout::column();
    const float error = stage.decay_state(t, state), dout = stage.dout[at];
    keep_state<Layout>(state, states + t * to.stride);
    if (lane == 0) stage.errors[at] = error;
    stage.add_to_state(t, error, state);
    GPU_UNROLL
    for (int r = 0; r < Layout::rows; ++r) sums[r] = state[r] * dout;
    put_row_sums<Layout>(sums, p.key_width, to.dq + to.vector(p, part, b, t, head) * p.key_width);
  }
  barrier();
  float dstate[Layout::rows];
  if (first + count < p.length) {
    get_state<Layout>(own_states<Layout>(to.dstate), dstate);
  } else {
    GPU_UNROLL
    for (int r = 0; r < Layout::rows; ++r) dstate[r] = 0;
  }
  for (int t = count - 1; t >= 0; --t) {
    const int at = t * Layout::columns + Layout::column();
    const float *const q = stage.q + t * Layout::width + lane, *const k = stage.k + t * Layout::width + lane;
    const float dout = stage.dout[at], error = stage.errors[at], beta = stage.beta[t], decay = stage.decay[t];
    get_state<Layout>(states + t * to.stride, state);
    float du = 0;  // of what the token adds to the column, but for its key
    GPU_UNROLL
    for (int r = 0; r < Layout::rows; ++r) {
      dstate[r] += q[r * Layout::lanes] * dout;
      du += dstate[r] * k[r * Layout::lanes];
    }
    du = Layout::column_sum(du);
    if (lane == 0) stage.outs[at] = beta * du;
    const bool anew = stage.begins[t] != 0;
    float dg = 0;
    GPU_UNROLL
    for (int r = 0; r < Layout::rows; ++r) {
      sums[r] = beta * (dstate[r] * error - state[r] * du);
      const float gradient = dstate[r] - k[r * Layout::lanes] * beta * du;
      dg += gradient * state[r];
      dstate[r] = anew ? 0.0f : gradient * decay;
    }
    const std::int64_t vector = to.vector(p, part, b, t, head);
    put_row_sums<Layout>(sums, p.key_width, to.dk + vector * p.key_width);
    dg = warp_sum(dg);
    const float dbeta = warp_sum(lane == 0 ? du * error : 0.0f);
    if (thread_index() % kWarp == 0) {
      to.numbers[2 * vector] = dg;
      to.numbers[2 * vector + 1] = dbeta;
    }
  }
  keep_state<Layout>(dstate, own_states<Layout>(to.dstate));
  barrier();
  stage.put_outs(p, b, head, first_column, first, count, dv);
}

constexpr int kMostKeysOfLane = 16;  // key widths of 512 at most

// The gradient of a key head's vector of a token, from those of its unit vector in all parts. A warp.
template <typename T>
GPU_FUNCTION void put_vector_gradient(const Delta<T>& p, const DeltaGradients& from, const float* parts,
                                      std::int64_t b, int t, std::int64_t token, std::int64_t key_head,
                                      const T* x, const float* factors, float scale, T* out) {
  const std::int64_t vector = token * p.key_heads + key_head;
  const float factor = factors == nullptr ? 1.0f : factors[vector];
  const int lane = thread_index() % kWarp;
  float gradient[kMostKeysOfLane], along = 0;
  GPU_UNROLL
  for (int r = 0; r < kMostKeysOfLane; ++r) {
    const int i = r * kWarp + lane;
    gradient[r] = 0;
    if (i >= p.key_width) continue;
    float sum = 0;
    for (int part = 0; part < from.parts; ++part) {
      for (std::int64_t h = key_head * p.group(); h < (key_head + 1) * p.group(); ++h)
        sum += parts[from.vector(p, part, b, t, h) * p.key_width + i];
    }
    gradient[r] = sum * scale;
    along += gradient[r] * to_float(x[vector * p.key_width + i]) * factor;
  }
  along = factors == nullptr ? 0.0f : warp_sum(along);
  GPU_UNROLL
  for (int r = 0; r < kMostKeysOfLane; ++r) {
    const int i = r * kWarp + lane;
    if (i >= p.key_width) continue;
    const std::int64_t at = vector * p.key_width + i;
    out[at] = from_float<T>(factor * (gradient[r] - to_float(x[at]) * factor * along));
  }
}

// Sums the parts of a stage: a warp takes a token of a key head.
template <typename T>
GPU_KERNEL sum_delta_parts(Delta<T> p, DeltaGradients from, std::int64_t first, int count, T* dq, T* dk,
                           float* dg, float* dbeta) {
  const std::int64_t i = block_index() * (kDeltaThreads / kWarp) + thread_index() / kWarp;
  if (i >= p.batch * count * p.key_heads) return;
  const std::int64_t key_head = i % p.key_heads, b = i / p.key_heads / count;
  const int t = static_cast<int>(i / p.key_heads % count);
  const std::int64_t token = b * p.length + first + t;
  put_vector_gradient(p, from, from.dq, b, t, token, key_head, p.q, p.q_factor, p.scale, dq);
  put_vector_gradient(p, from, from.dk, b, t, token, key_head, p.k, p.k_factor, 1.0f, dk);
  for (std::int64_t h = key_head * p.group(); h < (key_head + 1) * p.group(); ++h) {
    float to_g = 0, to_beta = 0;
    for (int part = thread_index() % kWarp; part < from.parts; part += kWarp) {
      const float* const numbers = from.numbers + 2 * from.vector(p, part, b, t, h);
      to_g += numbers[0];
      to_beta += numbers[1];
    }
    to_g = warp_sum(to_g);
    to_beta = warp_sum(to_beta);
    if (thread_index() % kWarp != 0) continue;
    dg[token * p.value_heads + h] = to_g;
    dbeta[token * p.value_heads + h] = to_beta;
  }
}

// Calls body(layout) with that for keys of this width.
template <typename Body>
void with_delta_layout(std::int64_t key_width, const Body& body) {
  if (key_width <= 32) return body(DeltaLayout<8, 4>());
  if (key_width <= 64) return body(DeltaLayout<8, 8>());
  if (key_width <= 128) return body(DeltaLayout<8, 16>());
  if (key_width <= 512) return body(DeltaLayout<32, 16>());
  fail_runtime("[gated_delta] no kernel of a GPU takes keys of {} elements: at most 512", key_width);
}

// The forward pass's arguments, and the factors that make its keys unit vectors.
template <typename T>
class DeltaInput {
 public:
  explicit DeltaInput(const GatedDeltaArgs& a)
      : vectors_(a.q.dim(0) * a.q.dim(1) * a.q.dim(2)),
        factors_(a.q, a.unit_vectors ? static_cast<std::size_t>(2 * vectors_) * sizeof(float) : 0) {
    args = {.batch = a.q.dim(0),
            .length = a.q.dim(1),
            .key_heads = a.q.dim(2),
            .value_heads = a.v.dim(2),
            .key_width = static_cast<int>(a.q.dim(3)),
            .value_width = static_cast<int>(a.v.dim(3)),
            .scale = a.scale,
            .q = a.q.device_data<T>(),
            .k = a.k.device_data<T>(),
            .v = a.v.device_data<T>(),
            .g = a.g.device_data<float>(),
            .beta = a.beta.device_data<float>(),
            .segments = a.segments.device_data<std::int32_t>(),
            .state = a.state.device_data<float>(),
            .out = a.out.device_data<T>(),
            .dout = nullptr,
            .q_factor = nullptr,
            .k_factor = nullptr};
    if (!a.unit_vectors) return;
    float *const of_q = factors_.data<float>(), *const of_k = of_q + vectors_;
    const Launch warps{.blocks = divide_up(vectors_, kDeltaThreads / kWarp), .threads = kDeltaThreads};
    launch(warps, unit_factors<T>, args.q, vectors_, args.key_width, of_q);
    launch(warps, unit_factors<T>, args.k, vectors_, args.key_width, of_k);
    args.q_factor = of_q;
    args.k_factor = of_k;
  }
  Delta<T> args;

 private:
  std::int64_t vectors_;
  Workspace factors_;
};

template <typename Layout, typename T>
Launch delta_launch(const Delta<T>& p, bool backward) {
  return {.blocks = p.batch * p.value_heads,
          .threads = kDeltaThreads,
          .shared_bytes = DeltaStage<Layout>::bytes(backward),
          .blocks_y = static_cast<int>(divide_up(p.value_width, Layout::columns))};
}

}  // namespace

void gated_delta(const GatedDeltaArgs& a) {
  with_float_type(a.q.dtype(), [&]<typename T>(T) {
    const DeltaInput<T> input(a);
    with_delta_layout(a.q.dim(3), [&]<typename Layout>(Layout) {
      launch(delta_launch<Layout>(input.args, false), delta_forward<T, Layout>, input.args, nullptr, 0);
    });
  });
}

void gated_delta_backward(const GatedDeltaBackwardArgs& args) {
  const GatedDeltaArgs& a = args.forward;
  with_float_type(a.q.dtype(), [&]<typename T>(T) {
    const DeltaInput<T> input(a);
    with_delta_layout(a.q.dim(3), [&]<typename Layout>(Layout) {
      Delta<T> p = input.args;
      const Launch forward = delta_launch<Layout>(p, false), backward = delta_launch<Layout>(p, true);
      const std::int64_t stages = divide_up(p.length, kDeltaStage),
                         stride = forward.blocks * forward.blocks_y * Layout::rows * kDeltaThreads,
                         parts = static_cast<std::int64_t>(forward.blocks_y) * Layout::warps,
                         vectors = parts * p.batch * kDeltaStage * p.value_heads;
      const auto floats = [&](std::int64_t count) {
        return Workspace(a.q, static_cast<std::size_t>(count) * sizeof(float));
      };
      const Workspace states = floats((stages + kDeltaStage + 1) * stride),
                      sums = floats(vectors * (2 * p.key_width + 2));
      float *const kept = states.data<float>(), *const partial = sums.data<float>();
      const DeltaGradients to{.checkpoints = kept,
                              .states = kept + stages * stride,
                              .dstate = kept + (stages + kDeltaStage) * stride,
                              .stride = stride,
                              .dq = partial,
                              .dk = partial + vectors * p.key_width,
                              .numbers = partial + 2 * vectors * p.key_width,
                              .parts = static_cast<int>(parts)};
      launch(forward, delta_forward<T, Layout>, p, to.checkpoints, stride);
      p.dout = args.dout.device_data<T>();
      for (std::int64_t stage = stages - 1; stage >= 0; --stage) {
        const std::int64_t first = stage * kDeltaStage;
        const auto count = static_cast<int>(std::min<std::int64_t>(kDeltaStage, p.length - first));
        launch(backward, delta_backward<T, Layout>, p, to, first, args.dv.device_data<T>());
        launch({.blocks = divide_up(p.batch * count * p.key_heads, kDeltaThreads / kWarp),
                .threads = kDeltaThreads},
               sum_delta_parts<T>, p, to, first, count, args.dq.device_data<T>(), args.dk.device_data<T>(),
               args.dg.device_data<float>(), args.dbeta.device_data<float>());
      }
    });
  });
}

}  // namespace switchyard::gpu
