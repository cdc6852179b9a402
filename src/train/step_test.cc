// A step that a GPU does without the host gives the bits of one in which the host looks on, and so does the
// graph of such a step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/graph.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

enum class How {
  looked_at,
  eager,
  graph
};  // looked_at: a hook sees the gradients, which keeps a step from a graph

struct Trained {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> weights;
  std::int64_t kernels_of_graphs = 0;
  std::vector<std::map<std::string, std::int64_t>> host_reads;  // of each step
};

Config step_config(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"decoder_block=mixtral",
                                     "base_emb_dim=32",
                                     "base_num_decoder_layers=2",
                                     "num_experts=4",
                                     "num_experts_per_tok=2",
                                     "base_mlp_dim=32",
                                     "base_num_query_heads=2",
                                     "base_num_kv_heads=1",
                                     "head_dim=16",
                                     "vocab_size=64",
                                     "max_target_length=16",
                                     "weight_dtype=float32",
                                     "load_balance_loss_weight=0.01",
                                     "steps=50",
                                     "gradient_clipping_threshold=0.5",
                                     "gradient_accumulation_steps=2",
                                     "per_device_batch_size=2",
                                     "dataset_type=synthetic",
                                     "learning_rate=0.01",
                                     "device=cuda_emulated"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Config::from_args(arguments);
}

std::vector<std::string> deepseek(const std::vector<std::string>& more) {
  std::vector<std::string> all{"decoder_block=deepseek", "attention_type=mla", "first_num_dense_layers=1",
                               "base_moe_mlp_dim=32",    "q_lora_rank=16",     "kv_lora_rank=16",
                               "qk_nope_head_dim=16",    "qk_rope_head_dim=8", "v_head_dim=16"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Rows with more padding from step to step, and two documents in each.
Batch padded(const Batch& whole, int step) {
  const auto length = static_cast<std::size_t>(whole.inputs.dim(1));
  const auto copy_of = [](const Tensor& x) { return x.clone(); };
  const Batch batch{copy_of(whole.inputs), copy_of(whole.targets), copy_of(whole.inputs_position),
                    copy_of(whole.inputs_segmentation), copy_of(whole.targets_segmentation)};
  const auto positions = batch.inputs_position.span<std::int32_t>(),
             segments = batch.inputs_segmentation.span<std::int32_t>(),
             targets = batch.targets_segmentation.span<std::int32_t>();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t place = i % length, end = length - static_cast<std::size_t>(step) % (length / 2),
                      second = length / 4;
    positions[i] = static_cast<std::int32_t>(place < second ? place : place - second);
    segments[i] = place >= end ? 0 : place < second ? 1 : 2;
    targets[i] = place + 1 == second || place + 1 >= end ? 0 : segments[i];
  }
  return batch;
}

enum class Rows { whole, padded };

// `spoiled`: the step before which a weight becomes infinite.
Trained run(How how, int steps, const std::vector<std::string>& more = {}, int spoiled = -1,
            Rows rows = Rows::whole) {
  setenv("SWITCHYARD_GRAPHS", how == How::graph ? "on" : "off", 1);
  const Config config = step_config(more);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  Trained result;
  const std::int64_t before = gpu::kernels_of_graphs();
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, 1),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    if (how == How::looked_at) trainer.on_gradients([](const Parameters&) {});  // keeps it from a graph
    const auto data = make_synthetic(7, sizes.sequence, model.vocab);           // every step has other rows
    for (int step = 0; step < steps; ++step) {
      if (step == spoiled) {
        const Tensor weight = trainer.parameters().all().back().array.tensor();
        const Tensor host = to_host(weight);
        host.data<float>()[0] = INFINITY;
        copy(host.view(), weight.view());
      }
      const BatchRows batch(*data, step * sizes.step, sizes.step, sizes.sequence);
      const StepResult made = trainer.step(
          step, rows == Rows::whole ? batch : BatchRows(padded(batch.read(0, sizes.step), step)));
      if (context.rank == 0) {
        result.steps.push_back(made);
        result.host_reads.push_back(context.host_reads.counts());
      }
      context.host_reads.reset();
    }
    for (const Parameter& p : trainer.parameters().all()) {
      if (context.rank > 0) break;
      const Tensor host = to_host(p.array.tensor().cast(DType::f32));
      result.weights[p.spec.name] = {host.span<float>().begin(), host.span<float>().end()};
    }
  });
  unsetenv("SWITCHYARD_GRAPHS");
  result.kernels_of_graphs = gpu::kernels_of_graphs() - before;
  return result;
}

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

