#include "train/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"

namespace switchyard {
namespace {

Batch window_batch(std::span<const std::int32_t> tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  Batch b;
  b.inputs = Tensor::of<std::int32_t>({1, length}, tokens);
  b.targets = b.inputs;
  std::vector<std::int32_t> positions(tokens.size()), ones(tokens.size(), 1);
  std::iota(positions.begin(), positions.end(), 0);
  b.inputs_position = Tensor::of<std::int32_t>({1, length}, positions);
  b.inputs_segmentation = b.targets_segmentation = Tensor::of<std::int32_t>({1, length}, ones);
  return b;
}

std::int32_t draw(std::span<const float> logits, double temperature, float uniform) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (float l : logits) p.push_back(std::exp(static_cast<double>(l - top) / temperature));
  double left = static_cast<double>(uniform) * std::accumulate(p.begin(), p.end(), 0.0);
  for (std::size_t i = 0; i < p.size(); ++i) {
    left -= p[i];
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(p.size() - 1);
}

}  // namespace

std::string sample_text(Trainer& trainer, const Tokenizer& tokenizer, const std::string& prompt,
                        std::int64_t count, std::int64_t window, double temperature, std::uint32_t seed) {
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  const auto vocab =
      static_cast<std::size_t>(std::min<std::int64_t>(tokenizer.vocab_size(), trainer.model().vocab));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t keep = std::min(tokens.size(), static_cast<std::size_t>(window));
    const auto context = std::span<const std::int32_t>(tokens).last(keep);
    Tensor logits = trainer.logits(window_batch(context));
    const auto last =
        logits.span<float>().subspan((keep - 1) * static_cast<std::size_t>(trainer.model().vocab), vocab);
    // A sample is to show a paragraph, so the document may not end before.
    if (tokenizer.eos())
      last[static_cast<std::size_t>(*tokenizer.eos())] = -std::numeric_limits<float>::infinity();
    const std::int32_t next =
        draw(last, temperature, rng_uniform(rng_key(seed), static_cast<std::uint64_t>(i)));
    tokens.push_back(next);
  }
  return tokenizer.decode(tokens);
}

}  // namespace switchyard
