// The softmax of forward kernels on Hopper, of attention and of narrow losses.
#pragma once

#include "kernels/attention/cuda/hopper_parts.h"

namespace switchyard::gpu::hopper {

// A thread has two rows: the largest score of each so far, and the sum of powers of its own columns.
struct RunningSoftmax {
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float shrink[2] = {1, 1};  // what is left of the sums before the last tile

  // Scores become powers of two of their distance to the largest score.
  template <int keys>
  GPU_FUNCTION void weigh(float (&scores)[keys / 2], float scale) {
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
      GPU_UNROLL
      for (int j = 0; j < keys / 8; ++j)
        most = larger(most, larger(scores[j * 4 + half * 2], scores[j * 4 + half * 2 + 1]));
      for (int by = 1; by < 4; by *= 2) most = larger(most, shuffle_xor(most, by));
      const float origin = most == -INFINITY ? 0.0f : most * scale;  // no key is seen yet
      shrink[half] = power_of_two(largest[half] * scale - origin);
      largest[half] = most;
      float added = 0;
      GPU_UNROLL
      for (int j = 0; j < keys / 8; ++j) {
        GPU_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[j * 4 + half * 2 + e];
          score = power_of_two(fmaf(score, scale, -origin));
          added += score;
        }
      }
      sum[half] = fmaf(sum[half], shrink[half], added);
    }
  }

  // Sums of two rows, before those of the last tile are added.
  template <int count>
  GPU_FUNCTION void shrink_sums(float (&sums)[count]) const {
    GPU_UNROLL
    for (int j = 0; j < count; ++j) sums[j] *= shrink[j / 2 % 2];
  }
};

// Weights as the left operand of a product.
template <int count>
GPU_FUNCTION void round_weights(const float (&weights)[count], std::uint32_t (&rounded)[count / 2]) {
  GPU_UNROLL
  for (int i = 0; i < count / 2; ++i) rounded[i] = rounded_pair(weights[2 * i], weights[2 * i + 1]);
}

}  // namespace switchyard::gpu::hopper