void expect_same(const Trained& found, const Trained& expected) {
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (std::size_t i = 0; i < found.steps.size(); ++i) {
    const StepResult &a = found.steps[i], &b = expected.steps[i];
    EXPECT_TRUE(same_bits(a.loss, b.loss)) << i << ": " << a.loss << " " << b.loss;
    EXPECT_TRUE(same_bits(a.lm_loss, b.lm_loss) && same_bits(a.balance_loss, b.balance_loss)) << i;
    EXPECT_TRUE(same_bits(a.raw_grad_norm, b.raw_grad_norm)) << i << ": " << a.raw_grad_norm;
    EXPECT_TRUE(same_bits(a.grad_norm, b.grad_norm)) << i;
    EXPECT_TRUE(same_bits(a.param_norm, b.param_norm)) << i << ": " << a.param_norm << " " << b.param_norm;
    EXPECT_EQ(a.bad, b.bad);
    EXPECT_EQ(a.skipped, b.skipped);
    EXPECT_EQ(a.total_weights, b.total_weights);
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      EXPECT_EQ(a.layers[l].rows, b.layers[l].rows) << i;
      EXPECT_EQ(a.layers[l].dropped, b.layers[l].dropped) << i;
    }
  }
  ASSERT_FALSE(expected.weights.empty());
  for (const auto& [name, values] : expected.weights) {
    const std::vector<float>& other = found.weights.at(name);
    ASSERT_EQ(other.size(), values.size());
    EXPECT_EQ(std::memcmp(other.data(), values.data(), values.size() * sizeof(float)), 0) << name;
  }
}

TEST(Step, StepsToTheBit) {
  const Trained looked_at = run(How::looked_at, 12), eager = run(How::eager, 12), graph = run(How::graph, 12);
  EXPECT_NE(looked_at.steps.front().loss, looked_at.steps.back().loss);
  EXPECT_EQ(looked_at.kernels_of_graphs, 0);
  EXPECT_EQ(eager.kernels_of_graphs, 0);
  EXPECT_GT(graph.kernels_of_graphs, 11 * 100);
  expect_same(eager, looked_at);
  expect_same(graph, looked_at);
}

TEST(Step, ReadsOneReportOfEachStep) {
  const Trained graph = run(How::graph, 4);
  ASSERT_EQ(graph.host_reads.size(), 4u);
  for (const auto& reads : graph.host_reads)
    EXPECT_EQ(reads, (std::map<std::string, std::int64_t>{{"step report", 1}}));
}

// Any number of ranks, on a CPU and on a GPU, with no expert axes: all
// that the host reads.
TEST(Step, RanksReadOneReport) {
  for (const char* device : {"device=cpu", "device=cuda_emulated"}) {
    for (const std::vector<std::string>& mesh :
         {std::vector<std::string>{"ranks=4", "ici_data_parallelism=2", "ici_fsdp_parallelism=2"},
          {"ranks=2", "ici_tensor_parallelism=2"}}) {
      std::vector<std::string> more = mesh;
      more.insert(more.end(), {device, "gradient_accumulation_steps=1"});
      const Trained trained = run(How::eager, 2, more);
      ASSERT_EQ(trained.host_reads.size(), 2u);
      for (const auto& reads : trained.host_reads)
        EXPECT_EQ(reads, (std::map<std::string, std::int64_t>{{"step report", 1}})) << device << mesh[0];
    }
  }
}

