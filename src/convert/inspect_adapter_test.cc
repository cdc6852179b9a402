#include "convert/inspect_adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/layout.h"
#include "config/test_support.h"
#include "convert/model_source.h"
#include "models/model_config.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

const std::string kAdaptedModel = std::string(kSourceFolder) + "/tests/golden/lora/mixtral-experts";
const std::string kItsAdapter = kAdaptedModel + "/adapter";

// The norm of what a merge changes over the weight's norm.
TEST(InspectAdapter, MeasuresTheChangeThatAMergeMakes) {
  const AdapterInspection inspection = inspect_adapter(kItsAdapter, kAdaptedModel);
  const auto ignore = [](const std::string&) {};
  const auto base = open_hub_model(kAdaptedModel, ignore);
  const auto merged = with_adapter_merged(open_hub_model(kAdaptedModel, ignore), kAdaptedModel, kItsAdapter);
  TensorMover mover(1);
  std::size_t measured = 0;
  for (const ParameterSpec& spec : parameter_specs(model_config(base->config()))) {
    const StoredParameter stored = stored_parameter(spec.name, spec.shape);
    double change = 0, weight = 0;
    for (const std::string& name : stored.names) {
      const Tensor before = base->read(mover, name, stored.shape, DType::f32),
                   after = merged->read(mover, name, stored.shape, DType::f32);
      for (std::int64_t i = 0; i < before.size(); ++i) {
        const double w = before.data<float>()[i], d = double{after.data<float>()[i]} - w;
        change += d * d;
        weight += w * w;
      }
    }
    const auto found = std::ranges::find(inspection.weights, spec.name, &AdapterInspection::Weight::name);
    EXPECT_EQ(change > 0, found != inspection.weights.end()) << spec.name;
    if (found == inspection.weights.end()) continue;
    EXPECT_EQ(found->rank, 2) << spec.name;
    EXPECT_NEAR(found->change, std::sqrt(change / weight), 1e-5) << spec.name;
    ++measured;
  }
  EXPECT_EQ(measured, 10u);
}

TEST(InspectAdapter, KnowsFoldersOfPeft) {
  EXPECT_TRUE(is_adapter(kItsAdapter));
  EXPECT_FALSE(is_adapter(kAdaptedModel));
}

}  // namespace
}  // namespace switchyard
