// switchyard convert and inspect as a user meets them: both directions, the same bits back, kills on the way,
// and everything that must be refused.
#include <signal.h>
#include <sys/file.h>

#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "checkpoint/safetensors.h"
#include "child.h"
#include "core/json_file.h"
#include "core/testing.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;

class Convert : public ProgramTest {
 protected:
  static std::string golden(const std::string& name) {
    return std::string(kSourceFolder) + "/tests/golden/hf/" + name;
  }

  void convert(const Arguments& arguments) const {
    const Finished done = run(Arguments{"convert"} + arguments);
    EXPECT_EQ(done.status, 0) << done.err;
  }
  int inspect(const Arguments& arguments) const { return run(Arguments{"inspect"} + arguments).status; }

  // Refused with one line, and nothing is left behind.
  void refuse(const Arguments& arguments, const std::vector<std::string>& words) const {
    expect_refused(Arguments{"convert"} + arguments + Arguments{"out"}, words);
    for (const auto& entry : fs::directory_iterator(path("")))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".saving")) << entry.path();
  }

  // name below the folder -> size and hash of its content
  std::map<std::string, std::string> contents(const std::string& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(path(folder))) {
      if (!entry.is_regular_file()) continue;
      const std::string content = read(fs::relative(entry.path(), path("")).string());
      files[fs::relative(entry.path(), path(folder)).string()] =
          std::to_string(content.size()) + " " + std::to_string(std::hash<std::string>()(content));
    }
    return files;
  }

  // Runs the program and kills it after `wait`. False when it ended before.
  bool start_and_kill(const Arguments& arguments, std::chrono::microseconds wait) const {
    const pid_t child = start(arguments);
    std::this_thread::sleep_for(wait);
    ::kill(child, SIGKILL);
    int state = 0;
    ::waitpid(child, &state, 0);
    return WIFSIGNALED(state);
  }

  // A copy of a golden model's weights that can be changed.
  std::map<std::string, Tensor> tensors_of(const std::string& name) const {
    const auto file = SafetensorsFile::open(golden(name) + "/model.safetensors");
    std::map<std::string, Tensor> tensors;
    for (const auto& [tensor, entry] : file.entries()) tensors[tensor] = file.read(tensor);
    return tensors;
  }
  void save(const std::string& name, const std::map<std::string, Tensor>& tensors) const {
    fs::create_directories(path("model"));
    fs::copy_file(golden(name) + "/config.json", path("model/config.json"),
                  fs::copy_options::overwrite_existing);
    write_safetensors(path("model/model.safetensors"), tensors, {});
  }
};

TEST_F(Convert, ThereAndBackIsTheSameBits) {
  for (const std::string model : {"deepseek3-tiny", "llama3-rope-tiny", "qwen3moe-tiny"}) {
    SCOPED_TRACE(model);
    const Finished there = run({"convert", golden(model), model, "--verify"});
    EXPECT_EQ(there.status, 0) << there.err;
    EXPECT_NE(there.out.find("the same bits"), std::string::npos) << there.out;
    const Finished back = run({"convert", model, model + "-hub", "--verify", "--file-bytes", "200000"});
    EXPECT_EQ(back.status, 0) << back.err;
    EXPECT_NE(back.out.find("the same bits"), std::string::npos) << back.out;
    EXPECT_TRUE(fs::exists(path(model + "-hub/model.safetensors.index.json")));
    EXPECT_EQ(inspect({golden(model), model + "-hub"}), 0);
    EXPECT_EQ(inspect({golden(model), model}), 0);
    EXPECT_EQ(inspect({model, model + "-hub"}), 0);
    convert({model + "-hub", model + "-again"});
    EXPECT_EQ(inspect({model, model + "-again"}), 0);
    EXPECT_EQ(inspect({model, "--prove"}), 0);
  }
}

// gpt-oss has the experts of a layer in one tensor, gate and up in turns.
TEST_F(Convert, FusedTensorsAreTheSameBitsAgain) {
  const Finished there = run({"convert", golden("gptoss-tiny"), "ours", "--verify"});
  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_NE(there.out.find("the same bits"), std::string::npos) << there.out;
  convert({"ours", "hub", "--file-bytes", "200000"});
  EXPECT_EQ(inspect({golden("gptoss-tiny"), "hub"}), 0);
  const Finished fused = run({"inspect", "ours", "hub"});
  EXPECT_EQ(fused.status, 2);
  EXPECT_NE(fused.err.find("several matrices"), std::string::npos) << fused.err;
  const Finished shown = run({"inspect", "hub"});
  EXPECT_NE(shown.out.find("204,132, 133,332 for a token"), std::string::npos) << shown.out;
}

