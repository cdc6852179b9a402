#include "config/config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "config/config_file.h"
#include "config/declaration.h"
#include "config/meant_keys.h"
#include "config/test_support.h"
#include "config/value.h"
#include "core/testing.h"

namespace switchyard {
namespace {

// A file that is deleted after the test.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& text)
      : path_(std::filesystem::path(testing::TempDir()) / name) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Declarations, SayEverything) {
  EXPECT_GT(all_keys().size(), 500u);
  std::set<std::string> names;
  for (const KeyDeclaration& key : all_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_EQ(typed_value(key, key.default_value, "default"), key.default_value) << key.name;
  }
}

// Numbers of a list are numbers wherever they are written, in a file, too, whose values have no types.
TEST(Config, ListsOfNumbers) {
  const std::vector<double> limits{0, 7.5};
  EXPECT_EQ(config_of({"expert_gate_limits=[0, 7.5]"}).get_numbers("expert_gate_limits"), limits);
  EXPECT_EQ(config_of({"expert_gate_limits=0,7.5"}).get_numbers("expert_gate_limits"), limits);
  EXPECT_EQ(config_of({"model_name=step-3.7-flash-197b"}).get_numbers("expert_gate_limits").back(), 7);
  EXPECT_MENTIONS(problem_of({"expert_gate_limits=[0, big]"}), "expert_gate_limits", "a list of numbers");
}

TEST(Declarations, HaveARole) {
  std::set<KeyRole> roles;
  for (const KeyDeclaration& key : all_keys()) {
    ASSERT_TRUE(key.role && key.on_resume) << key.name;
    roles.insert(*key.role);
    EXPECT_FALSE(key.role == KeyRole::elsewhere && key.status == KeyStatus::active) << key.name;
    EXPECT_FALSE(key.status != KeyStatus::active && key.on_resume == OnResume::refused) << key.name;
  }
  EXPECT_EQ(roles.size(), std::size(kKeyRoles));
  // Decided where lists of keys once differed.
  for (const char* key : {"num_moe_token_chunks", "ragged_drop_policy", "eval_ragged_buffer_factor",
                          "moe_quantize_combine_bwd_method", "shard_exp_on_fsdp"})
    EXPECT_EQ(find_key(key)->role, KeyRole::strategy) << key;
  for (const char* key : {"load_balance_loss_weight", "mtp_loss_scaling_factor", "use_qk_clip",
                          "indexer_sparse_training", "routing_replay", "grad_dtype", "skip_step_interval"}) {
    EXPECT_EQ(find_key(key)->role, KeyRole::training) << key;
    EXPECT_EQ(find_key(key)->on_resume, OnResume::noted) << key;
  }
  EXPECT_EQ(find_key("shard_mode")->role, KeyRole::layout);
  EXPECT_EQ(find_key("routing_record")->role, KeyRole::output);
  EXPECT_EQ(find_key("eval_fraction")->on_resume, OnResume::noted);
  EXPECT_EQ(find_key("num_epoch")->on_resume, OnResume::free);
}

// A key of configs/inert_keys.json has the type of its default.
TEST(Declarations, OfElsewhereComeFromTheFile) {
  EXPECT_EQ(find_key("sa_block_q")->type, KeyType::integer);
  EXPECT_EQ(find_key("grpo_beta")->type, KeyType::floating);
  EXPECT_EQ(find_key("eval_data_columns")->type, KeyType::text_list);
  EXPECT_EQ(find_key("mrope_section")->type, KeyType::structure);
  EXPECT_TRUE(find_key("epsilon_high")->optional);
  EXPECT_EQ(find_key("use_grpo")->status, KeyStatus::planned);
  EXPECT_EQ(find_key("emb_dim")->status, KeyStatus::derived);
  EXPECT_EQ(find_key("emb_dim")->help, "computed from other keys: set base_emb_dim");
}

TEST(Config, DefaultsWork) {
  const Config config = config_of({});
  EXPECT_EQ(config.get_string("model_name"), "default");
  EXPECT_EQ(config.get_int("base_emb_dim"), 2048);
  EXPECT_EQ(config.get_int("ranks"), 1);
  EXPECT_EQ(config.get_string("compat"), "none");
  EXPECT_EQ(config.get_float("collective_timeout_seconds"), 300);
  EXPECT_EQ(config.mesh_axes().size(), 12u);
  EXPECT_EQ(config.axis_rules().size(), 80u);
  EXPECT_EQ(config.axis_rules()[1].axes,
            (std::vector<std::string>{"data", "stage", "fsdp", "fsdp_transpose", "expert"}));
  EXPECT_TRUE(config.notices().empty());
  EXPECT_FALSE(config.is_set_by_user("steps"));
  EXPECT_EQ(config.get_string("base_output_directory"), "./switchyard_output");
  EXPECT_TRUE(config.get_string("run_name").starts_with("default_20"));
}

TEST(Config, NamesRunsThatBeginInOneSecondApart) {
  using std::chrono::milliseconds;
  const std::chrono::system_clock::time_point second{milliseconds(1'700'000'000'000)};
  Config config = config_of({});
  config.name_run(second + milliseconds(7));
  const std::string name = config.get_string("run_name");
  EXPECT_TRUE(name.ends_with("-007")) << name;
  config.name_run(second + milliseconds(19));
  EXPECT_EQ(config.get_string("run_name"), name.substr(0, name.size() - 3) + "019");
  Config own = config_of({"run_name=mine"});
  own.name_run(second);
  EXPECT_EQ(own.get_string("run_name"), "mine");
}

TEST(Config, ReadsValuesAsUsersWriteThem) {
  const Config config = config_of(
      {"sparse_matmul=False", "packing=0", "vocab_size=32_000", "learning_rate=1e-5", "steps=1e2",
       "per_device_batch_size=0.5", "max_num_checkpoints_to_keep=None", "train_data_columns=['a','b']",
       "mlp_activations=[silu,linear]", "weight_decay_exclude=*norm*,bias", "run_name='my run'",
       "tokenizer_path=None", "cost_estimate_flops_fwd=5000000000000", "metrics_file=", "log_config=TRUE"});
  EXPECT_FALSE(config.get_bool("sparse_matmul"));
  EXPECT_FALSE(config.get_bool("packing"));
  EXPECT_TRUE(config.get_bool("log_config"));
  EXPECT_EQ(config.get_int("vocab_size"), 32000);
  EXPECT_EQ(config.get_float("learning_rate"), 1e-5);
  EXPECT_EQ(config.get_int("steps"), 100);
  EXPECT_EQ(config.get_float("per_device_batch_size"), 0.5);
  EXPECT_TRUE(config.is_none("max_num_checkpoints_to_keep"));
  EXPECT_EQ(config.get_strings("train_data_columns"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.get_strings("weight_decay_exclude"), (std::vector<std::string>{"*norm*", "bias"}));
  EXPECT_EQ(config.get_string("run_name"), "my run");
  EXPECT_TRUE(config.is_none("tokenizer_path"));
  EXPECT_EQ(config.get_string("tokenizer_path"), "");
  EXPECT_EQ(config.get_int("cost_estimate_flops_fwd"), 5000000000000);
  EXPECT_TRUE(config.is_none("metrics_file"));
  EXPECT_EQ(config.get_float("steps"), 100);
}

TEST(Config, RefusesWrongValuesInOneLine) {
  const std::vector<std::vector<std::string>> cases = {
      {"steps=ten", "steps", "an integer", "ten"},
      {"steps=", "steps", "an integer", "nothing"},
      {"steps=1.5", "steps", "an integer", "1.5"},
      {"steps=-2", "steps", "at least 0 or -1", "-2"},
      {"steps=99999999999999999999", "steps", "an integer"},
      {"vocab_size=3__2", "vocab_size", "an integer"},
      {"vocab_size=_32", "vocab_size", "an integer"},
      {"sparse_matmul=maybe", "sparse_matmul", "true or false", "maybe"},
      {"sparse_matmul=2", "sparse_matmul", "true or false"},
      {"learning_rate=nan", "learning_rate", "a number"},
      {"learning_rate=-1", "learning_rate", "at least 0", "-1"},
      {"per_device_batch_size=0", "per_device_batch_size", "above 0"},
      {"adam_b1=1.5", "adam_b1", "from 0 to 1"},
      {"dtype=float16", "dtype", "float32, bfloat16", "float16"},
      {"opt_type=adagrad", "opt_type", "adamw, adam_pax, sgd"},
      {"train_data_columns=['a'", "train_data_columns", "a list"},
      {"logical_axis_rules=[[embed]]", "logical_axis_rules", "[embed, [fsdp]]"},
      {"logical_axis_rules=embed", "logical_axis_rules", "nested lists"},
      {"logical_axis_rules=[[embed,[fsdp,fsdp]]]", "each axis once", "embed: [fsdp, fsdp]"},
      {"mesh_axes=[data,data]", "mesh_axes", "data twice"},
      {"mesh_axes=[]", "mesh_axes", "empty"},
      {"ranks=0", "ranks", "at least 1"},
      {"num_exprts=4", "unknown key num_exprts", "num_experts"},
      {"xyzzy=4", "unknown key xyzzy", "config --list"},
      {"=4", "expected key=value"},
      {"--steps=4", "unknown key --steps"},
  };
  for (const auto& parts : cases) {
    const std::string problem = problem_of({parts[0]});
    EXPECT_PRED2(mentions, problem, std::vector<std::string>(parts.begin() + 1, parts.end())) << parts[0];
  }
  EXPECT_MENTIONS(problem_of({"steps=1", "stray"}), "key=value", "stray");
}

TEST(Config, ATildeIsTheHomeFolder) {
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::setenv("HOME", "/home/me", 1);
  const Config config = config_of({"dataset_type=text", "data_path=~/texts:b~/c:~/d",
                                   "base_output_directory=~/runs", "metrics_file=a/~/b"});
  EXPECT_EQ(config.get_string("data_path"), "/home/me/texts:b~/c:/home/me/d");
  EXPECT_EQ(config.get_string("base_output_directory"), "/home/me/runs");
  EXPECT_EQ(config.get_string("metrics_file"), "a/~/b");
  ::setenv("HOME", home.c_str(), 1);
}

TEST(Config, RefusesWhatIsPlanned) {
  for (const char* argument :
       {"moba=true", "ici_sequence_parallelism=2", "dcn_diloco_parallelism=-1", "mtp_eval_target_module=1",
        "checkpoint_is_quantized=True", "dataset_type=tfds", "use_2d_fsdp_sharding=true", "quantization=int8",
        "dropout_rate=0.1", "use_grpo=1", "decoder_block=gemma"}) {
    const std::string problem = problem_of({argument});
    const std::string name = std::string(argument).substr(0, std::string(argument).find('='));
    EXPECT_MENTIONS(problem, name, "planned, not built yet");
  }
  EXPECT_EQ(problem_of({"ici_context_parallelism=1", "dcn_pipeline_parallelism=1",
                        "use_2d_fsdp_sharding=False", "use_dpo=False", "checkpoint_is_quantized=False",
                        "quantization=", "mlp_activations=['silu','linear']"}),
            "");
}

TEST(Config, PairsHaveTheirKeysFlatAndInAGroup) {
  const std::vector<std::string> pairs{"use_dpo=true", "data_path=pairs.jsonl"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = pairs;
    all.push_back(more);
    return all;
  };
  EXPECT_EQ(config_of(pairs).get_strings("train_data_columns"),
            (std::vector<std::string>{"prompt", "chosen", "rejected"}));
  EXPECT_EQ(config_of(with("dpo.dpo_beta=0.3")).get_float("dpo_beta"), 0.3);
  EXPECT_EQ(config_of(with("dpo.algo=orpo")).get_string("dpo_algo"), "orpo");
  EXPECT_TRUE(config_of(pairs).is_none("max_prompt_length"));
  EXPECT_EQ(config_of(with("dpo.max_prompt_length=7")).get_int("max_prompt_length"), 7);
  EXPECT_TRUE(notices_mention(config_of({"dpo_beta=0.3"}), {"dpo_beta has no effect", "use_dpo=false"}));
  EXPECT_TRUE(notices_mention(config_of(with("orpo_lambda=0.3")), {"orpo_lambda has no effect", "dpo_algo"}));
  EXPECT_MENTIONS(problem_of(with("algo=orpo")), "algo=orpo", "dpo_algo");
}

TEST(Config, ConversationsBringTheirOwnDefaults) {
  const Config config = config_of({"use_sft=true", "data_path=chats.jsonl"});
  EXPECT_TRUE(config.get_bool("sft_train_on_completion_only"));
  EXPECT_EQ(config.get_strings("train_data_columns").at(0), "messages");
  EXPECT_FALSE(config_of({"use_sft=true", "data_path=chats.jsonl", "sft_train_on_completion_only=false"})
                   .get_bool("sft_train_on_completion_only"));
  EXPECT_MENTIONS(problem_of({"use_sft=true"}), "use_sft=true", "data_path");
  EXPECT_MENTIONS(problem_of({"use_sft=true", "data_path=a", "use_truncation=false"}), "use_truncation");
  EXPECT_MENTIONS(problem_of({"use_sft=true", "data_path=a", "formatting_func_path=b"}),
                  "formatting_func_path=b");
  EXPECT_MENTIONS(problem_of({"eval_data_path=a"}), "eval_data_path=a", "use_sft=true");
  EXPECT_TRUE(
      notices_mention(config_of({"sft_last_answer_only=true"}), {"sft_last_answer_only", "use_sft=false"}));
}

TEST(Config, WordsOfTheReference) {
  EXPECT_EQ(config_of({"decoder_block=qwen3_5", "num_experts=4"}).get_string("decoder_block"), "qwen3_5_moe");
  EXPECT_EQ(config_of({"model_name=qwen3.5-35b-a3b", "decoder_block=qwen3_5_moe"}).get_int("num_experts"),
            256);
  EXPECT_TRUE(config_of({"decoder_block=qwen3_next", "num_experts=4"}).get_bool("use_qk_norm"));
  EXPECT_FALSE(
      config_of({"decoder_block=qwen3_next", "num_experts=4", "use_qk_norm=false"}).get_bool("use_qk_norm"));
  EXPECT_FALSE(config_of({"decoder_block=qwen2"}).get_bool("attention_output_bias"));
  EXPECT_TRUE(config_of({"attention_bias=true"}).get_bool("attention_output_bias"));
  EXPECT_EQ(config_of({"rope_type=llama3.1", "rope_use_scale=false"}).get_string("rope_type"), "default");
  EXPECT_EQ(config_of({"model_name=llama3.1-8b", "rope_use_scale=false"}).get_string("rope_type"), "default");
  EXPECT_MENTIONS(problem_of({"decoder_block=gemma2"}), "decoder_block=gemma2", "soft caps");
}

TEST(Config, CacheIn8Bits) {
  EXPECT_TRUE(config_of({"quantize_kvcache=true"}).get_bool("quantize_kvcache"));
  EXPECT_TRUE(config_of({"quantize_kvcache=true", "kv_quant_dtype=int8", "kv_quant_axis=dkv"})
                  .get_bool("quantize_kvcache"));
  EXPECT_MENTIONS(problem_of({"quantize_kvcache=true", "kv_quant_dtype=int4"}), "kv_quant_dtype=int4",
                  "planned, not built yet: expected int8");
  EXPECT_MENTIONS(problem_of({"quantize_kvcache=true", "kv_quant_axis=heads_and_dkv"}),
                  "kv_quant_axis=heads_and_dkv", "expected dkv");
  EXPECT_MENTIONS(problem_of({"quantize_kvcache=true", "kv_quant_axis="}), "kv_quant_axis", "expected dkv");
  EXPECT_MENTIONS(problem_of({"kv_quant_dtype=int5"}), "kv_quant_dtype", "expected one of int8");
  // Without it they say nothing.
  EXPECT_TRUE(notices_mention(config_of({"kv_quant_dtype=int4"}),
                              {"kv_quant_dtype has no effect with quantize_kvcache=false"}));
}

TEST(Config, ExpertsOverFsdpIsARuleBeforeAllOthers) {
  const auto first_rule = [](std::vector<std::string> arguments) {
    const std::vector<AxisRule> rules = Config::from_args(arguments).axis_rules();
    EXPECT_EQ(std::count_if(rules.begin(), rules.end(), [](const AxisRule& r) { return r.name == "exp"; }),
              1);
    return rules.front();
  };
  EXPECT_EQ(first_rule({"shard_exp_on_fsdp=true"}), (AxisRule{"exp", {"expert", "fsdp"}}));
  EXPECT_EQ(first_rule({"shard_exp_on_fsdp=true", "custom_mesh_and_rule=pure-fsdp"}),
            (AxisRule{"exp", {"fsdp"}}));
  EXPECT_EQ(first_rule({"shard_exp_on_fsdp=true", "custom_mesh_and_rule=cp-as-ep"}),
            (AxisRule{"exp", {"context", "expert", "fsdp"}}));
  EXPECT_EQ(first_rule({"shard_exp_on_fsdp=true", "custom_mesh_and_rule=shard-exp-on-fsdp"}),
            (AxisRule{"exp", {"expert", "fsdp"}}));
  EXPECT_NE(first_rule({}).name, "exp");
}

TEST(Config, PrecedenceIsCommandLineThenModelThenFileThenDefault) {
  const TemporaryFile file("config_test_own.yml",
                           "base_emb_dim: 96\nsteps: 7\nlearning_rate: 1.0e-3\nmetrics_file: null\n");
  const Config own = config_of({file.path()});
  EXPECT_EQ(own.get_int("base_emb_dim"), 96);
  EXPECT_EQ(own.get_int("steps"), 7);
  EXPECT_FALSE(own.is_set_by_user("steps"));
  EXPECT_EQ(own.axis_rules().size(), 80u);  // what the file leaves out is base.yml's
  const Config model = config_of({file.path(), "model_name=deepseek3-tiny"});
  EXPECT_EQ(model.get_int("base_emb_dim"), 64);
  EXPECT_EQ(model.get_int("steps"), 7);
  const Config command = config_of({file.path(), "model_name=deepseek3-tiny", "base_emb_dim=128", "steps=8",
                                    "override_model_config=true"});
  EXPECT_EQ(command.get_int("base_emb_dim"), 128);
  EXPECT_EQ(command.get_int("steps"), 8);
  EXPECT_TRUE(command.is_set_by_user("steps"));
}

TEST(Config, ModelKeysNeedAnOverride) {
  EXPECT_MENTIONS(problem_of({"model_name=mixtral-8x7b", "base_emb_dim=64"}), "base_emb_dim=64", "4096",
                  "models/mixtral-8x7b.yml", "override_model_config=true");
  EXPECT_EQ(problem_of({"model_name=mixtral-8x7b", "base_emb_dim=4_096"}), "");
  EXPECT_EQ(problem_of({"model_name=mixtral-8x7b", "base_emb_dim=64", "override_model_config=True"}), "");
  EXPECT_MENTIONS(problem_of({"model_name=mixtral-8x7"}), "model_name=mixtral-8x7", "mixtral-8x7b");
  for (const char* name : {"mixtrl", "mixtral"}) {
    const std::string problem = problem_of({std::string("model_name=") + name});
    EXPECT_MENTIONS(problem, "mixtral-8x7b", "mixtral-8x22b");
    EXPECT_EQ(problem.find("qwen"), std::string::npos) << problem;
  }
  EXPECT_MENTIONS(problem_of({"model_name=../base"}), "no such file");
}

TEST(Config, SaysOnceWhatIsGivenTwice) {
  const Config config = config_of({"attention=flash", "steps=3", "attention=flash", "attention=dot_product"});
  EXPECT_EQ(config.get_string("attention"), "dot_product");
  EXPECT_EQ(config.notices().size(), 1u);
  EXPECT_TRUE(notices_mention(config, {"attention", "more than once", "dot_product"}));
}

TEST(Config, NothingIsDroppedWhereSomethingMustBe) {
  const auto problem = [](const std::string& word, const std::string& more) {
    return problem_of({"decoder_block=mixtral", "num_experts=4", "num_experts_per_tok=2",
                       "moe_dropless_fallback=" + word, "sparse_matmul=false", more});
  };
  EXPECT_MENTIONS(problem("layer", "capacity_factor=1.5"), "moe_dropless_fallback=layer",
                  "expected sparse_matmul=true", "capacity_factor=1.5");
  EXPECT_EQ(problem("layer", "capacity_factor=-1"), "");
  EXPECT_MENTIONS(problem("never", "capacity_factor=-1"), "moe_dropless_fallback", "step, layer", "never");
}

TEST(Config, ListsInertKeysOnce) {
  const Config config =
      config_of({"sa_block_q=2048", "megablox=True", "upload_all_profiler_results=true", "hardware=cpu"});
  ASSERT_EQ(config.notices().size(), 1u);
  EXPECT_MENTIONS(config.notices()[0], "inert", "sa_block_q", "megablox", "upload_all_profiler_results",
                  "hardware");
}

TEST(Config, SaysWhatOtherKeysLeaveWithoutEffect) {
  const std::vector<std::string> moe{"decoder_block=mixtral", "num_experts=4", "num_experts_per_tok=2"};
  auto notices = [&](std::vector<std::string> more) {
    more.insert(more.begin(), moe.begin(), moe.end());
    return config_of(more).notices();
  };
  EXPECT_TRUE(notices({"sparse_matmul=true", "use_ring_of_experts=true"}).empty());
  EXPECT_TRUE(notices({"sparse_matmul=false", "capacity_factor=1.5", "use_ring_of_experts=false"}).empty());
  EXPECT_TRUE(notices({"ragged_buffer_factor=1.5", "moe_dropless_fallback=layer"}).empty());
  EXPECT_TRUE(notices({"moe_dropless_fallback=None"}).empty());
  EXPECT_MENTIONS(notices({"moe_dropless_fallback=step"}).at(0), "moe_dropless_fallback has no effect",
                  "ragged_buffer_factor=-1");
  EXPECT_MENTIONS(notices({"moe_log_max_load_ratio=true", "sparse_matmul=false"}).at(0),
                  "moe_log_max_load_ratio has no effect", "sparse_matmul=false");
  const auto sparse = notices({"sparse_matmul=true", "capacity_factor=1.5"});
  ASSERT_EQ(sparse.size(), 1u);
  EXPECT_MENTIONS(sparse[0], "capacity_factor has no effect", "sparse_matmul=true");
  const auto dense = notices({"sparse_matmul=false", "use_ring_of_experts=true", "num_moe_token_chunks=2"});
  ASSERT_EQ(dense.size(), 2u);
  EXPECT_MENTIONS(dense[0], "use_ring_of_experts has no effect", "sparse_matmul=false");
  EXPECT_MENTIONS(notices({"sparse_matmul=false", "ragged_drop_policy=prefix"}).at(0),
                  "ragged_drop_policy has no effect", "sparse_matmul=false");
  EXPECT_MENTIONS(notices({"sparse_matmul=false", "moe_quantize_combine_bwd_method=rowwise"}).at(0),
                  "moe_quantize_combine_bwd_method has no effect", "sparse_matmul=false");
  EXPECT_MENTIONS(config_of({"sparse_matmul=false"}).notices().at(0), "sparse_matmul has no effect",
                  "no experts");
  EXPECT_TRUE(config_of({"sparse_matmul=true"}).notices().empty());
  EXPECT_MENTIONS(config_of({"use_ring_of_experts=true"}).notices().at(0), "no experts");
  EXPECT_MENTIONS(config_of({"pipeline_schedule=gpipe"}).notices().at(0), "pipeline_schedule has no effect",
                  "no pipeline");
  EXPECT_TRUE(config_of({"pipeline_schedule=gpipe", "ici_pipeline_parallelism=2"}).notices().empty());
  EXPECT_MENTIONS(config_of({"num_pipeline_repeats=2"}).notices().at(0), "num_pipeline_repeats has no effect",
                  "no pipeline");
}

TEST(Config, SaysWhichRowsKeysCannotMake) {
  const std::string text = "dataset_type=text", path = "data_path=texts";
  EXPECT_TRUE(
      config_of({text, path, "packing=false", "use_truncation=false", "num_epoch=2"}).notices().empty());
  EXPECT_TRUE(config_of({text, path, "max_segments_per_seq=3"}).notices().empty());
  EXPECT_MENTIONS(config_of({text, path, "use_truncation=true"}).notices().at(0),
                  "use_truncation has no effect", "packing=true");
  EXPECT_MENTIONS(config_of({text, path, "packing=false", "max_segments_per_seq=3"}).notices().at(0),
                  "max_segments_per_seq has no effect", "packing=false");
  EXPECT_MENTIONS(config_of({"dataset_type=synthetic", "num_epoch=1"}).notices().at(0),
                  "num_epoch has no effect", "dataset_type=synthetic");
  EXPECT_MENTIONS(problem_of({text, path, "data_mixture_weights=1,2", "num_epoch=1"}), "num_epoch=1",
                  "data_mixture_weights");
  EXPECT_MENTIONS(problem_of({text, path, "num_epoch=0"}), "num_epoch", "1");
}

TEST(Config, ExpertShardAttentionOptionNamesAMeshFile) {
  EXPECT_EQ(config_of({"expert_shard_attention_option=tp"}).get_string("custom_mesh_and_rule"), "ep-tp");
  const Config context = config_of({"expert_shard_attention_option=context"});
  EXPECT_EQ(context.mesh_axes(), (std::vector<std::string>{"data", "stage", "fsdp", "expert"}));
  EXPECT_EQ(problem_of({"expert_shard_attention_option=tp", "custom_mesh_and_rule=ep-tp"}), "");
  EXPECT_MENTIONS(problem_of({"expert_shard_attention_option=tp", "custom_mesh_and_rule=pure-fsdp"}), "ep-tp",
                  "pure-fsdp");
}

TEST(Config, FindsOursUnderAForeignPath) {
  const Config config = config_of({"src/maxtext/configs/base.yml", "steps=1"});
  EXPECT_TRUE(notices_mention(config, {"src/maxtext/configs/base.yml", "is used"}));
  EXPECT_MENTIONS(problem_of({"no/such.yml"}), "there is no file no/such.yml");
  EXPECT_MENTIONS(problem_of({testing::TempDir()}), "there is no file", "it is a folder");
}

TEST(Config, RefusesAMistypedPathOfOurs) {
  for (const char* path :
       {"configs/exmaples/small-moe.yml", "src/maxtext/config/base.yml", "configs/model/mixtral-8x7b.yml"})
    EXPECT_MENTIONS(problem_of({path}), std::string("there is no file ") + path, "the nearest is ");
  for (const char* path : {"small-moe.yml", "/nowhere/base.yml", "maxtext/configs/models/mixtral-8x7b.yml"})
    EXPECT_TRUE(notices_mention(config_of({path}), {"there is no file", path, "is used"})) << path;
}

TEST(Config, WordsOfOtherProgramsNameKeys) {
  EXPECT_MENTIONS(problem_of({"lr=1"}), "unknown key lr", "learning_rate");
  EXPECT_MENTIONS(problem_of({"temperature=1"}), "decode_sampling_temperature");
  EXPECT_MENTIONS(problem_of({"batch_size=1"}), "per_device_batch_size");
  EXPECT_MENTIONS(problem_of({"--epochs", "1"}), "got --epochs", "num_epoch");
  EXPECT_MENTIONS(problem_of({"--epochs=1"}), "unknown key --epochs", "num_epoch");
  EXPECT_EQ(setting_meant(std::vector<std::string>{"--warmup-ratio", "0.1"}, 0), "warmup_steps_fraction=0.1");
  EXPECT_EQ(setting_meant(std::vector<std::string>{"--epochs", "1"}, 0), "");  // two keys: which is not known
  for (const std::string_view meant : all_meant_keys()) {
    EXPECT_NE(find_key(meant.substr(0, meant.find(','))), nullptr) << meant;
  }
  EXPECT_EQ(setting_meant(std::vector<std::string>{"--steps", "dtype=float32"}, 0), "steps=VALUE");
}

TEST(Config, SpacesAroundAKeyDoNotCount) {
  EXPECT_EQ(config_of({"steps =5"}).get_int("steps"), 5);
  EXPECT_EQ(config_of({" steps = 5"}).get_int("steps"), 5);
  EXPECT_EQ(config_of({"prompt = a"}).get_string("prompt"), " a");
  EXPECT_MENTIONS(problem_of({"steps=1", " =5"}), "expected key=value");
}

TEST(Config, DataSaysItsKind) {
  EXPECT_EQ(config_of({"data_path=texts"}).get_string("dataset_type"), "text");
  EXPECT_EQ(config_of({}).get_string("dataset_type"), "synthetic");
  EXPECT_MENTIONS(problem_of({"data_path=texts", "dataset_type=synthetic"}), "dataset_type=synthetic");
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "config_data_kind";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "dataset.json") << "{}";
  EXPECT_EQ(config_of({"data_path=" + folder.string()}).get_string("dataset_type"), "text");
  std::ofstream(folder / "train-00001.tokens") << "";
  EXPECT_EQ(config_of({"data_path=" + folder.string()}).get_string("dataset_type"), "tokenized");
  std::ofstream(folder / "own.yml") << "data_path: texts\n";
  EXPECT_EQ(config_of({(folder / "own.yml").string()}).get_string("dataset_type"), "text");
  std::filesystem::remove_all(folder);
}

TEST(Config, RefusesWrongFilesInOneLine) {
  const std::vector<std::vector<std::string>> cases = {
      {"steps: [1", "not valid YAML", "line"},  {"- steps", "key: value"},
      {"steps: 1\nsteps: 2", "steps twice"},    {"stepz: 1", "unknown key stepz", "steps"},
      {"steps: {a: 1}", "steps", "an integer"}, {"[1]: 2", "a key must be a word"},
  };
  for (const auto& parts : cases) {
    const TemporaryFile file("config_test_wrong.yml", parts[0]);
    const std::string problem = problem_of({file.path()});
    EXPECT_PRED2(mentions, problem, std::vector<std::string>(parts.begin() + 1, parts.end())) << parts[0];
  }
  const TemporaryFile empty("config_test_empty.yml", "");
  EXPECT_EQ(problem_of({empty.path()}), "");
}

TEST(Config, StopsAtTreesThatAliasesBlowUp) {
  std::string text = "a: &a [1,1,1,1,1,1,1,1,1,1]\n";
  for (char name = 'b'; name < 'k'; ++name) {
    text += std::string(1, name) + ": &" + name + " [";
    for (int i = 0; i < 10; ++i) text += std::string(i == 0 ? "" : ",") + "*" + static_cast<char>(name - 1);
    text += "]\n";
  }
  EXPECT_THROW(parse_config_text(text, "bomb"), Error);
}

TEST(Config, NamesOutputs) {
  const Config config =
      config_of({"base_output_directory=gs://bucket/runs", "run_name=", "model_name=deepseek3-tiny"});
  EXPECT_EQ(config.get_string("base_output_directory"), "./bucket/runs");
  EXPECT_TRUE(notices_mention(config, {"gs://bucket/runs", "./bucket/runs"}));
  EXPECT_TRUE(config.get_string("run_name").starts_with("deepseek3-tiny_20"));
}

TEST(Config, ConfigFolderCanBeElsewhere) {
  ASSERT_EQ(setenv("SWITCHYARD_CONFIG_DIR", "/nonexistent", 1), 0);
  EXPECT_MENTIONS(problem_of({}), "base.yml", "SWITCHYARD_CONFIG_DIR");
  unsetenv("SWITCHYARD_CONFIG_DIR");
}

TEST(Config, ChecksWhatFitsTogether) {
  const std::vector<std::vector<std::string>> cases = {
      {"decoder_block=mixtral", "num_experts=2", "num_experts_per_tok=4"},
      {"decoder_block=llama2", "num_experts=2"},
      {"decoder_block=mixtral", "num_experts=2", "base_mlp_dim=64", "base_moe_mlp_dim=32"},
      {"base_num_query_heads=6", "base_num_kv_heads=4"},
      {"base_num_decoder_layers=2", "first_num_dense_layers=3"},
      {"decoder_block=deepseek", "num_experts=6", "n_routing_groups=4", "topk_routing_group=2"},
      {"decoder_block=deepseek", "num_experts=8", "n_routing_groups=4", "topk_routing_group=5"},
      {"decoder_block=deepseek", "num_experts=8", "n_routing_groups=4"},
      {"decoder_block=deepseek", "num_experts=8", "num_experts_per_tok=5", "n_routing_groups=4",
       "topk_routing_group=2"},
      {"head_dim=7"},
      {"attention_type=mla", "kv_lora_rank=0"},
      {"routed_bias_update_rate=0.1"},
  };
  for (const auto& arguments : cases) EXPECT_NE(problem_of(arguments), "") << arguments.back();
  EXPECT_EQ(problem_of({"decoder_block=mixtral", "num_experts=2", "base_moe_mlp_dim=32"}), "");
  EXPECT_EQ(problem_of({"decoder_block=deepseek", "num_experts=8", "num_experts_per_tok=4",
                        "n_routing_groups=4", "topk_routing_group=2"}),
            "");
}

TEST(Config, RulesMergeByName) {
  const Config llama = config_of({"model_name=llama2-7b"});
  EXPECT_EQ(llama.axis_rules().size(), 80u);
  EXPECT_EQ(llama.axis_rules().back(), (AxisRule{"norm", {"fsdp"}}));
  const Config replaced =
      config_of({"logical_axis_rules=[[embed, fsdp], [mlp, null]]", "override_logical_axis_rules=true"});
  EXPECT_EQ(replaced.axis_rules(),
            (std::vector<AxisRule>{{"embed", {"fsdp"}},
                                   {"embed_router", {"fsdp"}},  // follow it where they have no rules
                                   {"embed_attn", {"fsdp"}},
                                   {"mlp", {}}}));
}

TEST(Config, Llama3ScalingHasItsOwnConstants) {
  // As in the reference, which has no such key in its files for these models.
  const Config named = config_of({"model_name=llama3.1-8b"}), later = config_of({"model_name=llama3.3-70b"});
  EXPECT_EQ(named.get_string("rope_type"), "llama3.1");
  EXPECT_EQ(named.get_float("rope_factor"), 8);
  EXPECT_EQ(config_of({"model_name=llama3.1-8b", "rope_type=default"}).get_string("rope_type"), "default");
  EXPECT_EQ(later.get_string("rope_type"), "default");
  const Config plain = config_of({"rope_type=llama3.1"});
  EXPECT_EQ(plain.get_float("rope_factor"), 8);
  EXPECT_EQ(plain.get_int("original_max_position_embeddings"), 8192);
  const Config given =
      config_of({"rope_type=llama3.1", "rope_factor=32", "original_max_position_embeddings=64"});
  EXPECT_EQ(given.get_float("rope_factor"), 32);
  EXPECT_EQ(given.get_int("original_max_position_embeddings"), 64);
  EXPECT_EQ(config_of({}).get_float("rope_factor"), 40);
}

TEST(Config, SetIsTypedAndChecked) {
  Config config = config_of({});
  config.set("per_device_batch_size", 0.25, "case batch");
  EXPECT_EQ(config.get_float("per_device_batch_size"), 0.25);
  EXPECT_FALSE(config.is_set_by_user("per_device_batch_size"));
  EXPECT_THROW(config.set("steps", "many", "test"), Error);
  EXPECT_NE(config.describe().find("0.25  (case batch)"), std::string::npos);
  EXPECT_EQ(config.resolved()["per_device_batch_size"], 0.25);
  EXPECT_EQ(config.resolved().size(), all_keys().size());
}

TEST(ConfigDeathTest, WrongKeyOrTypeIsABug) {
  const Config config = config_of({});
  expect_broken_check([&] { config.get_int("no_such_key"); }, "no_such_key");
  expect_broken_check([&] { config.get_int("learning_rate"); }, "no integer");
  expect_broken_check([&] { config.get_bool("steps"); }, "no boolean");
  expect_broken_check([&] { config.get_string("steps"); }, "no text");
  expect_broken_check([&] { config.get_strings("run_name"); }, "no list");
}

TEST(Nearest, FindsTyposOnly) {
  EXPECT_EQ(nearest_key("num_expert_per_tok"), "num_experts_per_tok");
  EXPECT_EQ(nearest_key("ici_expert_paralelism"), "ici_expert_parallelism");
  EXPECT_EQ(nearest_key("zzzzzz"), "");
  EXPECT_EQ(nearest_key(std::string(1000, 'a')), "");
}

}  // namespace
}  // namespace switchyard
