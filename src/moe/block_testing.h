// Test support: one MoE block on a mesh, with problems, their outcome, and router configurations.
#pragma once

#include <string>
#include <vector>

#include "autograd/remat.h"
#include "autograd/testing.h"
#include "moe/balance.h"
#include "moe/block.h"

namespace switchyard::moe_test {

using namespace autograd_test;

inline MoeExecution with_balance_loss() {
  return {.float32_gate_logits = true, .balance_weight = 0.1};
}

enum class Load { random, balanced, one_hot, empty_experts };

struct Problem {
  std::int64_t batch = 8, length = 4, width = 8, hidden = 8;
  Load load = Load::random;
  MoeConfig config;
  MoeExecution execution = with_balance_loss();
  DType dtype = DType::f32;
  RematPolicy policy = {};   // remat policy of a region around the block
  bool gaps = true;          // every seventh token is padding
  std::int64_t padding = 0;  // tokens of padding behind each row's, beyond `length`

  std::int64_t columns() const { return length + padding; }
};

// x [B,S,...] with `padding` more places in each row, filled with `value`.
inline Tensor with_padding(const Tensor& x, std::int64_t padding, float value) {
  Shape shape = x.shape();
  shape[1] += padding;
  Tensor all(x.dtype(), shape);
  std::fill_n(all.data<float>(), all.size(), value);
  const std::int64_t from = x.size() / x.dim(0), to = all.size() / x.dim(0);
  for (std::int64_t b = 0; b < x.dim(0); ++b)
    std::copy_n(x.data<float>() + b * from, from, all.data<float>() + b * to);
  return all;
}

// The first `length` places of each row of x [B,S,...].
inline Tensor without_padding(const Tensor& x, std::int64_t length) {
  Shape shape = x.shape();
  shape[1] = length;
  Tensor kept(x.dtype(), shape);
  const auto rows = static_cast<std::size_t>(x.dim(0));
  const std::size_t to = kept.bytes() / rows, from = x.bytes() / rows;
  for (std::size_t b = 0; b < rows; ++b) std::copy_n(x.raw() + b * from, to, kept.raw() + b * to);
  return kept;
}

struct Outcome {
  std::map<std::string, Tensor> tensors;  // y, balance and the gradients; of tokens, without padding behind
  Tensor whole_y, whole_dx;               // with that padding
  std::vector<double> rows, dropped;
  std::int64_t passes = 0;
  double shard_load = 0;           // the busiest rank's
  std::vector<std::int64_t> peak;  // bytes of each rank beyond the block's inputs
};

// Makes tokens and a gate whose routing has the wanted form.
inline void make_tokens(const Problem& p, Tensor& x, Tensor& gate) {
  const std::int64_t m = p.width, e = p.config.experts;
  x = random_tensor({p.batch, p.length, m}, 31);
  gate = random_tensor({m, e}, 32, 0.5f);
  for (std::int64_t t = 0; t < p.batch * p.length; ++t)
    x.data<float>()[t * m] = 1;  // gate's row 0 then acts as a bias
  for (std::int64_t i = 0; i < e; ++i) {
    if (p.load == Load::one_hot && i < p.config.slots) gate.data<float>()[i] += 20;
    if (p.load == Load::empty_experts && i % 3 == 1) gate.data<float>()[i] -= 20;
  }
  if (p.load == Load::balanced) {
    for (std::int64_t i = 0; i < m * e; ++i) gate.data<float>()[i] *= 0.02f;
    for (std::int64_t i = 0; i < e; ++i) gate.data<float>()[(1 + i % (m - 1)) * e + i] += 1;
    for (std::int64_t t = 0; t < p.batch * p.length; ++t) x.data<float>()[t * m + 1 + t % (m - 1)] += 8;
  }
}

inline Outcome run(const Problem& p, const Mesh& mesh) {
  const std::int64_t m = p.width, h = p.hidden, e = p.config.experts;
  Tensor x, gate;
  make_tokens(p, x, gate);
  x = with_padding(x, p.padding, 1);  // all alike, so that padding would crowd the same experts
  const Tensor wi_0 = random_tensor({e, m, h}, 33, 0.4f), wi_1 = random_tensor({e, m, h}, 34, 0.4f);
  const Tensor wo = random_tensor({e, h, m}, 35, 0.4f), bias = random_tensor({e}, 36, 0.3f),
               dy = with_padding(random_tensor({p.batch, p.length, m}, 37), p.padding, 1);
  Tensor segments = Tensor::zeros(DType::i32, {p.batch, p.columns()});
  for (std::int64_t i = 0; i < p.batch * p.length; ++i)
    segments.data<std::int32_t>()[i / p.length * p.columns() + i % p.length] = p.gaps && i % 7 == 3 ? 0 : 1;

  Gathered gathered(mesh);
  std::vector<std::int64_t> peak(static_cast<std::size_t>(mesh.size()));
  std::vector<LayerLoad> loads(static_cast<std::size_t>(mesh.size()));
  on_mesh(mesh, [&](Context& c) {
    MoeWeights w;
    w.gate.weight =
        leaf_by_rules(c, gate, {"embed", ""}, true, p.execution.float32_gate_logits ? DType::f32 : p.dtype);
    if (p.config.bias) w.gate_bias = leaf(c, bias, replicated(1));
    w.wi_0.weight = never_save(leaf_by_rules(c, wi_0, {"exp", "embed_moe", "mlp_moe"}, true, p.dtype));
    w.wi_1.weight = never_save(leaf_by_rules(c, wi_1, {"exp", "embed_moe", "mlp_moe"}, true, p.dtype));
    w.wo.weight = never_save(leaf_by_rules(c, wo, {"exp", "mlp_moe", "embed_moe"}, true, p.dtype));
    if (p.config.logit_bias) w.logit_bias = leaf(c, bias, replicated(1));
    if (p.config.expert_bias) {
      w.wi_0.bias = leaf_by_rules(c, random_tensor({e, h}, 38, 0.5f), {"exp", "mlp_moe"}, true, p.dtype);
      w.wi_1.bias = leaf_by_rules(c, random_tensor({e, h}, 39, 0.5f), {"exp", "mlp_moe"}, true, p.dtype);
      w.wo.bias = leaf_by_rules(c, random_tensor({e, m}, 40, 0.5f), {"exp", "embed_moe"}, true, p.dtype);
    }
    const Array in = leaf_by_rules(c, x, {"activation_batch", "activation_norm_length", "activation_embed"},
                                   true, p.dtype);
    const Array seg = leaf_by_rules(c, segments, {"activation_batch", "activation_norm_length"});
    const auto account = std::make_shared<MemoryAccount>();
    c.memory = Memory(Device::cpu(), account);
    MoeOutput out = [&] {
      const RematRegion region(c, p.policy);
      return moe_block(c, p.config, p.execution, w, in, seg, 3, 2);
    }();
    read_loads(c, std::span(&out.load, 1));
    EXPECT_EQ(out.y.sharding(), in.sharding());
    gathered.put(c, "y", out.y);
    gathered.put(c, "ids", out.routing.ids);
    loads[static_cast<std::size_t>(c.rank)] = out.load;
    std::vector<Array> roots{out.y};
    std::vector<Tensor> seeds{block_of(mesh, c.rank, dy, dual(mesh, out.y.sharding())).cast(p.dtype)};
    if (p.execution.balance_weight > 0) {
      gathered.put(c, "balance", out.balance_loss);
      roots.push_back(out.balance_loss);
      const float one = 1;
      seeds.push_back(
          block_of(mesh, c.rank, Tensor::of<float>({}, std::span(&one, 1)), dual(mesh, Sharding{})));
    }
    backward(c, roots, seeds);
    peak[static_cast<std::size_t>(c.rank)] = account->peak();
    gathered.put_grad(c, "dx", in);
    gathered.put_grad(c, "dgate", w.gate.weight);
    if (p.config.bias) gathered.put_grad(c, "dbias", w.gate_bias);
    if (p.config.logit_bias) gathered.put_grad(c, "dlogit_bias", w.logit_bias);
    if (p.config.expert_bias) {
      gathered.put_grad(c, "dwi_0_bias", w.wi_0.bias);
      gathered.put_grad(c, "dwi_1_bias", w.wi_1.bias);
      gathered.put_grad(c, "dwo_bias", w.wo.bias);
    }
    gathered.put_grad(c, "dwi_0", w.wi_0.weight);
    gathered.put_grad(c, "dwi_1", w.wi_1.weight);
    gathered.put_grad(c, "dwo", w.wo.weight);
  });
  Outcome outcome;
  outcome.peak = peak;
  for (const char* name : {"y", "ids", "dx", "dgate", "dwi_0", "dwi_1", "dwo"})
    outcome.tensors[name] = gathered.get(name);
  outcome.whole_y = outcome.tensors["y"], outcome.whole_dx = outcome.tensors["dx"];
  for (const char* name : {"y", "ids", "dx"})
    if (p.padding > 0) outcome.tensors[name] = without_padding(outcome.tensors[name], p.length);
  if (p.config.bias) outcome.tensors["dbias"] = gathered.get("dbias");
  if (p.config.logit_bias) outcome.tensors["dlogit_bias"] = gathered.get("dlogit_bias");
  for (const char* name : {"dwi_0_bias", "dwi_1_bias", "dwo_bias"})
    if (p.config.expert_bias) outcome.tensors[name] = gathered.get(name);
  if (p.execution.balance_weight > 0) outcome.tensors["balance"] = gathered.get("balance");
  outcome.rows.assign(static_cast<std::size_t>(e), 0);
  outcome.dropped = outcome.rows;
  for (const auto& load : loads) {
    outcome.passes = std::max(outcome.passes, load.passes);
    outcome.shard_load = std::max(outcome.shard_load, load.shard_load);
    for (std::size_t i = 0; i < outcome.rows.size(); ++i) {
      outcome.rows[i] += load.rows.at(i);
      outcome.dropped[i] += load.dropped.at(i);
    }
  }
  return outcome;
}

inline void expect_same(const Outcome& got, const Outcome& want, double tolerance, const std::string& what) {
  for (const auto& [name, tensor] : want.tensors) {
    if (name == "ids")
      EXPECT_TRUE(identical(got.tensors.at(name), tensor)) << what << ": " << name;
    else
      EXPECT_TRUE(close(got.tensors.at(name), tensor, tolerance)) << what << ": " << name;
  }
  EXPECT_EQ(got.rows, want.rows) << what;
  EXPECT_EQ(got.dropped, want.dropped) << what;
}

inline MoeConfig mixtral(std::int64_t experts, std::int64_t slots) {
  MoeConfig config;
  config.experts = experts;
  config.slots = slots;
  return config;
}

inline MoeConfig deepseek3(std::int64_t experts, std::int64_t slots) {
  MoeConfig config = mixtral(experts, slots);
  config.score = RouterScore::sigmoid;
  config.softmax_over_selected = false;
  config.normalise = true;
  config.normalise_epsilon = 1e-20f;
  config.scaling = 2.5f;
  config.bias = true;
  return config;
}

// The sigmoid of a chosen logit multiplies the expert's input.
inline MoeConfig llama4(std::int64_t experts, std::int64_t slots) {
  MoeConfig config = mixtral(experts, slots);
  config.score = RouterScore::sigmoid;
  config.softmax_over_selected = false;
  config.choose_by_logit = config.weights_on_inputs = true;
  return config;
}

// Biases everywhere; gates and up projections that reach the clamp.
inline MoeConfig gpt_oss(std::int64_t experts, std::int64_t slots) {
  MoeConfig config = mixtral(experts, slots);
  config.logit_bias = config.expert_bias = true;
  config.gate_limit = 1;
  config.gate_alpha = 1.702f;
  return config;
}

}  // namespace switchyard::moe_test
