// Parts that both passes of the gated delta rule share on a GPU.
//
// Columns of a state do not depend on each other: a few lanes of a warp hold one in registers, rows spread
// over them, and go through the sequence token by token. Tokens come into shared memory a stage at a time.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/delta_net/gated_delta.h"

namespace switchyard::gpu {

constexpr int kDeltaStage = 32;     // tokens
constexpr int kDeltaThreads = 128;  // of a block

// The arguments of kernels/delta_net/gated_delta.h.
template <typename T>
struct Delta {
  std::int64_t batch, length, key_heads, value_heads;
  int key_width, value_width;
  float scale;
  const T *q, *k, *v;
  const float *g, *beta;
  const std::int32_t* segments;
  float* state;
  T* out;
  const T* dout;                     // backward alone; else null
  const float *q_factor, *k_factor;  // [B,S,Hk] that make vectors unit vectors; null: as they are

  GPU_FUNCTION std::int64_t group() const { return value_heads / key_heads; }
};

// How a block's threads share a state: `lanes` of them a column, `rows` of its rows
// each, which are `lanes` apart.
template <int lane_count, int row_count>
struct DeltaLayout {
  static constexpr int lanes = lane_count, rows = row_count;
  static constexpr int width = lanes * rows;  // rows of a column, of which the last are 0
  static constexpr int columns_of_warp = kWarp / lanes;
  static constexpr int columns = kDeltaThreads / lanes;  // of a block
  static constexpr int warps = kDeltaThreads / kWarp;

  GPU_FUNCTION static int lane() { return thread_index() % lanes; }
  GPU_FUNCTION static int column() { return thread_index() / lanes; }
  // The sum over a column's lanes, for all of them.
  GPU_FUNCTION static float column_sum(float x) {
    GPU_UNROLL
    for (int mask = lanes / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
  }
};

// A stage of tokens in shared memory: rows are tokens.
template <typename Layout>
struct DeltaStage {
  float *q, *k;          // [kDeltaStage, width], q times the scale
  float *values, *outs;  // [kDeltaStage, columns]
  float *decay, *beta;   // [kDeltaStage]
  float* begins;         // [kDeltaStage] 1 where a segment begins, else 0
  float *dout, *errors;  // [kDeltaStage, columns]; of the backward pass alone

  static constexpr std::size_t bytes(bool backward) {
    return sizeof(float) * kDeltaStage * (2 * Layout::width + (backward ? 4 : 2) * Layout::columns + 3);
  }
  GPU_FUNCTION explicit DeltaStage(float* memory) {
    q = memory;
    k = q + kDeltaStage * Layout::width;
    values = k + kDeltaStage * Layout::width;
    outs = values + kDeltaStage * Layout::columns;
    decay = outs + kDeltaStage * Layout::columns;
    beta = decay + kDeltaStage;
    begins = beta + kDeltaStage;
    dout = begins + kDeltaStage;
    errors = dout + kDeltaStage * Layout::columns;
  }

  // Fetches tokens [first, first + count) of a head, and columns from `column` on.
  template <typename T>
  GPU_FUNCTION void fetch(const Delta<T>& p, std::int64_t b, std::int64_t head, int column,
                          std::int64_t first, int count) const {
    const std::int64_t key_head = head / p.group();
    for (int i = thread_index(); i < count * Layout::width; i += kDeltaThreads) {
      const int t = i / Layout::width, row = i % Layout::width;
      const std::int64_t vector = (b * p.length + first + t) * p.key_heads + key_head;
      const std::int64_t at = vector * p.key_width + row;
      const bool there = row < p.key_width;
      const bool unit = p.q_factor != nullptr;
      q[i] = there ? to_float(p.q[at]) * p.scale * (unit ? p.q_factor[vector] : 1.0f) : 0.0f;
      k[i] = there ? to_float(p.k[at]) * (unit ? p.k_factor[vector] : 1.0f) : 0.0f;
    }
    for (int i = thread_index(); i < count * Layout::columns; i += kDeltaThreads) {
      const int t = i / Layout::columns, j = column + i % Layout::columns;
      const std::int64_t at = ((b * p.length + first + t) * p.value_heads + head) * p.value_width + j;
      values[i] = j < p.value_width ? to_float(p.v[at]) : 0.0f;
      if (p.dout != nullptr) dout[i] = j < p.value_width ? to_float(p.dout[at]) : 0.0f;
    }
    for (int t = thread_index(); t < count; t += kDeltaThreads) {
      const std::int64_t token = b * p.length + first + t, number = token * p.value_heads + head;
      decay[t] = expf(p.g[number]);
      beta[t] = p.beta[number];
      const bool after = first + t > 0;
      begins[t] = after && p.segments != nullptr && p.segments[token] != p.segments[token - 1] ? 1.0f : 0.0f;
    }
  }

  // Writes outs of those tokens and columns.
  template <typename T>
  GPU_FUNCTION void put_outs(const Delta<T>& p, std::int64_t b, std::int64_t head, int column,
                             std::int64_t first, int count, T* to) const {
    for (int i = thread_index(); i < count * Layout::columns; i += kDeltaThreads) {
      const int t = i / Layout::columns, j = column + i % Layout::columns;
      if (j < p.value_width)
        to[((b * p.length + first + t) * p.value_heads + head) * p.value_width + j] = from_float<T>(outs[i]);
    }
  }

  // The state of a column after the decay of token `t`, from that before it; returns what the token's value
  // is beyond what that state gives.
  GPU_FUNCTION float decay_state(int t, float* state) const {
    const bool anew = begins[t] != 0;
    const float factor = decay[t];
    const float* const key = k + t * Layout::width + Layout::lane();
    float given = 0;
    GPU_UNROLL
    for (int r = 0; r < Layout::rows; ++r) {
      state[r] = anew ? 0.0f : state[r] * factor;
      given += state[r] * key[r * Layout::lanes];
    }
    return values[t * Layout::columns + Layout::column()] - Layout::column_sum(given);
  }
  // Adds token `t` to the state, which is then that after it.
  GPU_FUNCTION void add_to_state(int t, float error, float* state) const {
    const float* const key = k + t * Layout::width + Layout::lane();
    const float strong = beta[t] * error;
    GPU_UNROLL
    for (int r = 0; r < Layout::rows; ++r) state[r] += key[r * Layout::lanes] * strong;
  }
};

}  // namespace switchyard::gpu
