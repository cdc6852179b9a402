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

namespace {

double d(std::int64_t x) {
  return static_cast<double>(x);
}

// Multiply-adds of a token in a layer's attention: products with weights, and with the keys that it sees.
double attention_products(const ModelConfig& m, const AttentionKind& k, std::int64_t sequence) {
  const double qk = k.mla ? d(k.nope + k.rope_dim) : d(k.head_dim), v = d(k.v_dim), heads = d(k.heads),
               emb = d(m.emb);
  double sum = heads * v * d(m.moe_emb);
  if (k.mla) {
    sum += k.q_lora > 0 ? emb * d(k.q_lora) + d(k.q_lora) * heads * qk : emb * heads * qk;
    sum += emb * d(k.kv_lora + k.rope_dim) + d(k.kv_lora) * heads * d(k.nope + k.v_dim);
  } else {
    const double gate = k.gate_of_heads ? 1 : k.gate ? v : 0;
    sum += emb * (heads * (qk + gate) + d(k.kv_heads) * (qk + v));
  }
  double keys = d(sequence) / 2;  // causal: the mean of a token
  if (k.has_indexer() && sequence > k.indexer_topk) {
    const double chosen = d(k.indexer_topk), index = d(k.indexer_heads);
    sum += d(k.q_lora) * index * d(k.indexer_dim) + emb * (d(k.indexer_dim) + index);
    sum += index * d(k.indexer_dim + 1) * keys;
    keys = chosen - chosen * chosen / (2 * d(sequence));
  }
  return sum + heads * (qk + v) * keys;
}

// A gated delta net's multiply-adds: its products with weights, and a token's three with a state.
double delta_products(const ModelConfig& m, const DeltaKind& k) {
  const double v = d(k.value_heads * k.value_dim), qk = 2 * d(k.key_heads * k.key_dim);
  return d(m.emb) * (qk + 3 * v + 2 * d(k.value_heads)) + d(k.taps) * (qk + v) + 3 * v * d(k.key_dim);
}

}  // namespace

double train_flops_per_token(const ModelConfig& m, std::int64_t sequence) {
  const double emb = d(m.emb), moe_emb = d(m.moe_emb);
  const double sparse =
      3 * moe_emb * (d(m.moe_mlp) * d(m.moe().slots) + d(m.shared_mlp)) + moe_emb * d(m.moe().experts);
  double sum = 0;
  for (const LayerSpec& layer : m.layer_specs) {
    sum += layer.delta >= 0 ? delta_products(m, m.delta_of(layer))
                            : attention_products(m, m.attention_of(layer), sequence);
    sum += layer.has_experts() ? sparse : 3 * emb * d(m.mlp_of(layer).width);
    if (m.latent_experts) sum += moe_emb * emb;
  }
  // A prediction layer is a layer with a projection before it and the head after it.
  return 6 * (sum + d(m.predictions) * 2 * emb * emb + d(1 + m.predictions) * emb * d(m.vocab));
}

}  // namespace switchyard
