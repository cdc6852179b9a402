// Sparse attention: an indexer's scores, and the choice of keys. A thread or a warp takes a pair of a query
// and a key and goes through the heads; sums are float32, in an order that the sizes alone decide.
#include "kernels/attention/index_problem.h"
#include "kernels/cuda/portable.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kMostWidth = 8;  // of a vector, in warps: 256 elements

template <typename T>
GPU_FUNCTION float dot(const T* x, const T* y, std::int64_t width) {
  float sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += to_float(x[d]) * to_float(y[d]);
  return sum;
}

// A block takes some keys of one query, a thread each.
template <typename T>
GPU_KERNEL score_keys(IndexSizes s, SeenKeys seen, const T* q, const T* k, const float* weights, float factor,
                      std::int64_t blocks_of_query, float* scores) {
  const std::int64_t row = block_index() / blocks_of_query,
                     key = block_index() % blocks_of_query * kThreads + thread_index();
  if (key >= s.keys) return;
  const std::int64_t batch = row / s.queries, query = row % s.queries;
  float score = -INFINITY;
  if (seen.sees(batch, query, key)) {
    score = 0;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const float product =
          dot(q + (row * s.heads + h) * s.width, k + (batch * s.keys + key) * s.width, s.width);
      score += weights[row * s.heads + h] * factor * (product > 0 ? product : 0.0f);
    }
  }
  scores[row * s.keys + key] = score;
}

// A vector in the lanes of a warp.
struct Spread {
  float at[kMostWidth] = {};

  template <typename T>
  GPU_FUNCTION void add(float factor, const T* x, std::int64_t width) {
    for (int part = 0; part < kMostWidth; ++part) {
      const std::int64_t d = part * kWarp + thread_index() % kWarp;
      if (d < width) at[part] += factor * to_float(x[d]);
    }
  }
  template <typename T>
  GPU_FUNCTION void store(T* to, std::int64_t width) const {
    for (int part = 0; part < kMostWidth; ++part) {
      const std::int64_t d = part * kWarp + thread_index() % kWarp;
      if (d < width) to[d] = from_float<T>(at[part]);
    }
  }
};

// A warp takes a query's head: the gradients of its vector and of its weight.
template <typename T>
GPU_KERNEL backward_queries(IndexSizes s, const T* q, const T* k, const float* weights, float factor,
                            const float* dscores, T* dq, float* dweights) {
  const std::int64_t vector = block_index() * kWarps + thread_index() / kWarp;  // [B,S,H]
  if (vector >= s.batch * s.queries * s.heads) return;
  const std::int64_t row = vector / s.heads, batch = row / s.queries;
  const T* const keys = k + batch * s.keys * s.width;
  Spread sums;
  float dweight = 0;
  for (std::int64_t first = 0; first < s.keys; first += kWarp) {
    const std::int64_t key = first + thread_index() % kWarp;
    float gradient = 0;
    if (key < s.keys) {
      const float of_score = dscores[row * s.keys + key];
      const float product = of_score == 0 ? 0.0f : dot(q + vector * s.width, keys + key * s.width, s.width);
      if (product > 0) {
        dweight += of_score * product;
        gradient = of_score * weights[vector] * factor;
      }
    }
    const std::int64_t count = s.keys - first < kWarp ? s.keys - first : kWarp;
    for (int j = 0; j < count; ++j) {
      const float of_key = shuffle(gradient, j);
      if (of_key != 0) sums.add(of_key, keys + (first + j) * s.width, s.width);
    }
  }
  dweight = warp_sum(dweight);
  sums.store(dq + vector * s.width, s.width);
  if (thread_index() % kWarp == 0) dweights[vector] = dweight * factor;
}

// A warp takes a key and goes through the heads of all queries.
template <typename T>
GPU_KERNEL backward_keys(IndexSizes s, const T* q, const T* k, const float* weights, float factor,
                         const float* dscores, T* dk) {
  const std::int64_t vector = block_index() * kWarps + thread_index() / kWarp;  // [B,T]
  if (vector >= s.batch * s.keys) return;
  const std::int64_t batch = vector / s.keys, key = vector % s.keys, begin = batch * s.queries * s.heads,
                     vectors = s.queries * s.heads;
  Spread sums;
  for (std::int64_t first = 0; first < vectors; first += kWarp) {
    const std::int64_t at = begin + first + thread_index() % kWarp;
    float gradient = 0;
    if (at < begin + vectors) {
      const float of_score = dscores[at / s.heads * s.keys + key];
      if (of_score != 0 && dot(q + at * s.width, k + vector * s.width, s.width) > 0)
        gradient = of_score * weights[at] * factor;
    }
    const std::int64_t count = vectors - first < kWarp ? vectors - first : kWarp;
    for (int j = 0; j < count; ++j) {
      const float of_query = shuffle(gradient, j);
      if (of_query != 0) sums.add(of_query, q + (begin + first + j) * s.width, s.width);
    }
  }
  sums.store(dk + vector * s.width, s.width);
}

