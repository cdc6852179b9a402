// Tests trainable_parameters_mask and adamw_mask: which weights they change, and which not.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "config/config.h"
#include "core/error.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "train/abstract_rank.h"
#include "train/dry_step.h"
#include "train/step_cost.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

using Weights = std::map<std::string, Tensor>;

Config config_of(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"decoder_block=deepseek",
                                     "base_emb_dim=32",
                                     "base_num_decoder_layers=2",
                                     "num_experts=4",
                                     "num_experts_per_tok=2",
                                     "base_mlp_dim=32",
                                     "base_moe_mlp_dim=32",
                                     "base_num_query_heads=2",
                                     "base_num_kv_heads=2",
                                     "head_dim=16",
                                     "attention_type=mla",
                                     "routed_score_func=sigmoid",
                                     "kv_lora_rank=16",
                                     "q_lora_rank=0",
                                     "qk_nope_head_dim=8",
                                     "qk_rope_head_dim=8",
                                     "v_head_dim=8",
                                     "vocab_size=64",
                                     "max_target_length=16",
                                     "dtype=float32",
                                     "weight_dtype=float32",
                                     "routed_bias=true",
                                     "routed_bias_update_rate=0.01",
                                     "steps=6",
                                     "warmup_steps_fraction=0",
                                     "gradient_clipping_threshold=0",
                                     "adam_weight_decay=0.5",
                                     "dataset_type=synthetic",
                                     "learning_rate=0.01"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Config::from_args(arguments);
}

// The weights of rank 0 of the first stage after some steps.
Weights trained(const std::vector<std::string>& more, int steps = 2) {
  const Config config = config_of(more);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  Weights weights;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model), 0,
                                       nullptr, nullptr));
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    for (int step = 0; step < steps; ++step) trainer.step(step, data->read(step * sizes.step, sizes.step));
    if (context.comm->rank() != 0) return;
    for (const Parameter& p : trainer.parameters().all())
      weights.emplace(p.spec.name, p.array.tensor().cast(DType::f32));
  });
  return weights;
}

double difference(const Tensor& a, const Tensor& b) {
  double most = 0;
  for (std::int64_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a.data<float>()[i]) - b.data<float>()[i]));
  return most;
}

TEST(TrainableParameters, OthersStayAsTheyAre) {
  struct Row {
    const char *mask, *trains;  // part of the names
  };
  for (const char* layout : {"ranks=1", "ranks=2 ici_expert_parallelism=2", "ranks=4 ici_fsdp_parallelism=4",
                             "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_pipeline_parallelism=2"}) {
    std::vector<std::string> keys;
    for (std::string rest = layout; !rest.empty();) {
      keys.push_back(rest.substr(0, rest.find(' ')));
      rest = rest.size() > keys.back().size() ? rest.substr(keys.back().size() + 1) : "";
    }
    const Weights before = trained(keys, 0);
    for (const Row& row : {Row{"moe/wi_0", ".moe.wi_0"}, Row{"/out$", ".attention.out"},
                           Row{"layers[.]1[.]", "layers.1."}, Row{"embedding", "embedding"}}) {
      SCOPED_TRACE(std::string(layout) + " " + row.mask);
      std::vector<std::string> masked = keys;
      masked.push_back(std::string("trainable_parameters_mask=") + row.mask);
      int changed = 0;
      const Weights after = trained(masked);
      for (const auto& [name, weight] : after) {
        const bool trains = name.find(row.trains) != std::string::npos;
        EXPECT_EQ(difference(weight, before.at(name)) > 0, trains) << name;
        changed += trains;
      }
      const bool elsewhere = std::string(layout).find("pipeline") != std::string::npos;  // the other stage
      EXPECT_TRUE(elsewhere || changed > 0);
    }
  }
}

// The first step of those that train is that of a run in which all do.
TEST(TrainableParameters, TrainAsInAWholeRun) {
  const Weights all = trained({}, 1), some = trained({"trainable_parameters_mask=attention,head"}, 1);
  int compared = 0;
  for (const auto& [name, weight] : some) {
    if (name.find("attention.") == std::string::npos && name != "head") continue;
    EXPECT_EQ(difference(weight, all.at(name)), 0) << name;
    ++compared;
  }
  EXPECT_GT(compared, 8);
}

// Operations of a step's products, as the abstract device counts them, by kernel.
class ProductCounter : public WorkCounter {
 public:
  void count(const Work& work) override { flops_[std::string(work.kernel)] += work.flops; }
  double operator[](const std::string& kernel) const {
    const auto found = flops_.find(kernel);
    return found == flops_.end() ? 0 : found->second;
  }