// Llama 4 as it is published: the decoder's settings in text_config, `language_model.` before its names, and
// beside them a part that sees images. It is the model that its decoder alone is.
TEST_F(Convert, DecodersOfModelsThatSeeImages) {
  const std::string alone = golden("llama4-unrotated-tiny");
  const Finished there = run({"convert", alone, "ours", "--verify"});
  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_NE(there.out.find("the same bits"), std::string::npos) << there.out;
  convert({"ours", "hub", "--file-bytes", "200000"});
  EXPECT_EQ(inspect({alone, "hub"}), 0);

  std::map<std::string, Tensor> tensors{{"vision_model.a.weight", Tensor::zeros(DType::f32, {3, 4})},
                                        {"multi_modal_projector.b.weight", Tensor::zeros(DType::f32, {5})}};
  for (const auto& [name, tensor] : tensors_of("llama4-unrotated-tiny"))
    tensors["language_model." + name] = tensor;
  save("llama4-unrotated-tiny", tensors);
  std::ofstream(path("model/config.json"))
      << nlohmann::json{{"model_type", "llama4"}, {"text_config", read_json_file(alone + "/config.json")}};
  const Finished nested = run({"convert", "model", "again", "--verify"});
  EXPECT_EQ(nested.status, 0) << nested.err;
  EXPECT_NE((nested.out + nested.err).find("2 tensors of what sees images"), std::string::npos)
      << nested.out << nested.err;
  EXPECT_EQ(inspect({"ours", "again"}), 0);
}

// Qwen3-Next has products with one input in one tensor, by head.
TEST_F(Convert, RowsOfSeveralProductsAreTheSameBitsAgain) {
  const Finished there = run({"convert", golden("qwen3next-tiny"), "ours", "--verify"});
  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_NE(there.out.find("the same bits"), std::string::npos) << there.out;
  convert({"ours", "hub", "--file-bytes", "200000"});
  EXPECT_EQ(inspect({golden("qwen3next-tiny"), "hub"}), 0);
}

TEST_F(Convert, CastsWhenAsked) {
  const Finished low = run({"convert", golden("deepseek3-tiny"), "low", "--dtype", "bfloat16", "--verify"});
  EXPECT_EQ(low.status, 0) << low.err;
  EXPECT_NE(low.out.find("the same bits"), std::string::npos) << low.out;
  const Finished rounded = run({"inspect", golden("deepseek3-tiny"), "low"});
  EXPECT_EQ(rounded.status, 3) << rounded.err;
  EXPECT_NE(rounded.out.find("equal after rounding to bfloat16, 0 only in A"), std::string::npos)
      << rounded.out;
  EXPECT_EQ(run({"inspect", "low", "--json", "low.json"}).status, 0);
  const auto report = nlohmann::json::parse(read("low.json"));
  for (const auto& tensor : report["tensors"]) {
    const bool bias = tensor["name"].get<std::string>().ends_with("gate_bias");
    EXPECT_EQ(tensor["dtype"], bias ? "F32" : "BF16") << tensor["name"];
  }
  convert({"low", "wide", "--dtype", "float32"});
  EXPECT_EQ(inspect({"low", "wide"}), 0);
}

TEST_F(Convert, InspectSaysWhatFilesSayOfThemselves) {
  const std::string gguf = golden("../gguf/qwen3moe/Q4_0.gguf");
  const Finished file = run({"inspect", gguf, "--json", "gguf.json"});
  ASSERT_EQ(file.status, 0) << file.err;
  for (const char* word : {"GGUF version 3, architecture qwen3moe", "context", "tokenizer",
                           "weights as int4: ", "weights as bfloat16: "})
    EXPECT_NE(file.out.find(word), std::string::npos) << word << "\n" << file.out;
  EXPECT_EQ(nlohmann::json::parse(read("gguf.json"))["stated"]["file type"], "Q4_0");
  const Finished folder = run({"inspect", golden("qwen3moe-tiny")});
  ASSERT_EQ(folder.status, 0) << folder.err;
  for (const char* word :
       {"model_type  qwen3_moe", "dtype       float32", "context     128", "tokenizer   none"})
    EXPECT_NE(folder.out.find(word), std::string::npos) << word << "\n" << folder.out;
  expect_refused({"inspect", gguf, gguf}, {"convert both first", "switchyard convert"});
}

