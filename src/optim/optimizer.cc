#include "optim/optimizer.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "kernels/optimizer/weight_update.h"

namespace switchyard {
namespace {

void check_range(const OptimizerRange& range, std::size_t states) {
  const auto& [weight, grad, state, squares, decay] = range;
  CHECK(is_float(weight.dtype()) && is_float(grad.dtype()), "weight {}, gradient {}", name_of(weight.dtype()),
        name_of(grad.dtype()));
  CHECK(weight.size() == grad.size(), "{} weights, {} gradients", weight.size(), grad.size());
  CHECK(state.size() == states, "{} states", state.size());
}

class Adam : public Optimizer {
 public:
  Adam(const OptimizerConfig& config, bool pax) : config_(config), pax_(pax) {}

  std::vector<Tensor> init(const Memory& memory, DType weight_dtype, std::int64_t count) const override {
    return {memory.zeros(config_.mu_dtype, {count}), memory.zeros(weight_dtype, {count})};
  }

  void update(ThreadPool& pool, const TensorView& numbers,
              std::span<const OptimizerRange> ranges) const override {
    std::vector<AdamArrays> updates;
    for (const OptimizerRange& range : ranges) {
      check_range(range, 2);
      updates.push_back({range.weight, range.grad, range.state[0].view(), range.state[1].view(),
                         range.squares, range.decay});
    }
    adam_update(pool, numbers, updates);
  }

  AdamTerms terms_of(std::int64_t step, double learning_rate) const override {
    CHECK(step >= 0, "step {}", step);
    const double t = static_cast<double>(step) + 1;
    double b1 = config_.b1, b2 = config_.b2;
    double correction1 = 1 / (1 - std::pow(b1, t)), correction2 = 1 / (1 - std::pow(b2, t)), grad_share = 0;
    if (pax_) {
      b1 *= (1 - std::pow(b1, t - 1)) * correction1;
      b2 *= (1 - std::pow(b2, t - 1)) * correction2;
      correction1 = correction2 = 1;
    } else if (config_.nesterov) {
      grad_share = (1 - b1) * correction1;
      correction1 = b1 / (1 - std::pow(b1, t + 1));
    }
    const auto f = [](double value) { return static_cast<float>(value); };
    return {.grad_scale = 1,
            .mu_decay = f(b1),
            .mu_gain = f(1 - b1),
            .nu_decay = f(b2),
            .nu_gain = f(1 - b2),
            .mu_correction = f(correction1),
            .nu_correction = f(correction2),
            .grad_share = f(grad_share),
            .eps = f(config_.eps),
            .eps_root = f(config_.eps_root),
            .learning_rate = f(learning_rate),
            .weight_decay = f(config_.weight_decay)};
  }

 private:
  const OptimizerConfig config_;
  const bool pax_;
};

class GradientDescent : public Optimizer {
 public:
  std::vector<Tensor> init(const Memory&, DType, std::int64_t) const override { return {}; }

  void update(ThreadPool& pool, const TensorView& numbers,
              std::span<const OptimizerRange> ranges) const override {
    std::vector<DescentArrays> updates;
    for (const OptimizerRange& range : ranges) {
      check_range(range, 0);
      updates.push_back({range.weight, range.grad, range.squares});
    }
    descent_update(pool, numbers, updates);
  }

  AdamTerms terms_of(std::int64_t, double learning_rate) const override {
    AdamTerms terms{};
    terms.grad_scale = 1;
    terms.learning_rate = static_cast<float>(learning_rate);
    return terms;
  }
};

void check_config(const OptimizerConfig& config) {
  const auto check_decay = [](const char* key, double value) {
    if (!(value >= 0 && value < 1))
      fail_usage("[optim] expected {} at least 0 and below 1, got {}", key, value);
  };
  const auto check_epsilon = [](const char* key, double value) {
    if (!(value >= 0)) fail_usage("[optim] expected {} to be at least 0, got {}", key, value);
  };
  check_decay("adam_b1", config.b1);
  check_decay("adam_b2", config.b2);
  check_epsilon("adam_eps", config.eps);
  check_epsilon("adam_eps_root", config.eps_root);
}

}  // namespace

Tensor numbers_in(const Memory& memory, const UpdateNumbers& numbers) {
  const Tensor host(Memory(), DType::f32, {kUpdateNumbers});
  std::memcpy(host.raw(), &numbers, sizeof(numbers));
  return to_device(memory, host);
}

std::unique_ptr<Optimizer> Optimizer::make(const OptimizerConfig& config) {
  if (config.type == "sgd") return std::make_unique<GradientDescent>();
  if (config.type != "adamw" && config.type != "adam_pax") {
    fail_usage("[optim] expected opt_type to be adamw, adam_pax or sgd, got '{}'", config.type);
  }
  check_config(config);
  CHECK(is_float(config.mu_dtype), "{}", name_of(config.mu_dtype));
  return std::make_unique<Adam>(config, config.type == "adam_pax");
}

}  // namespace switchyard
