// Tensors that hold several matrices: each matrix under its own name, and back.
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
    return unfused(kGptOss, nlohmann::json(), std::make_shared<WeightFolder>(WeightFolder::open(folder_)));
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

}  // namespace
}  // namespace switchyard
