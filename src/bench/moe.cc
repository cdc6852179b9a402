// Measures one rank's whole MoE layer: router, dispatch, experts, combine; forward, and with backward.
#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "autograd/op.h"
#include "bench/cases.h"
#include "bench/choices.h"
#include "bench/moe_shapes.h"
#include "bench/one_rank.h"
#include "bench/random_tensor.h"
#include "core/error.h"
#include "core/packed_words.h"
#include "kernels/packed/packed_weights.h"
#include "moe/block.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kLayerDirections{"fwd", "fwd+bwd"};
const std::vector<std::string> kWeightFormats = packed_words({"bfloat16"});
constexpr std::int64_t kDecodeTokens = 64;  // up to so many, a layer is bound by reading weights
constexpr std::int64_t kDecodeRounds = 32;  // different choices, so that weights come from memory

struct MoeCall {
  MoeShape shape;
  std::string skew, direction;
  std::string weight_format;  // of the experts
  std::optional<DType> packed() const { return packed_dtype(weight_format); }
  DType experts_dtype() const { return packed().value_or(DType::bf16); }
  bool backward() const { return direction == "fwd+bwd"; }
  bool decode() const { return shape.tokens <= kDecodeTokens && !backward(); }
};

// Seconds by phase of the forward pass: an op's time reaches from the end of the op before it to its own.
class Phases : public OpObserver {
 public:
  void start() {
    last_ = now();
    sorted_ = false;
  }
  void applied(const Op& op, std::span<const Array>, std::span<const Array>) override {
    const double at = now();
    seconds_[std::string(phase_of(op.name()))] += at - last_;
    last_ = at;
  }
  // Shares of the forward pass, and of sort, gather and combine together.
  nlohmann::ordered_json json() const {
    double all = 0, moves = 0;
    for (const auto& [phase, seconds] : seconds_) {
      all += seconds;
      if (phase != "experts" && phase != "router") moves += seconds;
    }
    nlohmann::ordered_json shares;
    for (const auto& [phase, seconds] : seconds_) shares[phase] = seconds / all;
    return {{"phase_shares", shares}, {"sort_gather_combine_share", moves / all}};
  }

 private:
  std::string_view phase_of(std::string_view op) {
    const auto has = [&](std::string_view part) { return op.find(part) != std::string_view::npos; };
    if (has("plan")) {
      sorted_ = true;
      return "sort";
    }
    if (!sorted_) return "router";
    if (has("gather")) return "gather";
    return has("combine") ? "combine" : "experts";
  }

  double last_ = 0;
  bool sorted_ = false;
  std::map<std::string, double> seconds_;
};

// The layer's arrays and its one step.
class Layer {
 public:
  Layer(Context& context, const MoeCall& call) : context_(context), call_(call) {
    const MoeShape& s = call.shape;
    config_.experts = s.experts;
    config_.slots = s.topk;
    std::vector<Tensor> ids;
    for (std::int64_t round = 0; round < (call.decode() ? kDecodeRounds : 1); ++round)
      ids.push_back(to_device(context.memory, choices(s, call.skew, round)));
    tape_ = std::make_shared<FixedChoices>(std::move(ids));
    execution_.tape = tape_;
    weights_.gate.weight = leaf(DType::bf16, {s.emb, s.experts}, 1, 0.02f);
    weights_.wi_0.weight = never_save(experts(s.emb, s.mlp, 2));
    weights_.wi_1.weight = never_save(experts(s.emb, s.mlp, 3));
    weights_.wo.weight = never_save(experts(s.mlp, s.emb, 4));
    x_ = leaf(DType::bf16, {1, s.tokens, s.emb}, 5, 1);
    dy_ = random(DType::bf16, {1, s.tokens, s.emb}, 6, 1);
    Tensor segments(DType::i32, {1, s.tokens});
    std::fill_n(segments.data<std::int32_t>(), segments.size(), 1);
    segments_ = make_leaf(to_device(context.memory, segments), {1, s.tokens}, replicated(2), false);
  }

