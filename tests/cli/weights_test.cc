// Starting from weights of a Hugging Face folder: the loss is that of the weights, and a folder that does not
// fit is refused with the name of the tensor.
#include <cmath>
#include <map>

#include "checkpoint/safetensors.h"
#include "child.h"
#include "core/rng.h"
#include "data/dataset.h"

namespace switchyard::cli_test {
namespace {

constexpr std::int64_t kWidth = 16, kVocab = 32, kMlp = 16, kExperts = 4, kLayers = 2;

// The model of tiny_model().
constexpr const char* kConfig =
    R"({"model_type":"mixtral","hidden_act":"silu","hidden_size":16,"intermediate_size":16,"num_hidden_layers":2,
    "num_attention_heads":2,"num_key_value_heads":2,"head_dim":8,"vocab_size":32,"rms_norm_eps":1e-5,
    "max_position_embeddings":64,"rope_theta":10000,"num_local_experts":4,"num_experts_per_tok":2,
    "sliding_window":null,"torch_dtype":"float32","made_up":1})";

using Weights = std::map<std::string, Tensor>;

class FromWeights : public ProgramTest {
 protected:
  Tensor drawn(const Shape& shape) {
    Tensor t(DType::f32, shape);
    for (float& x : t.span<float>()) x = static_cast<float>(rng_normal(rng_key(7), next_++));
    return t;
  }

  // Attention and experts add nothing to the residual stream (their last matrices are zero), so that the loss
  // can be computed by hand from embedding, norm and head; all other weights are drawn.
  Weights weights() {
    Weights w;
    w["model.embed_tokens.weight"] = drawn({kVocab, kWidth});
    w["model.norm.weight"] = drawn({kWidth});
    w["lm_head.weight"] = drawn({kVocab, kWidth});
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        w[layer + norm] = drawn({kWidth});
      for (const char* head : {"q_proj", "k_proj", "v_proj"})
        w[layer + "self_attn." + head + ".weight"] = drawn({16, kWidth});
      w[layer + "self_attn.o_proj.weight"] = Tensor::zeros(DType::f32, {kWidth, 16});
      w[layer + "block_sparse_moe.gate.weight"] = drawn({kExperts, kWidth});
      for (std::int64_t e = 0; e < kExperts; ++e) {
        const std::string expert = layer + "block_sparse_moe.experts." + std::to_string(e) + ".";
        w[expert + "w1.weight"] = drawn({kMlp, kWidth});
        w[expert + "w3.weight"] = drawn({kMlp, kWidth});
        w[expert + "w2.weight"] = Tensor::zeros(DType::f32, {kWidth, kMlp});
      }
    }
    return w;
  }

  void save(const Weights& w) {
    write("model/config.json", kConfig);
    write_safetensors(path("model/model.safetensors"), w, {});
  }

  std::uint64_t next_ = 0;
};

// Mean cross entropy over the synthetic batch [2, 8], in double precision.
double loss_by_hand(const Weights& w) {
  const Batch batch = make_synthetic(2, 8, kVocab)->read(0, 2);
  const float* embedding = w.at("model.embed_tokens.weight").data<float>();
  const float* norm = w.at("model.norm.weight").data<float>();
  const float* head = w.at("lm_head.weight").data<float>();
  double sum = 0;
  for (std::int64_t token = 0; token < 16; ++token) {
    const float* x = embedding + batch.inputs.data<std::int32_t>()[token] * kWidth;
    double squares = 0;
    for (std::int64_t m = 0; m < kWidth; ++m) squares += double{x[m]} * x[m];
    const double scale = 1 / std::sqrt(squares / kWidth + 1e-5);
    double total = 0, of_target = 0;
    for (std::int64_t v = 0; v < kVocab; ++v) {
      double logit = 0;
      for (std::int64_t m = 0; m < kWidth; ++m)
        logit += x[m] * scale * norm[m] * double{head[v * kWidth + m]};
      total += std::exp(logit);
      if (v == batch.targets.data<std::int32_t>()[token]) of_target = logit;
    }
    sum += std::log(total) - of_target;
  }
  return sum / 16;
}

TEST_F(FromWeights, TheFirstLossIsThatOfTheWeights) {
  const Weights w = weights();
  save(w);
  const double expected = loss_by_hand(w);
  for (const Arguments& mesh :
       {Arguments{}, Arguments{"ranks=4", "per_device_batch_size=0.5", "ici_expert_parallelism=2"}}) {
    const auto steps = train(mesh + Arguments{"load_parameters_path=model"});
    ASSERT_EQ(steps.size(), 3u);
    EXPECT_NEAR(steps[0]["learning/loss"].get<double>(), expected, 1e-5 * expected);
    EXPECT_LT(steps[2]["learning/loss"].get<double>(), expected);
  }
}

