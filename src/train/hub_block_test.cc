// Tests that blocks read row by row from Hugging Face tensors equal those of the whole parameter.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "core/json_file.h"
#include "core/testing.h"
#include "models/families/hub_source.h"
#include "models/families/hub_tensors.h"
#include "models/parameters.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

// The whole, and of each dim the first and the second half, and all but the first and the last.
std::vector<Box> boxes_in(const Shape& shape) {
  std::vector<Box> boxes{whole_box(shape)};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    for (const auto& [start, size] : {std::pair{std::int64_t{0}, shape[d] / 2},
                                      {shape[d] / 2, shape[d] - shape[d] / 2},
                                      {std::int64_t{1}, shape[d] - 2}}) {
      if (size <= 0) continue;
      Box box = whole_box(shape);
      box.start[d] = start;
      box.shape[d] = size;
      boxes.push_back(box);
    }
  }
  Box middle = whole_box(shape);  // of all dims at once
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 3) continue;
    middle.start[d] = 1;
    middle.shape[d] = shape[d] - 2;
  }
  boxes.push_back(middle);
  return boxes;
}

TEST(HubBlock, IsTheBlockOfTheWhole) {
  std::size_t parameters = 0;
  for (const auto& folder :
       std::filesystem::directory_iterator(std::string(kSourceFolder) + "/tests/golden/hf")) {
    const std::string model = folder.path().filename();
    const HubSource source = open_hub_source(folder.path().string());
    const ModelFamily& family = family_of(source.config);
    for (const ParameterSpec& spec : parameter_specs(model_config(config_of_hub(source.config)))) {
      SCOPED_TRACE(model + " " + spec.name);
      const Tensor whole = load_from_hub(*source.weights, family, spec.name, spec.shape);
      ++parameters;
      for (const Box& box : boxes_in(spec.shape)) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const Tensor got = hub_block(*source.weights, family, spec.name, spec.shape, box, {dtype, 1});
          const Tensor want = slice_block(whole, box.start, box.shape).cast(dtype);
          ASSERT_EQ(got.shape(), want.shape());
          ASSERT_EQ(got.dtype(), dtype);
          EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0) << to_string(box);
        }
      }
      const Box all = whole_box(spec.shape);
      const Tensor doubled = hub_block(*source.weights, family, spec.name, spec.shape, all, {DType::f32, 2});
      for (std::int64_t i = 0; i < whole.size(); ++i)
        ASSERT_EQ(doubled.data<float>()[i], 2 * whole.data<float>()[i]);
    }
  }
  EXPECT_GT(parameters, 700u);
}

}  // namespace
}  // namespace switchyard
