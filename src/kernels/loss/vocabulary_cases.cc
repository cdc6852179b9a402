// Passes over a vocabulary's logits: the bits of the reference implementation.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/loss/vocabulary.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

constexpr std::int64_t kVocabularySizes[] = {1, 15, 16, 17, 63, 64, 65, 1000, 40001};
constexpr float kLogitScale = 6;

std::span<const float> logits_in(const Arrays& in) {
  return {in[0].floats(), static_cast<std::size_t>(in[0].size())};
}

std::vector<Case> vocabulary_cases(std::uint32_t seed,
                                   const std::function<void(std::int64_t n, Case& made)>& finish) {
  std::vector<Case> cases;
  for (const std::int64_t n : kVocabularySizes) {
    Draw draw(++seed * 4);
    Case made{DType::f32, fmt::format("{} logits, seed {}", n, draw.seed())};
    made.inputs.push_back(draw.normal(DType::f32, n, kLogitScale));
    finish(n, made);
    cases.push_back(std::move(made));
  }
  return cases;
}

std::vector<Case> maxima_cases(std::uint32_t seed) {
  return vocabulary_cases(seed, [](std::int64_t n, Case& made) {
    const auto block = static_cast<std::int64_t>(kLogitBlock);
    made.outputs.push_back({"maxima", PoisonedArray(DType::f32, (n + block - 1) / block)});
    made.run = [](ThreadPool&, const Arrays& in, Arrays& out) {
      logit_block_maxima(logits_in(in), {out[0].floats(), static_cast<std::size_t>(out[0].size())});
    };
  });
}

std::vector<Case> weights_cases(std::uint32_t seed) {
  return vocabulary_cases(seed, [](std::int64_t n, Case& made) {
    made.outputs.push_back({"halves of the weights", PoisonedArray(DType::i32, 2 * n)});
    made.outputs.push_back({"halves of the sums", PoisonedArray(DType::i32, 4)});
    made.run = [](ThreadPool&, const Arrays& in, Arrays& out) {
      constexpr double kFactor = 1 / 0.7;
      constexpr int kScale = 44;
      const std::span<const float> logits = logits_in(in);
      const float top = *std::max_element(logits.begin(), logits.end());
      auto* const sums = static_cast<std::uint64_t*>(out[1].data());
      sums[0] = logit_weights(logits, top, kFactor, kScale,
                              {static_cast<std::uint64_t*>(out[0].data()), logits.size()});
      sums[1] = logit_weights(logits, top, kFactor, kScale, {});
    };
  });
}

std::vector<Case> from_cases(std::uint32_t seed) {
  return vocabulary_cases(seed, [](std::int64_t n, Case& made) {
    const auto room = static_cast<std::int64_t>(kIdsRoom);
    made.outputs.push_back({"ids", PoisonedArray(DType::i32, n + room)});
    made.outputs.push_back({"count", PoisonedArray(DType::i32, 1)});
    made.run = [](ThreadPool&, const Arrays& in, Arrays& out) {
      const std::span ids(static_cast<std::uint32_t*>(out[0].data()),
                          static_cast<std::size_t>(out[0].size()));
      const std::size_t count = logits_from(logits_in(in), kLogitScale / 4, ids);
      std::fill(ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), 0);  // what may be overwritten
      *static_cast<std::int32_t*>(out[1].data()) = static_cast<std::int32_t>(count);
    };
  });
}

}  // namespace

std::vector<KernelCases> vocabulary_kernels() {
  return {
      {.name = "logit_block_maxima", .table = "logit_block_maxima", .cases = maxima_cases, .on_host = true},
      {.name = "logit_weights", .table = "logit_weights", .cases = weights_cases, .on_host = true},
      {.name = "logits_from", .table = "logits_from", .cases = from_cases, .on_host = true}};
}

}  // namespace switchyard::selftest
