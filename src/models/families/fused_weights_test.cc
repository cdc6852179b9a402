// Tests fused tensors: each matrix gets its own name, and can be fused again.
#include "models/families/fused_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "models/families/family.h"
#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

Tensor numbered(const Shape& shape) {
  Tensor t(DType::f32, shape);
  std::iota(t.data<float>(), t.data<float>() + t.size(), 0.0f);
  return t;
}

class FusedFolder : public testing::Test {
 protected:
  FusedFolder() : folder_(testing::TempDir() + "fused_weights_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~FusedFolder() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<const HubWeights> weights(const std::map<std::string, Tensor>& tensors) {
    write_safetensors(folder_ + "/model.safetensors", tensors, {});
    return unfused(kGptOss, nlohmann::json::object(),
                   std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
  }

  std::string folder_;
};

const std::string kLayer = "model.layers.1.mlp.experts.";
constexpr std::int64_t kExperts = 3, kInputs = 5, kOutputs = 4;

TEST_F(FusedFolder, EveryElementIsInItsMatrix) {
  const Tensor both = numbered({kExperts, kInputs, 2 * kOutputs}),
               down = numbered({kExperts, kOutputs, kInputs}), biases = numbered({kExperts, 2 * kOutputs});
  const auto folder = weights({{kLayer + "gate_up_proj", both},
                               {kLayer + "down_proj", down},
                               {kLayer + "gate_up_proj_bias", biases},
                               {"model.norm.weight", numbered({kInputs})}});
  EXPECT_EQ(folder->names().size(), 3 * static_cast<std::size_t>(kExperts) + 3);
  EXPECT_FALSE(folder->contains(kLayer + "gate_up_proj"));
  EXPECT_TRUE(folder->contains("model.norm.weight"));
  for (const auto& [name, turn] : {std::pair{"gate", 0}, {"up", 1}}) {
    const Tensor bias = folder->read(kLayer + name + "_proj_bias");
    ASSERT_EQ(bias.shape(), (Shape{kExperts, kOutputs}));
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const std::string matrix = kLayer + std::to_string(e) + "." + name + "_proj.weight";
      ASSERT_EQ(folder->shape(matrix), (Shape{kOutputs, kInputs}));
      const Tensor all = folder->read(matrix), some = folder->take_rows(matrix, 1, 3);
      for (std::int64_t o = 0; o < kOutputs; ++o) {
        EXPECT_EQ(bias.data<float>()[e * kOutputs + o],
                  biases.data<float>()[e * 2 * kOutputs + 2 * o + turn]);
        for (std::int64_t i = 0; i < kInputs; ++i) {
          const float want = both.data<float>()[(e * kInputs + i) * 2 * kOutputs + 2 * o + turn];
          EXPECT_EQ(all.data<float>()[o * kInputs + i], want);
          if (o < 1 || o >= 3) continue;
          EXPECT_EQ(some.data<float>()[(o - 1) * kInputs + i], want);
        }
      }
    }
  }
  const Tensor last = folder->take_values(kLayer + "2.down_proj.weight", 0, kInputs);
  for (std::int64_t o = 0; o < kInputs; ++o) {
    for (std::int64_t i = 0; i < kOutputs; ++i)
      EXPECT_EQ(last.data<float>()[o * kOutputs + i], down.data<float>()[(2 * kOutputs + i) * kInputs + o]);
  }
}