// Numbers in the order of the scores; 0 of those that are never chosen.
GPU_FUNCTION std::uint32_t rank_of(float score) {
  if (score != score || score == -INFINITY) return 0;
  const std::uint32_t bits = bits_of(score + 0.0f);  // -0 is 0
  return (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
}

// Counts, for all lanes, a row's scores of at least this rank.
GPU_FUNCTION std::int64_t count_from(std::uint32_t rank, const float* scores, std::int64_t keys) {
  std::int64_t count = 0;
  for (std::int64_t t = thread_index() % kWarp; t < keys; t += kWarp) count += rank_of(scores[t]) >= rank;
  return warp_sum(count);
}

// A warp takes a row: it finds the rank of the last chosen score bit by bit, and then goes through the keys.
GPU_KERNEL choose_keys_of_rows(const float* scores, std::int64_t rows, std::int64_t keys, std::int64_t count,
                               std::int32_t* bits, std::int32_t* ids, std::int32_t first_id) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;
  if (row >= rows) return;
  const int lane = thread_index() % kWarp;
  const float* const own = scores + row * keys;
  const std::int64_t there = count_from(1, own, keys), chosen = there < count ? there : count;
  std::uint32_t least = 1;  // the largest rank that as many scores have
  if (there > count) {
    least = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const std::uint32_t higher = least | 1u << bit;
      if (count_from(higher, own, keys) >= chosen) least = higher;
    }
  }
  const std::int64_t above = least == ~0u ? 0 : count_from(least + 1, own, keys);
  std::int64_t equal = chosen - above, at = 0;  // equals that are still to be chosen, and the next id's place
  const std::int64_t words = words_of_keys(keys);
  const std::uint32_t below = (1u << lane) - 1;
  for (std::int64_t word = 0; word < words; ++word) {
    const std::int64_t key = word * 32 + lane;
    const std::uint32_t rank = key < keys ? rank_of(own[key]) : 0;
    const std::uint32_t equals = ballot(rank == least);
    const bool taken =
        rank > least || (rank == least && bits_set(equals & below) < (there > count ? equal : kWarp));
    const std::uint32_t all = ballot(taken);
    equal -= bits_set(equals);
    if (equal < 0) equal = 0;
    if (bits != nullptr && lane == 0) bits[row * words + word] = static_cast<std::int32_t>(all);
    if (ids != nullptr && taken)
      ids[row * count + at + bits_set(all & below)] = first_id + static_cast<std::int32_t>(key);
    at += bits_set(all);
  }
  for (std::int64_t i = at + lane; ids != nullptr && i < count; i += kWarp) ids[row * count + i] = first_id;
}

// A warp takes a row.
template <typename T>
GPU_KERNEL subtract_mean_of_rows(const T* x, std::int64_t rows, std::int64_t width, T* y) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;
  if (row >= rows) return;
  float sum = 0;
  for (std::int64_t i = thread_index() % kWarp; i < width; i += kWarp) sum += to_float(x[row * width + i]);
  const float mean = warp_sum(sum) / static_cast<float>(width);
  for (std::int64_t i = thread_index() % kWarp; i < width; i += kWarp)
    y[row * width + i] = from_float<T>(to_float(x[row * width + i]) - mean);
}

Launch warps_for(std::int64_t rows) {
  return {.blocks = divide_up(rows, kWarps), .threads = kThreads};
}

}  // namespace

void index_scores(const IndexScoresArgs& a) {
  const IndexSizes s = index_sizes(a);
  const std::int64_t blocks = divide_up(s.keys, kThreads);
  with_float_type(a.q.dtype(), [&]<typename T>(T) {
    launch({.blocks = s.batch * s.queries * blocks, .threads = kThreads}, score_keys<T>, s, seen_keys(a),
           a.q.device_data<T>(), a.k.device_data<T>(), a.weights.device_data<float>(), a.factor, blocks,
           a.scores.device_data<float>());
  });
}

void index_scores_backward(const IndexScoresBackwardArgs& a) {
  const IndexSizes s = index_sizes(a);
  if (s.width > kMostWidth * kWarp)
    fail_runtime("[index_scores] the GPU has no kernel for heads of {} elements: expected at most {}",
                 s.width, kMostWidth * kWarp);
  with_float_type(a.q.dtype(), [&]<typename T>(T) {
    const T *const q = a.q.device_data<T>(), *const k = a.k.device_data<T>();
    const float *const weights = a.weights.device_data<float>(), *const dscores =
                                                                     a.dscores.device_data<float>();
    launch(warps_for(s.batch * s.queries * s.heads), backward_queries<T>, s, q, k, weights, a.factor, dscores,
           a.dq.device_data<T>(), a.dweights.device_data<float>());
    launch(warps_for(s.batch * s.keys), backward_keys<T>, s, q, k, weights, a.factor, dscores,
           a.dk.device_data<T>());
  });
}

void choose_keys(const ChooseKeysArgs& a) {
  const std::int64_t keys = a.scores.shape().back(), rows = keys == 0 ? 0 : a.scores.size() / keys;
  launch(warps_for(rows), choose_keys_of_rows, a.scores.device_data<float>(), rows, keys, a.count,
         a.bits.device_data<std::int32_t>(), a.ids.device_data<std::int32_t>(), a.first_id);
}

void subtract_mean(const SubtractMeanArgs& a) {
  const TensorView& x = a.x;
  const std::int64_t width = x.shape().back(), rows = width == 0 ? 0 : x.size() / width;
  with_float_type(x.dtype(), [&]<typename T>(T) {
    launch(warps_for(rows), subtract_mean_of_rows<T>, x.device_data<T>(), rows, width, a.y.device_data<T>());
  });
}

}  // namespace switchyard::gpu
