// Tokens of rows of logits: the very ones of the host.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "kernels/sampling/pick_tokens.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct PickData {
  std::vector<SamplingConfig> configs;
  std::vector<SeenToken> seen;
  std::vector<std::uint32_t> bits;
  std::vector<TokenPick> picks;
};

// Each strategy once, with what else a pick may want here and there.
std::shared_ptr<const PickData> picks_of(std::int64_t vocab) {
  using enum SamplingStrategy;
  auto data = std::make_shared<PickData>();
  data->configs = {{greedy},
                   {weighted, 0.8},
                   {nucleus, 1.3, 0.9},
                   {topk, 0.7, -1, 40},
                   {composite, 0.6, 0.8, 100},
                   {nucleus, 1, 0.95, 0, 0.01}};
  for (SamplingConfig& config : data->configs) {
    if (config.strategy == topk) config.logit_bias = {{static_cast<std::int32_t>(vocab / 2), 3.5}};
    if (config.strategy == composite) config.repetition_penalty = 1.2, config.frequency_penalty = 0.3;
  }
  for (std::int64_t token = 0; token < vocab; token += 7)
    data->seen.push_back({static_cast<std::int32_t>(token), token % 3});
  for (std::int64_t word = 0; word < (vocab + 31) / 32; ++word)
    data->bits.push_back(0x9d3f6b75u * static_cast<std::uint32_t>(word + 1) | 1u);
  for (std::size_t i = 0; i < data->configs.size(); ++i) {
    TokenPick pick{.row = static_cast<std::int64_t>(i % 2), .vocab = vocab, .config = &data->configs[i]};
    if (data->configs[i].uses_history()) pick.seen = data->seen;
    if (i % 3 == 2) pick.bits = data->bits;
    if (i % 2 == 1) pick.most_probable = static_cast<int>(i);
    pick.uniform = 0.1f + 0.15f * static_cast<float>(i);
    data->picks.push_back(pick);
  }
  return data;
}

std::vector<Case> pick_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t vocab : {1, 300, 5000, 40001}) {
    Draw draw(++seed * 4);
    Case made{DType::f32, fmt::format("vocabulary of {}, seed {}", vocab, draw.seed())};
    made.inputs.push_back(draw.normal(DType::f32, 2 * vocab, 4));
    const auto data = picks_of(vocab);
    const Tensor packed = pack_picks(data->picks);
    made.inputs.push_back(i32_array(packed.span<std::int32_t>()));
    made.outputs.push_back(
        {"tokens and numbers", PoisonedArray(DType::i32, std::ssize(data->picks) * kPickedWords)});
    made.run = [data, vocab](ThreadPool& pool, const Arrays& in, Arrays& out) {
      pick_tokens(pool, {in[0].view({2, vocab}), data->picks, in[1].view(),
                         out[0].view({std::ssize(data->picks), kPickedWords})});
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> sampling_kernels() {
  return {{.name = "pick_tokens", .table = "pick_tokens", .cases = pick_cases}};
}

}  // namespace switchyard::selftest