// Counts of targets that differ from step to step are no other graph.
TEST(Step, OtherCountsAreTheSameGraph) {
  const std::vector<std::string> more = deepseek({"mtp_num_layers=2", "mtp_loss_scaling_factor=0.3"});
  const Trained looked_at = run(How::looked_at, 6, more, -1, Rows::padded),
                graph = run(How::graph, 6, more, -1, Rows::padded);
  std::set<double> counts;
  for (const StepResult& step : looked_at.steps) counts.insert(step.total_weights);
  EXPECT_EQ(counts.size(), 6u);
  EXPECT_GT(graph.kernels_of_graphs, 5 * 100);
  EXPECT_EQ(graph.kernels_of_graphs % 5, 0);  // the same graph five times
  expect_same(graph, looked_at);
}

TEST(Step, RouterBiasMovesByLoads) {
  for (const char* compat : {"none", "maxtext-2026-08"}) {
    const auto more = deepseek({"routed_bias=true", "routed_score_func=sigmoid",
                                "routed_bias_update_rate=0.01", std::string("compat=") + compat});
    const Trained looked_at = run(How::looked_at, 5, more, 3), graph = run(How::graph, 5, more, 3);
    EXPECT_GT(graph.kernels_of_graphs, 0);
    expect_same(graph, looked_at);
    bool moved = false;
    for (const auto& [name, values] : graph.weights)
      if (name.ends_with("moe.gate_bias")) moved |= values.front() != 0;
    EXPECT_TRUE(moved);
  }
}

TEST(Step, ChunksOfDocuments) {
  const std::vector<std::string> more{"decoder_block=llama4",  "chunk_attn_window_size=4",
                                      "nope_layer_interval=2", "shared_experts=1",
                                      "num_experts_per_tok=1", "interleave_moe_layer_step=1"};
  for (const Rows rows : {Rows::padded, Rows::whole}) {
    const Trained looked_at = run(How::looked_at, 4, more, -1, rows),
                  graph = run(How::graph, 4, more, -1, rows);
    EXPECT_GT(graph.kernels_of_graphs, 0);
    expect_same(graph, looked_at);
  }
}

TEST(Step, OtherOptimizers) {
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"opt_type=sgd"},
           {"opt_type=muon"},
           {"opt_type=muon", "weight_dtype=bfloat16", "muon_weight_decay=0.1"},
           {"opt_type=adam_pax", "gradient_clipping_threshold=0", "gradient_accumulation_steps=1"},
           {"weight_dtype=bfloat16", "trainable_parameters_mask=attention"}}) {
    SCOPED_TRACE(more[0]);
    const Trained looked_at = run(How::looked_at, 4, more), graph = run(How::graph, 4, more);
    EXPECT_GT(graph.kernels_of_graphs, 0);
    expect_same(graph, looked_at);
  }
}

class BadSteps : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Step, BadSteps, testing::Values("opt_type=adamw", "opt_type=sgd", "opt_type=muon"));

TEST_P(BadSteps, ChangeNothing) {
  const std::vector<std::string> more{GetParam()};
  const Trained looked_at = run(How::looked_at, 5, more, 3), graph = run(How::graph, 5, more, 3),
                before = run(How::graph, 3, more);
  EXPECT_FALSE(graph.steps[3].bad.empty());
  EXPECT_EQ(graph.steps[4].skipped, 2);
  expect_same(graph, looked_at);
  int same = 0;
  for (const auto& [name, values] : before.weights) same += graph.weights.at(name) == values ? 1 : 0;
  EXPECT_EQ(same + 1, static_cast<int>(before.weights.size()));  // all but the one that was spoiled
}

}  // namespace
}  // namespace switchyard
