// Numbers derived from a model's config: rotation frequencies, and operations for a token.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/blocks/mixer.h"

namespace switchyard {

std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t dim) {
  std::vector<double> frequencies;
  const auto d = static_cast<double>(dim);
  for (std::int64_t i = 0; i < dim / 2; ++i)
    frequencies.push_back(std::pow(rope.theta, -2.0 * static_cast<double>(i) / d));
  const double original = static_cast<double>(rope.original_positions), two_pi = 2 * std::numbers::pi;
  if (rope.type == "llama3.1") {
    for (double& f : frequencies) {
      const double wavelength = two_pi / f;
      if (wavelength < original / rope.high_frequency_factor) continue;
      if (wavelength > original / rope.low_frequency_factor) {
        f /= rope.factor;
        continue;
      }
      const double band = rope.high_frequency_factor - rope.low_frequency_factor;
      if (band == 0) continue;  // at the one bound that is then both
      const double smooth = (original / wavelength - rope.low_frequency_factor) / band;
      f = (1 - smooth) * f / rope.factor + smooth * f;
    }
  } else if (rope.type == "linear") {
    for (double& f : frequencies) f /= rope.factor;
  } else if (rope.type == "yarn") {
    auto dim_of = [&](double rotations) {
      return d * std::log(original / (rotations * two_pi)) / (2 * std::log(rope.theta));
    };
    double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1 - ramp);
    }
  }
  for (std::size_t i = 0; i < rope.divisors.size(); ++i) frequencies[i] /= rope.divisors[i];
  return frequencies;
}

double rope_amplitude(const RopeConfig& rope) {
  return rope.type == "yarn" && rope.attention_scaling ? 0.1 * std::log(rope.factor) + 1.0 : 1.0;
}

double train_flops_per_token(const ModelConfig& m, std::int64_t sequence) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const double emb = d(m.emb), moe_emb = d(m.moe_emb);
  const double sparse =
      3 * moe_emb * (d(m.moe_mlp) * d(m.moe().slots) + d(m.shared_mlp)) + moe_emb * d(m.moe().experts);
  double sum = 0;
  for (const LayerSpec& layer : m.layer_specs) {
    sum += mixer_of(m, layer).products(m, layer, sequence);
    sum += layer.has_experts() ? sparse : 3 * emb * d(m.mlp_of(layer).width);
    if (m.latent_experts) sum += moe_emb * emb;
  }
  // A prediction layer is a layer with a projection before it and the head after it.
  return 6 * (sum + d(m.predictions) * 2 * emb * emb + d(1 + m.predictions) * emb * d(m.vocab));
}

}  // namespace switchyard