  void step() {
    if (!call_.backward()) {
      const NoGrad forward_only(context_);
      moe_block(context_, config_, execution_, weights_, x_, segments_, step_++, 0);
      return;
    }
    const MoeOutput out = moe_block(context_, config_, execution_, weights_, x_, segments_, step_++, 0);
    switchyard::backward(context_, std::span(&out.y, 1), std::span(&dy_, 1));
    for (const Array& array :
         {x_, weights_.gate.weight, weights_.wi_0.weight, weights_.wi_1.weight, weights_.wo.weight})
      array.value()->grad = Tensor();
  }

  double mean_experts_used() const { return tape_->mean_experts_used(); }

 private:
  Array leaf(DType dtype, const Shape& shape, std::uint32_t seed, float scale) {
    return make_leaf(random(dtype, shape, seed, scale), shape, replicated(shape.size()), true);
  }

  Tensor random(DType dtype, const Shape& shape, std::uint32_t seed, float scale) const {
    return to_device(context_.memory, random_tensor(*context_.pool, dtype, shape, seed, scale));
  }

  // The experts' [experts, in, out]. Packed ones have the values of one expert: packing
  // takes longer than a measurement.
  Array experts(std::int64_t in, std::int64_t out, std::uint32_t seed) {
    const std::int64_t count = call_.shape.experts;
    const std::optional<DType> packed = call_.packed();
    if (!packed) return leaf(DType::bf16, {count, in, out}, seed, 0.02f);
    const Shape blocks{in / block_inputs(*packed), out / kBlockOutputs};
    const Tensor one(*packed, blocks);
    const Tensor dense = random_tensor(*context_.pool, DType::bf16, {in, out}, seed, 0.02f);
    CHECK(pack_weights(*context_.pool, {dense.view(), one.view()}), "[bench moe] a weight is no number");
    const Shape all{count, blocks[0], blocks[1]};
    const Tensor weights(*packed, all);
    const auto bytes = static_cast<std::size_t>(one.size()) * size_of(*packed);
    for (std::int64_t e = 0; e < count; ++e)
      std::memcpy(weights.raw() + static_cast<std::size_t>(e) * bytes, one.raw(), bytes);
    return make_leaf(to_device(context_.memory, weights), all, replicated(all.size()), false);
  }

  Context& context_;
  MoeCall call_;
  MoeConfig config_;
  MoeExecution execution_;
  MoeWeights weights_;
  std::shared_ptr<FixedChoices> tape_;
  Array x_, segments_;
  Tensor dy_;
  std::int64_t step_ = 0;
};

// Three products a row and the router; each has two gradients of the same size.
double flops_of(const MoeCall& call) {
  const auto r = static_cast<double>(call.shape.rows()), t = static_cast<double>(call.shape.tokens),
             m = static_cast<double>(call.shape.emb), h = static_cast<double>(call.shape.mlp),
             e = static_cast<double>(call.shape.experts);
  return (6 * r * m * h + 2 * t * m * e) * (call.backward() ? 3 : 1);
}

// x and y, the weights of the experts in use and of the router; backward: dy and dx, and
// every gradient of a weight.
double bytes_of(const MoeCall& call, double experts_used) {
  const auto t = static_cast<double>(call.shape.tokens), m = static_cast<double>(call.shape.emb),
             h = static_cast<double>(call.shape.mlp), e = static_cast<double>(call.shape.experts);
  constexpr double kBf16 = 2;
  const double forward =
      kBf16 * (2 * t * m + m * e) + bits_of(call.experts_dtype()) / 8 * 3 * experts_used * m * h;
  return call.backward() ? forward + kBf16 * (2 * t * m + 3 * e * m * h + m * e) : forward;
}

nlohmann::ordered_json shape_of(const MoeCall& call) {
  auto shape = shape_json(call.shape, call.skew);
  if (call.packed()) shape["weight_format"] = call.weight_format;
  return shape;
}

