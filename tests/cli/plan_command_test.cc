// switchyard plan and explain: the pages' examples run, files hold what they should, mistakes are one line.
#include "child.h"

namespace switchyard::cli_test {
namespace {

using PlanCommand = ProgramTest;
using nlohmann::json;

TEST_F(PlanCommand, ForetellsWhatASummarySays) {
  const Arguments keys = tiny_model() + Arguments{"ranks=2", "num_experts_per_tok=4"};
  const Finished planned = run(Arguments{"plan", "--json", "plan.json"} + keys);
  ASSERT_EQ(planned.status, 0) << planned.err;
  const std::vector<json> steps = train({"ranks=2", "num_experts_per_tok=4"});
  const json plan = json::parse(read("plan.json")), summary = json::parse(read("out/run/summary.json"));
  EXPECT_EQ(plan["collectives"], summary["collectives"]);
  for (const char* key : {"ranks", "mesh", "parameters"}) EXPECT_EQ(plan[key], summary[key]) << key;
  EXPECT_EQ(summary["steps"], 3);
  EXPECT_FLOAT_EQ(summary["final_loss"].get<float>(), steps.back()["learning/loss"].get<float>());
  EXPECT_FALSE(std::filesystem::exists(path("switchyard_output")));
  for (const char* key : {"flops_per_rank", "estimated_step_seconds", "bound", "skew", "topology", "fits"})
    EXPECT_TRUE(plan.contains(key)) << key;
}

TEST_F(PlanCommand, TheLargestModelOfItsPage) {
  const Finished page = run({"plan", "--help"});
  EXPECT_NE(page.out.find("model_name=deepseek3-671b ranks=4096"), std::string::npos);
  const Finished planned = run({"plan", "model_name=deepseek3-671b", "ranks=4096", "ici_fsdp_parallelism=64",
                                "ici_expert_parallelism=64", "per_device_batch_size=1",
                                "max_target_length=4096", "topology=h100"});
  EXPECT_EQ(planned.status, 0) << planned.err;
  EXPECT_NE(planned.out.find("671 B parameters"), std::string::npos);
}

TEST_F(PlanCommand, ShowsEveryStageOfAPipeline) {
  const Finished page =
      run(Arguments{"plan"} + tiny_model() + Arguments{"ranks=2", "ici_pipeline_parallelism=2"});
  ASSERT_EQ(page.status, 0) << page.err;
  EXPECT_NE(page.out.find("\n1       1  "), std::string::npos) << page.out;
  EXPECT_NE(page.out.find("takes the most memory (it fits)"), std::string::npos) << page.out;
}

TEST_F(PlanCommand, SearchListsMeshesFastestFirst) {
  const Finished found = run(Arguments{"plan", "--search", "--json", "found.json", "topology=h100"} +
                             tiny_model() + Arguments{"ranks=8"});
  ASSERT_EQ(found.status, 0) << found.err;
  const json list = json::parse(read("found.json"))["search"];
  ASSERT_GE(list.size(), 2u);
  for (std::size_t i = 1; i < list.size(); ++i)
    EXPECT_LE(list[i - 1]["estimated_step_seconds"].get<double>(),
              list[i]["estimated_step_seconds"].get<double>());
}

TEST_F(PlanCommand, ComparesMeshesInATable) {
  const Arguments model = tiny_model() + Arguments{"ranks=2"};
  const Arguments meshes{"--mesh", "ici_expert_parallelism=2 ici_fsdp_parallelism=1",
                         "--mesh", "ici_expert_parallelism=2 ici_fsdp_parallelism=1 use_ring_of_experts=true",
                         "--mesh", "ranks=4 ici_fsdp_parallelism=4"};
  const Finished table = run(Arguments{"plan", "--json", "meshes.json"} + meshes + model);
  ASSERT_EQ(table.status, 0) << table.err;
  for (const char* word :
       {"2 ranks: expert=2", "ragged all-to-all", "ring of experts", "4 ranks: fsdp=4", "FSDP"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
  const json all = json::parse(read("meshes.json"));
  ASSERT_EQ(all["meshes"].size(), 3u);
  EXPECT_EQ(all["meshes"][1]["strategy"], "ring of experts");
  EXPECT_EQ(all["meshes"][2]["ranks"], 4);
  // Each is what a plan of it alone says.
  const Finished alone = run(Arguments{"plan", "--json", "alone.json"} + model +
                             Arguments{"ici_expert_parallelism=2", "ici_fsdp_parallelism=1"});
  ASSERT_EQ(alone.status, 0) << alone.err;
  const json one = json::parse(read("alone.json"));
  for (const char* key : {"collectives", "per_rank", "flops_per_rank", "estimated_step_seconds", "skew"}) {
    EXPECT_EQ(all["meshes"][0][key], one[key]) << key;
    EXPECT_EQ(all[key], one[key]) << key;
  }
}

TEST_F(PlanCommand, ExplainSaysWhyADimIsReplicated) {
  const Arguments layout{"ranks=8", "ici_expert_parallelism=8", "expert_shard_attention_option=tp",
                         "num_experts=8"};
  const Finished page = run(Arguments{"explain", "--filter", "attention"} + tiny_model() + layout);
  ASSERT_EQ(page.status, 0) << page.err;
  EXPECT_NE(page.out.find("is not divisible by expert=8"), std::string::npos) << page.out;
  EXPECT_NE(page.out.find("experts of each rank on the tokens that all have, EP as TP"), std::string::npos)
      << page.out;
  EXPECT_EQ(page.out.find("layers.*.moe"), std::string::npos) << page.out;
  const Finished plan = run(Arguments{"plan"} + tiny_model() + layout);
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.out.find("warning: layers.*.attention"), std::string::npos) << plan.out;
}

TEST_F(PlanCommand, ExplainNamesRules) {
  const Finished page = run({"explain", "model_name=mixtral-8x7b", "ranks=8", "ici_fsdp_parallelism=2",
                             "ici_expert_parallelism=4", "--json", "layout.json"});
  ASSERT_EQ(page.status, 0) << page.err;
  EXPECT_NE(page.out.find("layers.*.moe.wi_0 (layers 0 to 31)"), std::string::npos) << page.out;
  EXPECT_NE(page.out.find("by exp -> expert"), std::string::npos);
  const json layout = json::parse(read("layout.json"));
  EXPECT_EQ(layout["parameters"][0]["name"], "embedding");
  EXPECT_FALSE(layout["activations"].empty());
}

// README's example: 13 weights are split alike, and the last layers free what was gathered before them.
TEST_F(PlanCommand, NoNegativeNumberAndNoRepeatedWarning) {
  const Finished plan = run({"plan", "model_name=deepseek3-671b", "ranks=4096", "ici_fsdp_parallelism=64",
                             "ici_expert_parallelism=64", "per_device_batch_size=1", "max_target_length=4096",
                             "topology=h100", "--json", "plan.json"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_EQ(plan.out.find(" -"), std::string::npos) << plan.out;
  const std::size_t first = plan.out.find("warning: ");
  EXPECT_NE(plan.out.find("(and 12 more", first), std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find("warning: ", first + 1), std::string::npos) << plan.out;
  for (const json& layer : json::parse(read("plan.json"))["layers"])
    EXPECT_GE(layer["activation_bytes"].get<std::int64_t>(), 0) << layer;
}

// The published files of gpt-oss-120b have 65.3 GB, those of qwen3-30b-a3b 61.1 GB.
TEST_F(PlanCommand, GenerationTakesTheTypesThatModelsArePublishedIn) {
  const auto weights = [&](const std::string& model, const Arguments& more = {}) {
    const Finished plan =
        run(Arguments{"plan", "--generate", "--json", "plan.json", "model_name=" + model} + more);
    EXPECT_EQ(plan.status, 0) << plan.err;
    return json::parse(read("plan.json"))["per_rank"];
  };
  const json oss = weights("gpt-oss-120b");
  EXPECT_NEAR(oss["weights_bytes"].get<double>(), 65.3e9, 1.5e9);
  EXPECT_GT(oss["packed_weights_bytes"].get<double>(), 60e9);
  const json qwen = weights("qwen3-30b-a3b");
  EXPECT_NEAR(qwen["weights_bytes"].get<double>(), 61.1e9, 1e9);
  EXPECT_EQ(qwen["packed_weights_bytes"], 0);
  EXPECT_NEAR(weights("qwen3-30b-a3b", {"weight_dtype=float32"})["weights_bytes"].get<double>(), 122.2e9,
              2e9);
  EXPECT_NEAR(weights("gpt-oss-120b", {"weight_format=dense"})["weights_bytes"].get<double>(), 233.7e9, 2e9);
}

// The base stays in 4 bits while an adapter trains: 30.5 billion weights, 17 GB.
TEST_F(PlanCommand, TrainingAnAdapterBesidePackedWeights) {
  const Arguments plan{"plan",
                       "model_name=qwen3-30b-a3b",
                       "per_device_batch_size=1",
                       "max_target_length=512",
                       "weight_format=int4",
                       "--json",
                       "plan.json"};
  const Finished with = run(plan + Arguments{"lora_rank=16", "lora_target=attention"});
  ASSERT_EQ(with.status, 0) << with.err;
  EXPECT_NEAR(json::parse(read("plan.json"))["per_rank"]["weights_bytes"].get<double>(), 17.5e9, 2e9);
  expect_refused(plan, {"weight_format=int4", "training changes weights"});
}

TEST_F(PlanCommand, GenerationOfAModelThatIsHere) {
  train_bytes();
  const Finished plan = run({"plan", "--generate", "out/run"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.out.find("out/run · weight_format stored"), std::string::npos) << plan.out;
  std::filesystem::remove_all(path("switchyard_output"));
  // Weights that the model does not have are no plan of it.
  std::filesystem::rename(path("out"), path("trained"));
  for (const Arguments& how : {Arguments{"plan", "--generate"}, Arguments{"plan"}}) {
    expect_refused(how + tiny_model() + Arguments{"load_parameters_path=trained/run"}, {"trained/run"});
    expect_refused(how + tiny_model() + Arguments{"load_parameters_path=absent"}, {"absent"});
  }
}

TEST_F(PlanCommand, MistakesAreOneLine) {
  expect_refused({"plan", "topology=h10"}, {"topology=h10", "cpu, h100, h200", "nearest is h100"});
  expect_refused({"plan", "--serch"}, {"--serch", "--search"});
  expect_refused({"plan", "--json"}, {"--json", "file"});
  expect_refused({"plan", "--mesh"}, {"--mesh", "needs a value"});
  expect_refused({"plan", "--mesh", "ranks"}, {"--mesh", "key=value", "ranks"});
  expect_refused({"plan", "--search", "--mesh", "ranks=2"}, {"--search", "--mesh"});
  expect_refused(Arguments{"explain", "--filter", "nothing"} + tiny_model(), {"--filter nothing"});
  expect_refused({"explain", "--jso"}, {"--jso", "--json"});
  expect_refused(Arguments{"plan"} + tiny_model() +
                     Arguments{"ranks=3", "ici_expert_parallelism=3", "ici_fsdp_parallelism=1"},
                 {"num_experts=4", "expert=3"});
  write("bad.yml", "ranks_per_node: 8\nmemory_gib: much\n");
  expect_refused({"plan", "topology=bad.yml"}, {"bad.yml", "memory_gib", "much"});
}

}  // namespace
}  // namespace switchyard::cli_test
