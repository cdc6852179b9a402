#include "train/qk_clip.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/pointwise/strided_copy.h"
#include "models/pipeline.h"

namespace switchyard {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

}  // namespace

std::size_t stack_of(const ModelConfig& model, std::int64_t layer) {
  if (layer >= model.layers) return static_cast<std::size_t>(2 + layer - model.layers);
  return model.layer(layer).has_experts() ? 1 : 0;
}

StackScores largest_scores_of_stacks(Context& context, const ModelConfig& model,
                                     std::span<const HeadScores> scores) {
  const auto stacks = static_cast<std::size_t>(2 + model.predictions),
             heads = static_cast<std::size_t>(model.attention().heads);
  std::vector<float> largest(stacks * heads, kNoScore);
  const std::int64_t count = std::ssize(scores), here = scores.empty() ? 0 : scores[0].largest.size();
  const Tensor together = context.empty(DType::f32, {count, here});
  for (std::int64_t i = 0; i < count; ++i)
    strided_copy(*context.pool, scores[static_cast<std::size_t>(i)].largest.view().reshaped({1, here}),
                 together.view().rows(i, i + 1));
  const Tensor host = read_back(context, together, "attention scores",
                                [&] { return Memory().zeros(DType::f32, together.shape()); });
  for (std::int64_t i = 0; i < count; ++i) {
    const HeadScores& of_layer = scores[static_cast<std::size_t>(i)];
    for (std::int64_t n = 0; n < here; ++n) {
      float& most = largest[stack_of(model, of_layer.layer) * heads +
                            static_cast<std::size_t>(of_layer.first_head + n)];
      most = std::max(most, host.data<float>()[i * here + n]);
    }
  }
  max_over_run(context, largest);
  StackScores result;
  for (std::size_t s = 0; s < stacks; ++s) {
    const auto first = largest.begin() + static_cast<std::ptrdiff_t>(s * heads);
    result.emplace_back(first, first + static_cast<std::ptrdiff_t>(heads));
  }
  return result;
}

double largest_of(const StackScores& scores) {
  float most = kNoScore;
  for (const auto& of_stack : scores) most = std::max(most, *std::ranges::max_element(of_stack));
  return static_cast<double>(most);
}

std::vector<float> clip_factors(std::span<const float> scores, double threshold) {
  std::vector<float> factors;
  const auto limit = static_cast<float>(threshold);
  for (const float m : scores) factors.push_back(m > 0 ? std::min(1.0f, limit / (m + 1e-6f)) : 1.0f);
  return factors;
}

std::vector<float> clip_columns(const ModelConfig& model, bool queries, std::span<const float> factors) {
  std::vector<float> columns;
  for (const float s : factors) {
    columns.insert(columns.end(), static_cast<std::size_t>(model.attention().nope), std::sqrt(s));
    if (queries)
      columns.insert(columns.end(), static_cast<std::size_t>(model.attention().rope_dim), s);
    else
      columns.insert(columns.end(), static_cast<std::size_t>(model.attention().v_dim), 1.0f);
  }
  return columns;
}

}  // namespace switchyard