Measurement measure_moe(Bench& bench, const MoeCall& call) {
  const MoeShape& s = call.shape;
  Measurement m;
  m.name = "moe";
  m.shape = shape_of(call);
  m.threads = bench.pool.threads();
  m.direction = call.direction;
  m.flops = flops_of(call);
  on_one_rank(bench.pool, bench.memory, [&](Context& context) {
    Layer layer(context, call);
    Phases phases;
    m.time = time_rounds(bench, [&] {
      phases.start();
      context.observer = call.backward() ? nullptr : &phases;
      layer.step();
    });
    m.bytes = bytes_of(call, layer.mean_experts_used());
    if (!call.backward()) m.more.update(phases.json());
    if (call.decode()) {
      const double rate = bits_of(call.experts_dtype()) / 8 * 3 * layer.mean_experts_used() *
                          static_cast<double>(s.emb) * static_cast<double>(s.mlp) / m.time.seconds;
      m.more["weight_gb_per_s"] = rate * 1e-9;
      m.more["weights_over_stream"] = share(rate, bench.peaks.stream_bytes);
      m.more["weights_over_read"] = share(rate, bench.peaks.read_bytes);
    }
  });
  return m;
}

// Weights, with backward also their gradients and what they are summed in, and the rows.
double memory_of(const MoeCall& call) {
  const auto r = static_cast<double>(call.shape.rows()), m = static_cast<double>(call.shape.emb),
             h = static_cast<double>(call.shape.mlp), e = static_cast<double>(call.shape.experts);
  const double weights = bits_of(call.experts_dtype()) / 8 * 3 * e * m * h;
  return call.backward() ? 3 * weights + 2 * r * (4 * m + 6 * h) : weights + 2 * r * (2 * m + 3 * h);
}

}  // namespace

std::vector<Key> moe_keys() {
  std::vector<Key> keys = moe_shape_keys("all");
  for (Key& key : keys) {
    if (key.name == "skew") key.fallback = "balanced";
    if (key.name == "tokens") key.help += "; 64 and fewer are decoding: weights read a second";
  }
  keys.push_back({"direction", "all", "fwd, fwd+bwd; or all"});
  keys.push_back({"weight_format", "bfloat16",
                  fmt::format("of the experts: {}; several; those of few bits have fwd only",
                              fmt::join(kWeightFormats, ", "))});
  return keys;
}

std::vector<Job> moe_jobs(const Keys& keys) {
  std::vector<Job> jobs;
  const auto add = [&](const MoeCall& call) {
    if (const auto packed = call.packed()) {
      if (call.backward()) return;
      const std::int64_t unit = block_inputs(*packed), &emb = call.shape.emb, &mlp = call.shape.mlp;
      if (emb % unit != 0 || mlp % unit != 0)
        fail_usage("[bench moe] weight_format={}: emb {} and mlp {} are no multiples of {}",
                   call.weight_format, emb, mlp, unit);
    }
    jobs.push_back({"moe " + call.direction + " " + shape_of(call).dump(), memory_of(call),
                    [call](Bench& bench) { return std::vector{measure_moe(bench, call)}; }});
  };
  const auto formats = keys.words("weight_format", kWeightFormats);
  for (const MoeShape& shape : moe_shapes(keys)) {
    for (const auto& format : formats) {
      for (const auto& skew : skews(keys)) {
        for (const auto& direction : keys.words("direction", kLayerDirections))
          add({shape, skew, direction, format});
      }
      if (keys.given("tokens") || keys.given("direction")) continue;
      MoeShape decoding = shape;
      for (const std::int64_t tokens : {1, 8}) {
        decoding.tokens = tokens;
        add({decoding, "balanced", "fwd", format});
      }
    }
  }
  if (jobs.empty()) fail_usage("[bench moe] weights of few bits have no backward pass: direction=fwd");
  return jobs;
}

}  // namespace switchyard::bench
