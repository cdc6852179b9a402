// A user's own mesh file: the worked example of docs/layouts.md runs as it stands there, and mistakes are
// named.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/testing.h"
#include "verify/layouts.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class MeshFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / fmt::format("mesh_file_test_{}", getpid());
    fs::create_directories(folder_);
    std::ifstream file(std::string(kSourceFolder) + "/docs/layouts.md");
    std::ostringstream text;
    text << file.rdbuf();
    const std::string document = text.str(), fence = "```yaml\n";
    const std::size_t begin = document.find(fence) + fence.size();
    example_ = document.substr(begin, document.find("```", begin) - begin);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The example with one text for another, as a file.
  std::string file_with(const std::string& from, const std::string& to) const {
    std::string text = example_;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    const fs::path path = folder_ / "rows.yml";
    std::ofstream(path) << text;
    return path;
  }

  static std::vector<CaseReport> compare(const std::string& file, const std::string& more = "") {
    const std::string mesh = "ranks=8 ici_expert_parallelism=4 ici_fsdp_parallelism=2 ";
    LayoutRequest request;
    request.layouts = {mesh + more + " custom_mesh_and_rule=" + file, mesh};
    request.arguments = {std::string(kSourceFolder) + "/configs/examples/small-moe.yml",
                         "base_num_decoder_layers=2", "steps=1", "max_target_length=16"};
    return compare_layouts(request);
  }
  static void expect_refused(const std::string& file, const std::string& more, const std::string& part) {
    try {
      compare(file, more);
      ADD_FAILURE() << "nothing wrong with " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  fs::path folder_;
  std::string example_;
};

TEST_F(MeshFile, TheDocumentsExampleGivesTheSameNumbers) {
  for (const CaseReport& report : compare(file_with("fsdp", "fsdp"))) {
    EXPECT_TRUE(report.pass()) << report.path << " " << report.kind << ": " << report.first_failure()->name;
    EXPECT_EQ(report.mesh, "fsdp=2 expert=4");
  }
}

TEST_F(MeshFile, MistakesAreNamed) {
  expect_refused(folder_ / "row.yml", "", "there is no file");
  expect_refused("pure-fsd", "", "the nearest is pure-fsdp");
  expect_refused(file_with("mesh_axes: [data, fsdp", "mesh_axes: [data, wings"), "", "got wings");
  expect_refused(file_with("[exp, [expert]]", "[experts, [expert]]"), "", "got experts");
  expect_refused(file_with("[exp, [expert]]", "[exp, [wings]]"), "", "got wings");
  expect_refused(file_with("[exp, [expert]]", "[exp]"), "", "expected rules like");
  expect_refused(file_with("fsdp", "fsdp"), "ici_tensor_parallelism=1 ici_context_parallelism=2",
                 "no axis 'context'");
  expect_refused(file_with("fsdp", "fsdp"), "ici_data_parallelism=2", "ici_data_parallelism=2");
}

// The mesh files of MaxText 0.2.5, each on 8 ranks.
const std::vector<std::string> kReferenceMeshes{
    "custom_mesh_and_rule=pure-fsdp ici_fsdp_parallelism=8",
    "custom_mesh_and_rule=ep-as-dp ici_expert_parallelism=2 ici_fsdp_parallelism=2 "
    "ici_fsdp_transpose_parallelism=2",
    "custom_mesh_and_rule=ep-as-cp ici_expert_parallelism=4 ici_fsdp_parallelism=2",
    "custom_mesh_and_rule=cp-as-ep ici_expert_parallelism=2 ici_context_parallelism=2 ici_fsdp_parallelism=2",
    "custom_mesh_and_rule=fsdp-as-dp-for-attn ici_expert_parallelism=4 ici_fsdp_parallelism=2",
    "custom_mesh_and_rule=pipeline-large-moe ici_expert_parallelism=2 ici_tensor_parallelism=2 "
    "ici_fsdp_parallelism=2",
    "custom_mesh_and_rule=shard-exp-on-fsdp ici_expert_parallelism=2 ici_fsdp_parallelism=2 "
    "ici_context_parallelism=2"};

void expect_one_ranks_numbers(const std::vector<std::string>& model) {
  LayoutRequest request;
  for (const std::string& mesh : kReferenceMeshes) request.layouts.push_back("ranks=8 " + mesh);
  request.arguments = {"base_emb_dim=32",
                       "base_num_query_heads=4",
                       "num_experts=8",
                       "num_experts_per_tok=2",
                       "base_num_decoder_layers=2",
                       "vocab_size=96",
                       "max_target_length=16",
                       "steps=1",
                       "load_balance_loss_weight=0.1"};
  request.arguments.insert(request.arguments.end(), model.begin(), model.end());
  const std::vector<CaseReport> reports = compare_layouts(request);
  EXPECT_GE(reports.size(), kReferenceMeshes.size());
  for (const CaseReport& report : reports)
    EXPECT_TRUE(report.pass()) << report.path << " " << report.kind << ": " << report.first_failure()->name;
}

TEST(ReferenceMeshes, MixtralHasOneRanksNumbers) {
  expect_one_ranks_numbers({"decoder_block=mixtral", "base_num_kv_heads=2", "head_dim=8", "base_mlp_dim=32"});
}

TEST(ReferenceMeshes, DeepseekHasOneRanksNumbers) {
  expect_one_ranks_numbers({"decoder_block=deepseek", "attention_type=mla", "base_num_kv_heads=4",
                            "q_lora_rank=16", "kv_lora_rank=8", "qk_nope_head_dim=8", "qk_rope_head_dim=8",
                            "v_head_dim=8", "shared_experts=1", "first_num_dense_layers=1", "base_mlp_dim=64",
                            "base_moe_mlp_dim=32", "routed_bias=true", "routed_score_func=sigmoid",
                            "routed_bias_update_rate=0.001"});
}

}  // namespace
}  // namespace switchyard