TEST_F(Convert, TokenizerFilesGoAlong) {
  save("qwen3moe-tiny", tensors_of("qwen3moe-tiny"));
  write("model/tokenizer.json", R"({"model": {}})");
  write("model/generation_config.json", R"({"eos_token_id": 7})");
  write("model/README.md", "not carried");
  auto config = nlohmann::json::parse(read("model/config.json"));
  config["eos_token_id"] = 7;
  write("model/config.json", config.dump());
  convert({"model", "ours"});
  convert({"ours", "back"});
  EXPECT_EQ(read("back/tokenizer.json"), read("model/tokenizer.json"));
  EXPECT_EQ(read("back/generation_config.json"), read("model/generation_config.json"));
  EXPECT_FALSE(fs::exists(path("back/README.md")));
  EXPECT_EQ(nlohmann::json::parse(read("back/config.json"))["eos_token_id"], 7);
}

// Through two trainings, the second of which starts from the first.
TEST_F(Convert, ATrainedFolderKeepsWhatItSays) {
  save("qwen3moe-tiny", tensors_of("qwen3moe-tiny"));
  auto config = nlohmann::json::parse(read("model/config.json"));
  config["eos_token_id"] = {7, 5};
  config["pad_token_id"] = 3;
  write("model/config.json", config.dump());
  write("model/generation_config.json", R"({"eos_token_id": [7, 5], "do_sample": true, "top_k": 9})");
  write("model/additional_chat_templates/tool_use.jinja", "with tools");
  const auto train = [&](const std::string& name, const Arguments& more) {
    const Finished done = run(Arguments{"train", "model", "dataset_type=synthetic", "max_target_length=8",
                                        "steps=1", "per_device_batch_size=1", "enable_checkpointing=true",
                                        "base_output_directory=out", "run_name=" + name} +
                              more);
    EXPECT_EQ(done.status, 0) << done.err;
  };
  train("first", {});
  train("second", {"load_parameters_path=out/first"});
  convert({"out/second", "back"});
  for (const char* name : {"generation_config.json", "additional_chat_templates/tool_use.jinja"})
    EXPECT_EQ(read(std::string("back/") + name), read(std::string("model/") + name)) << name;
  const auto back = nlohmann::json::parse(read("back/config.json"));
  EXPECT_EQ(back["eos_token_id"], config["eos_token_id"]);
  EXPECT_EQ(back["pad_token_id"], 3);
}

TEST_F(Convert, AModelTrainedHereHasTheEndsOfItsTokenizer) {
  train_bytes();
  convert({"out/run", "exported"});
  const auto config = nlohmann::json::parse(read("exported/config.json")),
             generation = nlohmann::json::parse(read("exported/generation_config.json"));
  EXPECT_EQ(config["eos_token_id"], 256);
  EXPECT_TRUE(config["bos_token_id"].is_null() && config.contains("pad_token_id")) << config;
  EXPECT_EQ(generation, nlohmann::json({{"eos_token_id", 256}}));
}

TEST_F(Convert, NoExpertIsDropped) {
  const std::string expert = "model.layers.1.mlp.experts.5.up_proj.weight";
  auto tensors = tensors_of("qwen3moe-tiny");
  const Tensor lost = tensors.at(expert);
  tensors.erase(expert);
  save("qwen3moe-tiny", tensors);
  refuse({"model"}, {"missing", expert});
  tensors[expert] = lost;
  tensors["model.layers.1.mlp.experts.8.up_proj.weight"] = lost;
  save("qwen3moe-tiny", tensors);
  refuse({"model"}, {"surplus", "experts.8.up_proj"});
  tensors.erase("model.layers.1.mlp.experts.8.up_proj.weight");
  save("qwen3moe-tiny", tensors);
  const Finished done = run({"convert", "model", "ours"});
  EXPECT_NE(done.out.find("16 experts"), std::string::npos) << done.out;
}

