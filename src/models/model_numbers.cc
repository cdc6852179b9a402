// Numbers derived from a model's config: rotation frequencies, and operations for a token.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/model_config.h"

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
  const double qk = m.mla ? d(m.nope + m.rope_dim) : d(m.head_dim), v = d(m.v_dim), heads = d(m.heads),
               emb = d(m.emb);
  const double moe_emb = d(m.moe_emb);
  double attention = heads * v * moe_emb + (m.latent_experts ? moe_emb * emb : 0);
  if (m.mla) {
    attention += m.q_lora > 0 ? emb * d(m.q_lora) + d(m.q_lora) * heads * qk : emb * heads * qk;
    attention += emb * d(m.kv_lora + m.rope_dim) + d(m.kv_lora) * heads * d(m.nope + m.v_dim);
  } else {
    attention += emb * d(m.head_dim) * (heads * (m.attention_gate ? 2 : 1) + 2 * d(m.kv_heads));
  }
  double keys = d(sequence) / 2;  // causal: the mean of a token
  double scores = 0;
  if (m.has_indexer() && sequence > m.indexer_topk) {
    const double chosen = d(m.indexer_topk), index = d(m.indexer_heads);
    attention += d(m.q_lora) * index * d(m.indexer_dim) + emb * (d(m.indexer_dim) + index);
    scores += index * d(m.indexer_dim + 1) * keys;
    keys = chosen - chosen * chosen / (2 * d(sequence));
  }
  scores += heads * (qk + v) * keys;
  const double dense = 3 * emb * d(m.mlp);
  const double sparse =
      3 * moe_emb * (d(m.moe_mlp) * d(m.moe.slots) + d(m.shared_mlp)) + moe_emb * d(m.moe.experts);
  // A gated delta net's multiply-adds: its products with weights, and a token's three with a state.
  const double delta_v = d(m.delta_value_heads * m.delta_value_dim),
               delta_qk = 2 * d(m.delta_key_heads * m.delta_key_dim);
  const double delta = emb * (delta_qk + 3 * delta_v + 2 * d(m.delta_value_heads)) +
                       d(m.delta_taps) * (delta_qk + delta_v) + 3 * delta_v * d(m.delta_key_dim);
  const auto delta_layers = static_cast<double>(
      std::count_if(m.layer_specs.begin(), m.layer_specs.end(), [](const LayerSpec& l) { return l.delta; }));
  const auto moe_layers = static_cast<double>(m.moe_layers().size());
  // A prediction layer is a layer with a projection before it and the head after it.
  return 6 * ((d(m.depth()) - delta_layers) * (attention + scores) + delta_layers * delta +
              (d(m.depth()) - moe_layers) * dense + moe_layers * sparse + d(m.predictions) * 2 * emb * emb +
              d(1 + m.predictions) * emb * d(m.vocab));
}

}  // namespace switchyard
