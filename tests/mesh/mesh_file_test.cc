// A user's own mesh file: the worked example of docs/add-a-mesh.md runs as it stands there, and mistakes are
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
    std::ifstream file(std::string(kSourceFolder) + "/docs/add-a-mesh.md");
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

}  // namespace
}  // namespace switchyard