TEST_F(Convert, RefusesBeforeAnythingIsWritten) {
  refuse({"absent"}, {"absent", "no such file or folder"});
  fs::create_directory(path("empty"));
  refuse({"empty"}, {"empty", "expected a Hugging Face folder"});
  refuse({golden("qwen3moe-tiny"), "--to", "huggingface"}, {"--to huggingface", "is one already"});
  refuse({golden("qwen3moe-tiny"), "--to", "onnx"}, {"--to onnx"});
  refuse({golden("qwen3moe-tiny"), "--dtype", "int8"}, {"--dtype", "int8"});
  refuse({golden("qwen3moe-tiny"), "--file-bytes", "0"}, {"--file-bytes 0"});
  refuse({golden("qwen3moe-tiny"), "--fast"}, {"--fast"});
  refuse({golden("qwen3moe-tiny"), "--save-logits", "x"}, {"--verify"});
  refuse({golden("qwen3moe-tiny"), "third"}, {"expected SRC and DST", "3 paths"});
  expect_refused({"convert", golden("qwen3moe-tiny"), "no/such/parent"}, {"no/such"});
  fs::create_directory(path("taken"));
  write("taken/file", "precious");
  expect_refused({"convert", golden("qwen3moe-tiny"), "taken"}, {"taken", "exists already"});
  EXPECT_EQ(read("taken/file"), "precious");
  fs::create_directory(path("bare"));
  convert({golden("qwen3moe-tiny"), "bare"});
  expect_refused({"convert", golden("qwen3moe-tiny"), "bare"}, {"bare", "exists already"});
  EXPECT_EQ(run({"convert", "--help"}).status, 0);
}

TEST_F(Convert, DamageIsFoundAndNotConverted) {
  convert({golden("qwen3moe-tiny"), "ours"});
  std::string file = read("ours/weights-00001.safetensors");
  file[file.size() - 100] = static_cast<char>(file[file.size() - 100] ^ 4);
  write("ours/weights-00001.safetensors", file);
  const Finished proof = run({"inspect", "--prove", "ours"});
  EXPECT_EQ(proof.status, 1);
  EXPECT_NE(proof.err.find("weights-00001.safetensors"), std::string::npos) << proof.err;
  EXPECT_NE(proof.err.find("damaged"), std::string::npos) << proof.err;
  const Finished done = run({"convert", "ours", "out"});
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.err.find("damaged"), std::string::npos) << done.err;
  EXPECT_FALSE(fs::exists(path("out")));
  fs::remove(path("ours/complete"));
  expect_refused({"inspect", "ours"}, {"ours", "complete"});
}

