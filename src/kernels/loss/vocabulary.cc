#include "kernels/loss/vocabulary.h"

#include "core/error.h"
#include "kernels/loss/vocabulary_problem.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

constexpr InnerImplementation<LogitMaximaKernel, LogitMaximaProblem> kMaxima[] = {
    SWITCHYARD_SIMD_INNER(logit_block_maxima)};
constexpr InnerImplementation<LogitWeightsKernel, LogitWeightsProblem> kWeights[] = {
    SWITCHYARD_SIMD_INNER(logit_weights)};
constexpr InnerImplementation<LogitsFromKernel, LogitsFromProblem> kFrom[] = {
    SWITCHYARD_SIMD_INNER(logits_from)};

}  // namespace

void logit_block_maxima(std::span<const float> logits, std::span<float> maxima) {
  CHECK(maxima.size() == (logits.size() + kLogitBlock - 1) / kLogitBlock, "{} maxima of {} logits",
        maxima.size(), logits.size());
  const LogitMaximaProblem problem{logits, maxima.data()};
  choose("logit_block_maxima", kMaxima, problem)(problem);
}

std::uint64_t logit_weights(std::span<const float> logits, float top, double factor, int scale,
                            std::span<std::uint64_t> weights) {
  CHECK(weights.empty() || weights.size() == logits.size(), "{} weights of {} logits", weights.size(),
        logits.size());
  CHECK(scale >= 0 && scale <= kMostWeightBits && factor > 0, "scale {}, factor {}", scale, factor);
  const LogitWeightsProblem problem{logits, top, factor, scale, weights.empty() ? nullptr : weights.data()};
  return choose("logit_weights", kWeights, problem)(problem);
}

std::size_t logits_from(std::span<const float> logits, float least, std::span<std::uint32_t> ids) {
  CHECK(ids.size() >= logits.size() + kIdsRoom, "room for {} ids of {} logits", ids.size(), logits.size());
  const LogitsFromProblem problem{logits, least, ids.data()};
  return choose("logits_from", kFrom, problem)(problem);
}

}  // namespace switchyard