TEST_F(FromWeights, FoldersThatAreIncomplete) {
  expect_no_training({"load_parameters_path=absent"}, {"absent", "no such file or folder"});
  std::filesystem::create_directory(path("model"));
  expect_no_training({"load_parameters_path=model"}, {"model", "model.safetensors"});
  save(weights());
  std::filesystem::remove(path("model/config.json"));
  expect_no_training({"load_parameters_path=model"}, {"model/config.json"});
  write("model/config.json", "{");
  expect_no_training({"load_parameters_path=model"}, {"model/config.json", "JSON"});
  write("model/config.json", R"({"model_type": "gpt2"})");
  expect_no_training({"load_parameters_path=model"}, {"model_type", "gpt2"});
}

TEST_F(FromWeights, TensorsThatDoNotFit) {
  const std::string query = "model.layers.1.self_attn.q_proj.weight";
  Weights w = weights();
  w.erase(query);
  save(w);
  expect_no_training({"load_parameters_path=model"}, {"missing", query});
  w = weights();
  w["model.layers.1.self_attn.q_proj.bias"] = drawn({16});
  save(w);
  expect_no_training({"load_parameters_path=model"}, {"surplus", "model.layers.1.self_attn.q_proj.bias"});
  w = weights();
  w[query] = drawn({16, kWidth + 1});
  save(w);
  expect_no_training({"load_parameters_path=model"}, {"shape", query, "[16,17]", "[16,16]"});
  w = weights();
  w[query] = Tensor::zeros(DType::i32, {16, kWidth});
  save(w);
  expect_no_training({"load_parameters_path=model"}, {"wrong type", query, "I32"});
  w = weights();
  const std::string expert = "model.layers.0.block_sparse_moe.experts.2.w1.weight";
  w[expert] = w[expert].cast(DType::bf16);
  save(w);
  expect_no_training({"load_parameters_path=model"}, {"wrong type", expert, "BF16", "F32"});
}

// Keys that make another function of the same tensors, and those of another model altogether.
TEST_F(FromWeights, ARunOfAnotherModelIsRefusedByItsKey) {
  save(weights());
  for (const char* key : {"num_experts=8", "base_emb_dim=32", "rope_max_timescale=500000",
                          "num_experts_per_tok=3", "normalization_layer_epsilon=0.5",
                          "logits_via_embedding=true", "base_num_decoder_layers=1", "sliding_window_size=4"})
    expect_no_training({"load_parameters_path=model", key}, {"model: its config says", key});
  expect_no_training(
      {"load_parameters_path=model", "decoder_block=llama2", "num_experts=1", "num_experts_per_tok=1"},
      {"model: its config says"});
}

TEST_F(FromWeights, AFolderIsAConfig) {
  const Weights w = weights();
  save(w);
  const Arguments more{"dataset_type=synthetic",   "steps=1",
                       "per_device_batch_size=2",  "max_target_length=8",
                       "learning_rate=0.01",       "enable_checkpointing=false",
                       "base_output_directory=out"};
  const Finished done =
      run(Arguments{"train", "model"} + more + Arguments{"run_name=a", "metrics_file=m.jsonl"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.out.find("not known here, and without effect: \"made_up\""), std::string::npos) << done.out;
  const double expected = loss_by_hand(w);
  EXPECT_NEAR(nlohmann::json::parse(read("m.jsonl"))["learning/loss"].get<double>(), expected,
              1e-5 * expected);
  std::filesystem::create_directory(path("empty"));
  std::filesystem::remove_all(path("out"));
  expect_refused({"train", "empty", "steps=1"},
                 {"[train] empty: expected CONFIG.yml or a Hugging Face folder"});
}

std::string header(const std::string& text) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

TEST_F(FromWeights, FilesThatAreBroken) {
  save(weights());
  const std::string file = "model/model.safetensors", whole = read(file);
  const auto refuse = [&](const std::string& content, const std::string& word) {
    write(file, content);
    expect_no_training({"load_parameters_path=model"}, {file, word});
  };
  refuse("", "empty");
  refuse(whole.substr(0, 100), "header");
  refuse(whole.substr(0, whole.size() - 1), "bytes");
  refuse(whole + "x", "bytes");
  refuse(std::string(8, '\xff') + "{}", "header");
  refuse(header("{\"a\": 1"), "a");
  refuse(header("[1]"), "header");
  const std::string tensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  refuse(header("{\"a\":" + tensor + ",\"a\":" + tensor + "}") + "1234", "duplicate key");
  refuse(header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})") + "1234",
         "a");
  refuse(header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})") + "1234", "a");
  refuse(header(R"({"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}})") + "1234", "Q7");
}

}  // namespace
}  // namespace switchyard::cli_test