 private:
  std::map<std::string, double> flops_;
};

ProductCounter products_of_step(const Config& config) {
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  ProductCounter counter;
  NoCosts no_costs;
  AbstractRank rank(config, mesh, 0, counter, WorkspaceOf::none, 1, no_costs, 1);
  Trainer trainer(rank.context(), model, train_config(config, model, 1),
                  Parameters::create(rank.context(), parameter_specs(model), 0, nullptr, nullptr));
  trainer.step(0, abstract_batch(batch_sizes(config, mesh)));
  return counter;
}

// A frozen weight of n elements that every token reads saves 2 n operations a token: its gradient's product,
// no more and no less. So does each expert for the rows that it has.
TEST(TrainableParameters, FrozenWeightsCostNoProducts) {
  const Config all = config_of({"shared_experts=1"});
  const ModelConfig model = model_config(all);
  const auto sizes = batch_sizes(all, mesh_from_config(all));
  const auto tokens = static_cast<double>(sizes.step * sizes.sequence);
  const ProductCounter whole = products_of_step(all);
  for (const std::string part :
       {".attention.", ".moe.wi_0", ".moe.wi_1", ".moe.wi_", ".moe.wo", ".moe.w", ".moe.shared."}) {
    SCOPED_TRACE(part);
    double dense = 0, experts = 0;
    std::string mask = "trainable_parameters_mask=";
    for (const ParameterSpec& spec : parameter_specs(model)) {
      if (spec.name.find(part) == std::string::npos) {
        mask += "^" + spec.name + "$,";
        continue;
      }
      if (spec.matrix.inputs == 0) continue;  // norms have no products
      const double product = 2 * tokens * static_cast<double>(num_elements(spec.shape));
      const bool routed = spec.matrix.stack > 0;
      (routed ? experts : dense) +=
          routed ? product * static_cast<double>(model.moe().slots) / static_cast<double>(model.moe().experts)
                 : product;
    }
    mask.pop_back();
    EXPECT_GT(dense + experts, 0);
    const ProductCounter some = products_of_step(config_of({"shared_experts=1", mask}));
    EXPECT_EQ(whole["gemm"] - some["gemm"], dense);
    EXPECT_EQ(whole["gmm_drhs"] - some["gmm_drhs"], experts);
    for (const char* kernel : {"gmm", "gmm_pair", "gmm_dlhs"})
      EXPECT_EQ(whole[kernel], some[kernel]) << kernel;
  }
}

TEST(TrainableParameters, AFrozenHeadCostsNoProduct) {
  const Config all = config_of({});
  const auto sizes = batch_sizes(all, mesh_from_config(all));
  std::string mask = "trainable_parameters_mask=";
  double product = 0;
  for (const ParameterSpec& spec : parameter_specs(model_config(all))) {
    if (spec.name == "head")
      product = 2 * static_cast<double>(sizes.step * sizes.sequence * num_elements(spec.shape));
    else
      mask += "^" + spec.name + "$,";
  }
  mask.pop_back();
  ASSERT_GT(product, 0);
  const auto of_loss = [](const ProductCounter& counter) {
    return counter["linear_cross_entropy"] + counter["linear_cross_entropy_backward"] +
           counter["linear_cross_entropy_gradients"];
  };
  EXPECT_EQ(of_loss(products_of_step(all)) - of_loss(products_of_step(config_of({mask}))), product);
}

TEST(AdamWMask, LeavesOutDecay) {
  const Weights start = trained({}, 0), decayed = trained({}, 1),
                masked = trained({"adamw_mask=norm,.*wi_[01]"}, 1),
                none = trained({"adam_weight_decay=0"}, 1);
  for (const auto& [name, weight] : masked) {
    const bool chosen = name.find("norm") != std::string::npos || name.find("wi_") != std::string::npos;
    EXPECT_EQ(difference(weight, (chosen ? none : decayed).at(name)), 0) << name;
    const bool same = difference(none.at(name), decayed.at(name)) == 0;
    EXPECT_EQ(same, name.find("gate_bias") != std::string::npos) << name;
  }
  EXPECT_THROW(trained({"adamw_mask=["}, 0), Error);
  EXPECT_THROW(trained({"adamw_mask=norm", "opt_type=muon"}, 0), Error);
}

}  // namespace
}  // namespace switchyard