// transformers 5 keeps all experts of most families in one tensor, [experts, outputs, inputs].
TEST_F(FusedFolder, ExpertsAsTransformersHasThemInMemory) {
  const Tensor both = numbered({kExperts, 2 * kOutputs, kInputs}),
               down = numbered({kExperts, kInputs, kOutputs});
  const auto read_as = [&](const ModelFamily& family, std::map<std::string, Tensor> tensors) {
    write_safetensors(folder_ + "/model.safetensors", tensors, {});
    return unfused(family, {{"hidden_size", kInputs}, {"moe_intermediate_size", kOutputs}},
                   std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
  };
  int families = 0;
  for (const ModelFamily* family : model_families()) {
    if (!family->block->experts || family == &kGptOss || family == &kLlama4 || family == &kStep3p5) continue;
    SCOPED_TRACE(std::string(family->type));
    ++families;
    const auto folder = read_as(*family, {{kLayer + "gate_up_proj", both}, {kLayer + "down_proj", down}});
    const auto check = [&](const char* ours, const Tensor& fused, std::int64_t first) {
      const Shape shape = {kExperts, kInputs, kOutputs};
      const bool out = std::string_view(ours) == "moe.wo";
      const HubTensors names = hub_tensors(*family, std::string("layers.1.") + ours,
                                           out ? Shape{kExperts, kOutputs, kInputs} : shape);
      const std::int64_t rows = out ? kInputs : kOutputs, columns = out ? kOutputs : kInputs;
      for (std::int64_t e = 0; e < kExperts; ++e) {
        const Tensor part = folder->read(names.names[static_cast<std::size_t>(e)]);
        ASSERT_EQ(part.shape(), (Shape{rows, columns}));
        const float* const from = fused.data<float>() + e * fused.dim(1) * fused.dim(2) + first * columns;
        EXPECT_TRUE(std::equal(from, from + rows * columns, part.data<float>())) << ours << " " << e;
      }
    };
    check("moe.wi_0", both, 0);
    check("moe.wi_1", both, kOutputs);
    check("moe.wo", down, 0);
    // Not written so, but by families whose files have them like this, or transposed.
    const std::string expert = hub_tensors(*family, "layers.1.moe.wo", {1, kOutputs, kInputs}).names[0];
    EXPECT_EQ(fused_place(*family, nlohmann::json::object(), expert).has_value(),
              family == &kQwen35Moe || family == &kQwen3VlMoe || family == &kMistral4);
  }
  EXPECT_EQ(families, 20);
  // Published files of Qwen3-VL have them transposed.
  const auto published =
      read_as(kQwen3VlMoe, {{kLayer + "gate_up_proj", numbered({kExperts, kInputs, 2 * kOutputs})},
                            {kLayer + "down_proj", numbered({kExperts, kOutputs, kInputs})}});
  EXPECT_EQ(published->shape(kLayer + "0.up_proj.weight"), (Shape{kOutputs, kInputs}));
  EXPECT_EQ(published->read(kLayer + "1.down_proj.weight").data<float>()[1], kOutputs * kInputs + kInputs);
  // Mixtral and MiniMax call their layer otherwise too.
  const Tensor gate = numbered({kExperts, kInputs}), bias = numbered({kExperts});
  const std::string mlp = "model.layers.1.mlp.", sparse = "model.layers.1.block_sparse_moe.";
  EXPECT_EQ(read_as(kMixtral, {{mlp + "gate.weight", gate}})->shape(sparse + "gate.weight"), gate.shape());
  const auto minimax = read_as(kMinimaxM2, {{mlp + "e_score_correction_bias", bias}});
  EXPECT_EQ(minimax->shape(sparse + "e_score_correction_bias"), bias.shape());
  EXPECT_THROW(read_as(kQwen3Moe, {{kLayer + "gate_up_proj", both}, {kLayer + "0.up_proj.weight", gate}}),
               Error);
}

TEST_F(FusedFolder, PartsMakeTheTensorAgain) {
  const std::map<std::string, Tensor> tensors{
      {kLayer + "gate_up_proj", numbered({kExperts, kInputs, 2 * kOutputs})},
      {kLayer + "down_proj", numbered({kExperts, kOutputs, kInputs})},
      {kLayer + "gate_up_proj_bias", numbered({kExperts, 2 * kOutputs})}};
  const auto folder = weights(tensors);
  std::map<std::string, Tensor> made;
  std::set<std::string> fused;
  for (const std::string& name : folder->names()) {
    const auto place = fused_place(kGptOss, nlohmann::json(), name);
    ASSERT_TRUE(place) << name;
    fused.insert(place->fused);
    const Shape shape = fused_shape(*place, kExperts, folder->shape(name));
    ASSERT_EQ(shape, tensors.at(place->fused).shape());
    if (!made.contains(place->fused)) made[place->fused] = Tensor::zeros(DType::f32, shape);
    put_part(*place, folder->read(name), made[place->fused]);
  }
  EXPECT_EQ(fused.size(), tensors.size());
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(std::equal(tensor.raw(), tensor.raw() + tensor.bytes(), made.at(name).raw())) << name;
  EXPECT_FALSE(fused_place(kGptOss, nlohmann::json(), "model.layers.0.mlp.experts.down_proj_bias"));
  EXPECT_FALSE(fused_place(kLlama, nlohmann::json(), kLayer + "0.gate_proj.weight"));
}

TEST_F(FusedFolder, OtherShapesAreNamed) {
  for (const Shape& shape : {Shape{kExperts, 2 * kOutputs}, Shape{kExperts, kInputs, 2 * kOutputs + 1}}) {
    try {
      weights({{kLayer + "gate_up_proj", numbered(shape)}});
      ADD_FAILURE() << to_string(shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(error.what()).find("gate_up_proj"), std::string::npos) << error.what();
    }
  }
}

// Blocks hold inputs side by side, and rows of gate and up in turns.
TEST_F(FusedFolder, FourBitsStayInBlocks) {
  constexpr std::int64_t kRows = 16, kGroups = 2;
  Tensor blocks(DType::u8, {2, 2 * kRows, kGroups, 16}), scales(DType::u8, {2, 2 * kRows, kGroups});
  for (std::int64_t i = 0; i < blocks.size(); ++i)
    blocks.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(7 * i);
  for (std::int64_t i = 0; i < scales.size(); ++i)
    scales.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(120 + i % 9);
  const auto folder =
      weights({{kLayer + "gate_up_proj_blocks", blocks}, {kLayer + "gate_up_proj_scales", scales}});
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::int64_t e = 0; e < 2; ++e) {
    const std::string up = kLayer + std::to_string(e) + ".up_proj.weight";
    ASSERT_EQ(folder->shape(up), (Shape{kRows, 32 * kGroups}));
    ASSERT_EQ(folder->packed_dtype(up), DType::packed_mxfp4);
    EXPECT_EQ(folder->take_blocks(up).shape(), (Shape{kGroups, 1}));
    const Tensor values = folder->take_values(up, 0, kRows);
    for (std::int64_t o = 0; o < kRows; ++o) {
      for (std::int64_t i = 0; i < 32 * kGroups; ++i) {
        const std::int64_t group = (e * 2 * kRows + 2 * o + 1) * kGroups + i / 32;
        const int byte = blocks.data<std::uint8_t>()[group * 16 + i % 32 / 2];
        const int number = i % 2 == 0 ? byte & 15 : byte >> 4;
        const float magnitude = std::ldexp(kMagnitudes[number & 7], scales.data<std::uint8_t>()[group] - 127);
        EXPECT_EQ(values.data<float>()[o * 32 * kGroups + i], number >= 8 ? -magnitude : magnitude);
      }
    }
  }
}

