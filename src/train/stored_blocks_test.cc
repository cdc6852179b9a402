// Tests models whose weights stay in their stored blocks: logits
// equal those of transformers with the dequantized weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/safetensors.h"
#include "core/testing.h"
#include "engine/initial_weights.h"
#include "engine/session.h"
#include "models/decoder.h"
#include "models/families/hub_source.h"
#include "models/families/hub_tensors.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

namespace stored_files = std::filesystem;

stored_files::path golden_file(const std::string& name) {
  return stored_files::path(kSourceFolder) / "tests/golden" / name;
}

Batch one_document(const Tensor& tokens) {
  const Shape shape{1, tokens.size()};
  Batch batch{tokens.reshaped(shape), Tensor::zeros(DType::i32, shape), Tensor(DType::i32, shape),
              Tensor(DType::i32, shape), Tensor(DType::i32, shape)};
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    batch.inputs_position.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
    batch.inputs_segmentation.data<std::int32_t>()[i] = 1;
    batch.targets_segmentation.data<std::int32_t>()[i] = 1;
  }
  return batch;
}

struct StoredRun {
  Tensor logits;                // [1, S, V] f32
  std::map<DType, int> packed;  // how many weights of each packed type
};

StoredRun run_as_stored(const std::string& path, const Tensor& tokens) {
  const HubSource source = open_hub_source(path);
  Config config = config_of_hub(source.config);
  config.set("load_parameters_path", path, "test");
  config.set("dtype", "float32", "test");
  config.set("weight_dtype", "float32", "test");
  config.set("max_target_length", tokens.size(), "test");
  config.set("per_device_batch_size", 1.0, "test");
  const ModelConfig model = model_config(config);
  const Mesh mesh = mesh_from_config(config);
  std::vector<std::string> notes;
  const auto specs = specs_as_stored(config, mesh, model, specs_to_run(config, model, &notes), &notes);
  const auto fill = initial_weights(config, model, specs, &notes, WeightUse::run);
  StoredRun run;
  for (const ParameterSpec& spec : specs) {
    if (is_packed(spec.dtype)) ++run.packed[spec.dtype];
  }
  run_session(config, mesh, [&](Context& context) {
    context.grad_enabled = false;
    const Parameters parameters =
        Parameters::create_from_blocks(context, specs, model.init_seed, fill, nullptr);
    const HiddenStates out =
        hidden_states(context, model, parameters, place_batch(context, one_document(tokens)), {});
    run.logits = output_logits(context, model, parameters, out.final_hidden).tensor().clone();
  });
  return run;
}

// The largest difference from stored logits, relative to the largest of them.
double difference_from(const stored_files::path& expected_file, const StoredRun& run) {
  const Tensor want = SafetensorsFile::open(expected_file.string()).read("logits");
  EXPECT_EQ(run.logits.size(), want.size());
  double largest = 0, difference = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want.data<float>()[i])));
    difference = std::max(difference, std::abs(static_cast<double>(run.logits.data<float>()[i]) -
                                               static_cast<double>(want.data<float>()[i])));
  }
  return difference / largest;
}

Tensor tokens_of(const stored_files::path& expected_file) {
  return SafetensorsFile::open(expected_file.string()).read("input_ids");
}

TEST(StoredBlocks, OfGgufFilesGiveTransformersLogits) {
  std::map<DType, int> packed;
  int files = 0;
  for (const auto& found : stored_files::recursive_directory_iterator(golden_file("gguf"))) {
    if (found.path().extension() != ".gguf") continue;
    SCOPED_TRACE(found.path().string());
    stored_files::path expected = found.path();
    expected.replace_extension(".expected.safetensors");
    const StoredRun run = run_as_stored(found.path().string(), tokens_of(expected));
    EXPECT_LT(difference_from(expected, run), 1e-4);
    for (const auto& [dtype, count] : run.packed) packed[dtype] += count;
    ++files;
  }
  EXPECT_EQ(files, 11);
  for (const DType dtype : {DType::packed_int8, DType::packed_int4, DType::packed_int4a, DType::packed_mxfp4,
                            DType::packed_q4_k, DType::packed_q5_k, DType::packed_q6_k})
    EXPECT_GT(packed[dtype], 0) << name_of(dtype);
}

TEST(StoredBlocks, OfGptqGiveTransformersLogits) {
  const stored_files::path folder = golden_file("quantized/qwen3moe-gptq");
  const StoredRun run = run_as_stored(folder.string(), tokens_of(folder / "expected.safetensors"));
  EXPECT_LT(difference_from(folder / "expected.safetensors", run), 1e-4);
  EXPECT_EQ(run.packed, (std::map<DType, int>{{DType::packed_int4, 14}}));
}

// Weights that are no whole blocks are dense, with the same float32 values.
TEST(StoredBlocks, OfFp8GiveTransformersLogits) {
  const stored_files::path folder = golden_file("quantized/deepseek3-fp8");
  const StoredRun run = run_as_stored(folder.string(), tokens_of(folder / "expected.safetensors"));
  EXPECT_LT(difference_from(folder / "expected.safetensors", run), 1e-4);
  EXPECT_GT(run.packed.at(DType::packed_fp8), 8);
  const stored_files::path partial = golden_file("quantized/deepseek3-fp8-partial");
  const StoredRun dense = run_as_stored(partial.string(), tokens_of(partial / "expected.safetensors"));
  EXPECT_LT(difference_from(partial / "expected.safetensors", dense), 1e-4);
}

}  // namespace
}  // namespace switchyard