// What a run has learned is what others load: the first loss from the exported folder is that from the run
// itself.
TEST_F(Convert, ARunsModelGoesOut) {
  for (const Arguments& model :
       {Arguments{},
        Arguments{"decoder_block=deepseek", "attention_type=mla", "kv_lora_rank=8", "qk_nope_head_dim=8",
                  "qk_rope_head_dim=4", "v_head_dim=8", "routed_score_func=sigmoid", "routed_bias=true",
                  "routed_bias_update_rate=0.1", "max_position_embeddings=64", "latent_norm_epsilon=1e-6"}}) {
    fs::remove_all(path("out"));
    fs::remove_all(path("exported"));
    train(model + Arguments{"steps=2", "enable_checkpointing=true"});
    const Finished done = run({"convert", "out/run", "exported", "--verify"});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_NE(done.out.find("the same bits"), std::string::npos) << done.out;
    EXPECT_EQ(inspect({"out/run", "exported"}), 0);
    const Finished shown = run({"inspect", "out/run", "--prove"});
    EXPECT_EQ(shown.status, 0) << shown.err;
    for (const char* words : {"complete", "every byte is as it was written", "step        2"})
      EXPECT_NE(shown.out.find(words), std::string::npos) << words << "\n" << shown.out;
    std::vector<nlohmann::json> losses;
    for (const std::string from : {"out/run", "exported"}) {
      const Finished next = run(Arguments{"train"} + tiny_model() + model +
                                Arguments{"steps=1", "run_name=next_" + std::to_string(losses.size()),
                                          "load_parameters_path=" + from, "metrics_file=m.jsonl"});
      ASSERT_EQ(next.status, 0) << next.err;
      losses.push_back(nlohmann::json::parse(read("m.jsonl"))["learning/loss"]);
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

// A converted checkpoint states its model in its own keys; a run states it in others.
TEST_F(Convert, TrainingStartsFromAConversion) {
  save("qwen3moe-tiny", tensors_of("qwen3moe-tiny"));
  convert({"model", "ours"});
  const Arguments keys{"decoder_block=qwen3_moe",
                       "base_emb_dim=64",
                       "base_num_query_heads=4",
                       "base_num_kv_heads=2",
                       "head_dim=24",
                       "base_num_decoder_layers=2",
                       "base_moe_mlp_dim=32",
                       "base_mlp_dim=32",
                       "num_experts=8",
                       "num_experts_per_tok=2",
                       "norm_topk_prob=true",
                       "use_qk_norm=true",
                       "vocab_size=256",
                       "rope_max_timescale=1000000",
                       "normalization_layer_epsilon=1e-6",
                       "max_target_length=16",
                       "per_device_batch_size=2",
                       "dtype=float32",
                       "steps=1",
                       "metrics_file=m.jsonl",
                       "base_output_directory=out"};
  std::vector<nlohmann::json> losses;
  for (const std::string from : {"model", "ours"}) {
    const Finished done =
        run(Arguments{"train"} + keys + Arguments{"load_parameters_path=" + from, "run_name=from_" + from});
    ASSERT_EQ(done.status, 0) << done.err;
    losses.push_back(nlohmann::json::parse(read("m.jsonl"))["learning/loss"]);
  }
  EXPECT_EQ(losses[0], losses[1]);
  const Finished other =
      run(Arguments{"train"} + keys + Arguments{"load_parameters_path=ours", "rope_max_timescale=10000"});
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("rope_max_timescale=1000000"), std::string::npos) << other.err;
}

TEST_F(Convert, ARunsModelWithoutAHuggingFaceForm) {
  train({"steps=1", "shared_experts=1", "enable_checkpointing=true"});
  const Finished done = run({"convert", "out/run", "exported"});
  EXPECT_EQ(done.status, 2);
  EXPECT_NE(done.err.find("shared_experts=1"), std::string::npos) << done.err;
  EXPECT_FALSE(fs::exists(path("exported")));
}

// Where only other weights can say it in config.json, they do; and what comes back is that model.
TEST_F(Convert, ARunsModelInAnotherForm) {
  const Arguments latent{"decoder_block=deepseek",
                         "attention_type=mla",
                         "kv_lora_rank=8",
                         "qk_nope_head_dim=8",
                         "qk_rope_head_dim=4",
                         "v_head_dim=8",
                         "norm_topk_prob=true",
                         "n_routing_groups=2",
                         "topk_routing_group=1",
                         "mscale=0",
                         "routed_score_func=sigmoid",
                         "latent_norm_epsilon=1e-6"};
  struct Form {
    Arguments keys, export_options;
    std::string notice, verdict;
  };
  const Arguments tied{"logits_via_embedding=true"}, compat{"compat=maxtext"};
  const std::string near = "is allowed", same = "the same bits";
  for (const Form& form :
       {Form{tied, {}, "the final norm holds", same},
        Form{tied + Arguments{"base_emb_dim=24"}, {}, "rounded once", near},
        Form{tied + Arguments{"base_emb_dim=24"}, {"--dtype", "bfloat16"}, "rounded once", near},
        Form{compat, {}, "head_dim", near},
        Form{compat + Arguments{"head_dim=16"}, {"--dtype", "bfloat16"}, "exact", near},
        Form{latent, {}, "bias of zeros", same},
        Form{latent + Arguments{"latent_norm_epsilon=1e-4"}, {}, "latents with the epsilon 0.0001", near},
        Form{latent + Arguments{"mscale=1"}, {}, "the query holds", near}}) {
    SCOPED_TRACE(::testing::PrintToString(form.keys));
    for (const char* folder : {"out", "exported", "again"}) fs::remove_all(path(folder));
    const Finished trained = run(Arguments{"train"} + tiny_model() + form.keys +
                                 Arguments{"steps=2", "enable_checkpointing=true"});
    ASSERT_EQ(trained.status, 0) << trained.err;
    const Finished done = run(Arguments{"convert", "out/run", "exported", "--verify"} + form.export_options);
    EXPECT_EQ(done.status, 0) << done.out << done.err;
    EXPECT_NE(done.err.find(form.notice), std::string::npos) << done.err;
    EXPECT_NE(done.out.find(form.verdict), std::string::npos) << done.out;
    const Finished back = run({"convert", "exported", "again", "--verify"});
    EXPECT_NE(back.out.find(same), std::string::npos) << back.out << back.err;
    EXPECT_EQ(inspect({"exported", "again"}), 0);
  }
}

// Prediction layers of a published folder: after the layers, with a norm, and the embedding and the head
// again.
class ConvertPredictions : public Convert {
 protected:
  void make_model(const std::string& name, std::int64_t stated) {
    std::map<std::string, Tensor> tensors = tensors_of(name);
    nlohmann::json config = nlohmann::json::parse(read_file_text(golden(name) + "/config.json"));
    const auto layers = config["num_hidden_layers"].get<std::int64_t>(),
               width = config["hidden_size"].get<std::int64_t>();
    const std::string last = fmt::format("model.layers.{}.", layers - 1),
                      own = fmt::format("model.layers.{}.", layers);
    for (const auto& [tensor, values] : std::map(tensors)) {
      if (tensor.starts_with(last)) tensors[own + tensor.substr(last.size())] = values;
    }
    for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
      tensors[own + norm] = counted({width});
    tensors[own + "eh_proj.weight"] = counted({width, 2 * width});
    tensors[own + "embed_tokens.weight"] = tensors.at("model.embed_tokens.weight");
    tensors[own + "shared_head.head.weight"] = tensors.at("lm_head.weight");
    save(name, tensors);
    config["num_nextn_predict_layers"] = stated;
    write("model/config.json", config.dump());
    own_ = own;
  }
  static Tensor counted(const Shape& shape) {
    Tensor x(DType::f32, shape);
    for (std::int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i % 97) / 64;
    return x;
  }
  static std::string read_file_text(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string own_;  // "model.layers.3."
};

TEST_F(ConvertPredictions, ThereAndBackIsTheSameBits) {
  make_model("deepseek3-tiny", 1);
  convert({"model", "ours", "--verify"});
  EXPECT_EQ(inspect({"model", "ours"}), 0);
  convert({"ours", "again", "--verify"});
  EXPECT_EQ(inspect({"model", "again"}), 0) << "every tensor, the copies among them";
  EXPECT_EQ(nlohmann::json::parse(read("again/config.json"))["num_nextn_predict_layers"], 1);
  EXPECT_EQ(nlohmann::json::parse(read("ours/manifest.json"))["config"]["mtp_num_layers"], 1);
}

TEST_F(ConvertPredictions, AreLeftOutWhereNoneIsStated) {
  make_model("deepseek3-tiny", 0);
  const Finished done = run({"convert", "model", "ours", "--verify"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find(own_ + "eh_proj.weight and "), std::string::npos) << done.err;
}

TEST_F(ConvertPredictions, ACopyThatIsNoneIsRefused) {
  make_model("deepseek3-tiny", 1);
  std::map<std::string, Tensor> tensors;
  const auto file = SafetensorsFile::open(path("model/model.safetensors"));
  for (const auto& [tensor, entry] : file.entries()) tensors[tensor] = file.read(tensor).clone();
  tensors.at(own_ + "shared_head.head.weight").raw()[0] ^= std::byte{1};
  write_safetensors(path("model/model.safetensors"), tensors, {});
  refuse({"model"}, {own_ + "shared_head.head.weight", "lm_head.weight"});
}

// A prediction layer below "mtp.", with fused experts: the same bits there and back, the loss that the
// published formula gives, and drafts that change no text.
TEST_F(ConvertPredictions, OfQwen35) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/drafts/qwen35moe-tiny";
  convert({folder, "ours", "--verify"});
  convert({"ours", "back", "--verify"});
  convert({"back", "again"});
  EXPECT_EQ(inspect({"ours", "again"}), 0);
  const auto exported = SafetensorsFile::open(path("back/model.safetensors"));
  EXPECT_TRUE(exported.entries().contains("mtp.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_EQ(nlohmann::json::parse(read("back/config.json"))["mtp_num_hidden_layers"], 1);

  const nlohmann::json want = nlohmann::json::parse(read_file_text(folder + "/losses.json"));
  write("text.txt", want["text"].get<std::string>() + "\n");
  const Finished trained =
      run({"train", folder, "data_path=text.txt", "tokenizer_type=byte", "add_bos=false", "add_eos=false",
           "enable_data_shuffling=false", "steps=1", "per_device_batch_size=1", "dtype=float32",
           fmt::format("max_target_length={}", want["max_target_length"].get<int>()),
           "mtp_loss_scaling_factor=1", "base_output_directory=out", "run_name=run"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const std::vector<nlohmann::json> steps = metrics();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_NEAR(steps.at(0)["learning/lm_loss"].get<double>(), want["lm_loss"].get<double>(), 1e-5);
  EXPECT_NEAR(steps.at(0)["learning/mtp_loss"].get<double>(), want["mtp_loss"].get<double>(), 1e-5);

  const auto text = [&](const Arguments& more) {
    const Finished done = run(Arguments{"generate", folder, "tokenizer_type=byte", "prompt=1234-1234-12",
                                        "max_target_length=64", "dtype=float32"} +
                              more);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  };
  const std::string plain = text({});
  EXPECT_EQ(text({"mtp_draft=true"}), plain);
  EXPECT_EQ(text({"mtp_draft=true", "mtp_draft_tokens=4"}), plain);
  EXPECT_EQ(text({"ngram_draft=4"}), plain);
  EXPECT_EQ(text({"mtp_draft=true", "ranks=2", "ici_tensor_parallelism=2"}), plain);
}

// Prediction layers that read the model's final norm, which each of them is written with.
TEST_F(ConvertPredictions, OfARun) {
  const Finished trained =
      run(Arguments{"train"} + tiny_model() +
          Arguments{"decoder_block=deepseek", "attention_type=mla", "kv_lora_rank=8", "qk_nope_head_dim=8",
                    "qk_rope_head_dim=4", "v_head_dim=8", "norm_topk_prob=true", "routed_score_func=sigmoid",
                    "routed_bias=true", "mtp_num_layers=2", "mtp_own_norm=false", "use_qk_clip=true",
                    "qk_clip_threshold=0.01", "steps=2", "enable_checkpointing=true",
                    "max_position_embeddings=4096"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Finished done = run({"convert", "out/run", "exported", "--verify"});
  EXPECT_EQ(done.status, 0) << done.out << done.err;
  EXPECT_NE(done.err.find("mtp_own_norm=false"), std::string::npos) << done.err;
  convert({"exported", "again", "--verify"});
  EXPECT_EQ(inspect({"exported", "again"}), 0);
  const auto file = SafetensorsFile::open(path("exported/model.safetensors"));
  for (const char* layer : {"model.layers.2.", "model.layers.3."}) {
    for (const auto& [copy, original] : {std::pair{"shared_head.norm.weight", "model.norm.weight"},
                                         std::pair{"shared_head.head.weight", "lm_head.weight"},
                                         std::pair{"embed_tokens.weight", "model.embed_tokens.weight"}}) {
      const Tensor a = file.read(std::string(layer) + copy), b = file.read(original);
      ASSERT_EQ(a.shape(), b.shape());
      EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0) << layer << copy;
    }
  }
}

// Ends the program in the middle of a conversion, again and again; in the end all is as without.
TEST_F(Convert, KilledAndResumed) {
  const bool soak = std::getenv("SWITCHYARD_SOAK") != nullptr;
  convert({golden("deepseek3-tiny"), "ours"});
  const Arguments options{"--file-bytes", "20000"};  // some forty files
  std::mt19937 random(1);
  for (const std::string& source : {std::string("ours"), golden("deepseek3-tiny")}) {
    SCOPED_TRACE(source);
    fs::remove_all(path("whole"));
    convert(Arguments{source, "whole"} + options);
    const auto expected = contents("whole");
    ASSERT_GT(expected.size(), 30u);
    for (int round = 0; round < (soak ? 40 : 1); ++round) {
      int kills = 0;
      while (!fs::exists(path("out"))) {
        const auto wait =
            std::chrono::microseconds(random() % (60000u + 10000u * static_cast<unsigned>(kills)));
        kills += start_and_kill(Arguments{"convert", source, "out"} + options, wait) ? 1 : 0;
        ASSERT_LT(kills, 5000);
      }
      const Finished last = run(Arguments{"convert", source, "out"} + options);
      EXPECT_TRUE(last.status == 0 || last.err.find("exists already") != std::string::npos) << last.err;
      EXPECT_EQ(contents("out"), expected) << "after " << kills << " kills";
      fs::remove_all(path("out"));
    }
  }
}

// A disk that is full in the middle: one line, nothing under the final name, and room later ends it well.
TEST_F(Convert, NoRoom) {
  convert({golden("deepseek3-tiny"), "ours"});
  const std::string command = program() + " convert ours out";
  const Finished full = execute("bash", {"-c", "trap '' XFSZ; ulimit -f 200; exec " + command});
  EXPECT_EQ(full.status, 1);
  EXPECT_NE(full.err.find("model.safetensors"), std::string::npos) << full.err;
  EXPECT_EQ(std::count(full.err.begin(), full.err.end(), '\n'), 1) << full.err;
  EXPECT_FALSE(fs::exists(path("out")));
  convert({"ours", "out"});
  EXPECT_EQ(inspect({"ours", "out"}), 0);
}

TEST_F(Convert, OneWriterAtATime) {
  convert({golden("qwen3moe-tiny"), "ours"});
  write(".saving-out/.conversion.json", "{}");
  const int file = ::open(path(".saving-out/.conversion.json").c_str(), O_RDWR);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  expect_refused({"convert", "ours", "out"}, {"out", "another process"});
  ::close(file);
  convert({"ours", "out"});
}

TEST_F(Convert, AnotherJobBeginsAnew) {
  convert({golden("qwen3moe-tiny"), "ours"});
  fs::create_directory(path(".saving-out"));
  write(".saving-out/.conversion.json", "{}");
  write(".saving-out/model.safetensors", "of another conversion");
  convert({"ours", "out"});
  EXPECT_EQ(inspect({"ours", "out"}), 0);
  EXPECT_FALSE(fs::exists(path(".saving-out")));
  EXPECT_FALSE(fs::exists(path("out/.conversion.json")));
}

TEST_F(Convert, InspectSaysWhatIsThere) {
  const Finished folder = run({"inspect", golden("deepseek3-tiny"), "--statistics", "--json", "x.json"});
  EXPECT_EQ(folder.status, 0) << folder.err;
  for (const char* words :
       {"Hugging Face folder", "deepseek_v3, 3 layers", "16 experts a layer, 4 a token", "232,888",
        "model.layers.{1-2}.mlp.experts.{0-15}.down_proj.weight", "non-finite"})
    EXPECT_NE(folder.out.find(words), std::string::npos) << words << "\n" << folder.out;
  const auto report = nlohmann::json::parse(read("x.json"));
  EXPECT_EQ(report["tensors"].size(), 139u);
  EXPECT_EQ(report["parameters"], 232888);
  EXPECT_EQ(report["architecture"]["experts"], 16);
  EXPECT_EQ(report["architecture"]["score"], "sigmoid");
  EXPECT_TRUE(report["tensors"][0].contains("std"));
  const Finished all = run({"inspect", golden("deepseek3-tiny"), "--all"});
  EXPECT_NE(all.out.find("model.layers.2.mlp.experts.11.up_proj.weight"), std::string::npos);
  EXPECT_NE(all.out.find("experts of a token"), std::string::npos);
  convert({golden("deepseek3-tiny"), "ours"});
  const Finished ours = run({"inspect", "ours"});
  const std::string hash = report["architecture_hash"].get<std::string>();
  EXPECT_NE(folder.out.find(hash), std::string::npos) << folder.out;
  EXPECT_NE(ours.out.find(hash), std::string::npos) << "one model in two forms\n" << ours.out;
  for (const char* words :
       {"checkpoint", "deepseek, 3 layers", "step        0", "layers.{1-2}.moe.experts.{0-15}.wi_0"})
    EXPECT_NE(ours.out.find(words), std::string::npos) << words << "\n" << ours.out;
  expect_refused({"inspect", "absent"}, {"absent", "no such file"});
  expect_refused({"inspect"}, {"one path, or two"});
  expect_refused({"inspect", "a", "b", "c"}, {"one path, or two"});
  expect_refused({"inspect", "a", "--depth"}, {"--depth"});
  expect_refused({"inspect", "a", "b", "--prove"}, {"--prove", "one path"});
  EXPECT_EQ(run({"inspect", "--help"}).status, 0);
}

TEST_F(Convert, InspectFindsDifferences) {
  auto tensors = tensors_of("qwen3moe-tiny");
  Tensor& norm = tensors.at("model.norm.weight");
  norm = norm.clone();
  norm.data<float>()[3] += 0.5f;
  const Tensor extra = tensors.at("model.norm.weight").clone();
  tensors.erase("model.layers.0.input_layernorm.weight");
  tensors["more"] = extra;
  save("qwen3moe-tiny", tensors);
  const Finished done = run({"inspect", golden("qwen3moe-tiny"), "model", "--json", "x.json"});
  EXPECT_EQ(done.status, 3);
  for (const char* words :
       {"model.norm.weight", "1 of 64", "only in A", "model.layers.0.input_layernorm.weight", "only in B",
        "more", "67 of 68 tensors equal"})
    EXPECT_NE(done.out.find(words), std::string::npos) << words << "\n" << done.out;
  const auto report = nlohmann::json::parse(read("x.json"));
  EXPECT_FALSE(report["equal"]);
  EXPECT_EQ(report["only_in_b"], nlohmann::json({"more"}));
}

}  // namespace
}  // namespace switchyard::cli_test