// Queries and keys of 2 rows, values and gates of 2 value heads of 3, in each of 2 groups;
// and of one group: taps.
const nlohmann::json kTinyNext{{"model_type", "qwen3_next"},
                               {"linear_num_key_heads", 2},
                               {"linear_num_value_heads", 4},
                               {"linear_key_head_dim", 2},
                               {"linear_value_head_dim", 3},
                               {"num_attention_heads", 2},
                               {"head_dim", 2}};
const std::string kNextLayer = "model.layers.0.linear_attn.";

std::vector<float> first_columns(const Tensor& x) {
  std::vector<float> values;
  const std::int64_t row = x.size() / x.dim(0);
  for (std::int64_t i = 0; i < x.dim(0); ++i) values.push_back(x.data<float>()[i * row]);
  return values;
}

TEST_F(FusedFolder, RowsOfUnlikeParts) {
  const std::map<std::string, Tensor> tensors{{kNextLayer + "in_proj_qkvz.weight", numbered({32, 10})},
                                              {kNextLayer + "in_proj_ba.weight", numbered({8, 10})},
                                              {kNextLayer + "conv1d.weight", numbered({20, 1, 10})},
                                              {"model.layers.1.self_attn.q_proj.weight", numbered({8, 10})}};
  write_safetensors(folder_ + "/model.safetensors", tensors, {});
  const auto folder =
      unfused(kQwen3Next, kTinyNext, std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
  using Rows = std::vector<float>;
  EXPECT_EQ(first_columns(folder->read(kNextLayer + "k_proj.weight")), (Rows{20, 30, 180, 190}));
  EXPECT_EQ(first_columns(folder->take_rows(kNextLayer + "v_proj.weight", 4, 8)), (Rows{80, 90, 200, 210}));
  EXPECT_EQ(first_columns(folder->read(kNextLayer + "in_proj_a.weight")), (Rows{20, 30, 60, 70}));
  EXPECT_EQ(folder->shape(kNextLayer + "k_conv1d.weight"), (Shape{4, 1, 10}));
  EXPECT_EQ(first_columns(folder->read(kNextLayer + "k_conv1d.weight")), (Rows{40, 50, 60, 70}));
  EXPECT_EQ(first_columns(folder->read("model.layers.1.self_attn.gate_proj.weight")), (Rows{20, 30, 60, 70}));
  EXPECT_FALSE(folder->contains("model.layers.1.self_attn.q_proj.weight"));
  std::map<std::string, Tensor> made;
  for (const std::string& name : folder->names()) {
    const auto place = fused_place(kQwen3Next, kTinyNext, name);
    ASSERT_TRUE(place) << name;
    const Shape shape = fused_shape(*place, 0, folder->shape(name));
    ASSERT_EQ(shape, tensors.at(place->fused).shape()) << name;
    if (!made.contains(place->fused)) made[place->fused] = Tensor::zeros(DType::f32, shape);
    put_part(*place, folder->read(name), made[place->fused]);
  }
  EXPECT_EQ(made.size(), tensors.size());
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(std::equal(tensor.raw(), tensor.raw() + tensor.bytes(), made.at(name).raw())) << name;
}

TEST_F(FusedFolder, RowsThatTheConfigDoesNotSayAreRefused) {
  write_safetensors(folder_ + "/model.safetensors", {{kNextLayer + "in_proj_ba.weight", numbered({6, 10})}},
                    {});
  try {
    unfused(kQwen3Next, kTinyNext, std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find("expected 8 rows"), std::string::npos) << error.what();
  }
}

// Names in files that begin otherwise.
TEST_F(FusedFolder, NamesWithARootOfTheirOwn) {
  const std::string layer = "model.language_model.layers.0.mlp.";
  write_safetensors(folder_ + "/model.safetensors",
                    {{layer + "experts.gate_up_proj", numbered({2, 6, 5})},
                     {layer + "gate.weight", numbered({2, 5})},
                     {"lm_head.weight", numbered({7, 5})}},
                    {});
  const nlohmann::json config{{"model_type", "qwen3_5_moe"},
                              {"text_config", {{"model_type", "qwen3_5_moe_text"}}}};
  const auto folder =
      unfused(kQwen35Moe, config, std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
  EXPECT_EQ(
      folder->names(),
      (std::vector<std::string>{
          "lm_head.weight", "model.layers.0.mlp.experts.0.gate_proj.weight",
          "model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.1.gate_proj.weight",
          "model.layers.0.mlp.experts.1.up_proj.weight", "model.layers.0.mlp.gate.weight"}));
  EXPECT_EQ(first_columns(folder->read("model.layers.0.mlp.experts.1.up_proj.weight")),
            (std::vector<float>{45, 50, 55}));
  EXPECT_EQ(first_columns(folder->read("model.layers.0.mlp.gate.weight")), (std::vector<float>{0, 5}));
  EXPECT_EQ(name_in_files(kQwen35Moe, "model.layers.0.mlp.gate.weight", 2), layer + "gate.weight");
  EXPECT_EQ(name_in_files(kQwen35Moe, "lm_head.weight", 2), "lm_head.weight");
  EXPECT_EQ(name_in_files(kQwen3Next, "model.norm.weight", 2), "model.norm.weight");
  EXPECT_EQ(name_in_files(kQwen35Moe, "model.layers.2.hnorm.weight", 2), "mtp.pre_fc_norm_hidden.weight");
  EXPECT_EQ(name_in_files(kQwen35Moe, "model.layers.2.mlp.gate.weight", 2), "mtp.layers.0.mlp.gate.weight");
  // Read so, but written as a model of text alone.
  EXPECT_EQ(name_in_files(kLlama4, "model.norm.weight", 2), "model.norm.weight");
}

TEST_F(FusedFolder, TwoTensorsOfOneNameAreRefused) {
  write_safetensors(
      folder_ + "/model.safetensors",
      {{"language_model.model.norm.weight", numbered({5})}, {"model.norm.weight", numbered({5})}}, {});
  try {
    unfused(kLlama4, {{"model_type", "llama4_text"}},
            std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find("two tensors for \"model.norm.weight\""), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace switchyard
