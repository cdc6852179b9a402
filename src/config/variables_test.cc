// Tests where values come from beside their own text: variables in files and on the command line, keys of the
// environment, and YAML's ways to say a thing once.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "config/test_support.h"

namespace switchyard {
namespace {

// A variable of the environment, for as long as it lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

class ConfigText : public ::testing::Test {
 protected:
  ConfigText() : path_(std::filesystem::path(testing::TempDir()) / "variables.yml") {}
  ~ConfigText() override { std::filesystem::remove(path_); }
  std::vector<std::string> with(const std::string& text, const std::vector<std::string>& more = {}) const {
    std::ofstream(path_) << text;
    std::vector<std::string> arguments{path_.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Config config(const std::string& text, const std::vector<std::string>& more = {}) const {
    return config_of(with(text, more));
  }
  std::string problem(const std::string& text, const std::vector<std::string>& more = {}) const {
    return problem_of(with(text, more));
  }

  const std::filesystem::path path_;
};

TEST_F(ConfigText, VariablesAreFilledIn) {
  const Variable job("SWITCHYARD_TEST_JOB", "j7"), list("SWITCHYARD_TEST_LIST", "[data, fsdp]");
  const Config c = config(
      "run_name: ${oc.env:SWITCHYARD_TEST_JOB}-a\n"
      "base_output_directory: ${oc.env:SWITCHYARD_TEST_NONE,/runs}/${model_name}/${steps}\n"
      "metrics_file: '${oc.env:SWITCHYARD_TEST_NONE, \"${run_name} b\"}'\n"
      "eval_interval: ${steps}\n"
      "train_data_columns: ['${run_name}', b]\n"
      "decode_logit_bias: [['${steps}', 1.5]]\n"
      "mesh_axes: ${oc.env:SWITCHYARD_TEST_LIST}\n"
      "weight_decay_exclude: ${train_data_columns}\n"
      "tokenizer_path: \\${steps}/$x\\\\${steps}\n"
      "max_num_checkpoints_to_keep: ${oc.env:SWITCHYARD_TEST_NONE,null}\n"
      "steps: 5\n",
      {"steps=9"});
  EXPECT_EQ(c.get_string("run_name"), "j7-a");
  EXPECT_EQ(c.get_string("base_output_directory"), "/runs/default/9");  // the command line counts most
  EXPECT_EQ(c.get_string("metrics_file"), "j7-a b");
  EXPECT_EQ(c.get_int("eval_interval"), 9);
  EXPECT_EQ(c.get_strings("train_data_columns"), (std::vector<std::string>{"j7-a", "b"}));
  EXPECT_EQ(c.get_numbers_by_id("decode_logit_bias").at(0), (std::pair<std::int64_t, double>{9, 1.5}));
  EXPECT_EQ(c.mesh_axes(), (std::vector<std::string>{"data", "fsdp"}));
  EXPECT_EQ(c.get_strings("weight_decay_exclude"), (std::vector<std::string>{"j7-a", "b"}));
  EXPECT_EQ(c.get_string("tokenizer_path"), "${steps}/$x\\9");
  EXPECT_TRUE(c.is_none("max_num_checkpoints_to_keep"));
  EXPECT_MENTIONS(c.describe(true), "eval_interval", path_.string());
}

TEST_F(ConfigText, VariablesOfTheCommandLine) {
  const Variable job("SWITCHYARD_TEST_JOB", "[INST] j7");
  const Config c =
      config_of({"run_name=${model_name}-${steps}", "steps=3", "prompt=${oc.env:SWITCHYARD_TEST_JOB}: \\${x}",
                 "model_name=${oc.env:SWITCHYARD_TEST_NONE,mixtral-8x7b}"});
  EXPECT_EQ(c.get_string("run_name"), "mixtral-8x7b-3");
  EXPECT_EQ(c.get_string("prompt"), "[INST] j7: ${x}");
  EXPECT_EQ(c.get_int("base_emb_dim"), 4096);
}

TEST_F(ConfigText, OtherVariablesAreRefusedForEveryKey) {
  const Variable base("SWITCHYARD_TEST_BASE", "x");
  EXPECT_MENTIONS(problem("base_output_directory: ${SWITCHYARD_TEST_BASE}/runs"), "base_output_directory",
                  "${SWITCHYARD_TEST_BASE}", "${oc.env:SWITCHYARD_TEST_BASE}", path_.string());
  EXPECT_MENTIONS(problem("run_name: ${oc.env:SWITCHYARD_TEST_NONE}-a"), "run_name",
                  "no SWITCHYARD_TEST_NONE");
  EXPECT_MENTIONS(problem_of({"run_name=${JOB}"}), "run_name", "${JOB}", "command line");
  EXPECT_MENTIONS(problem("run_name: ${run_nam}"), "run_name", "nearest known key is run_name");
  EXPECT_MENTIONS(problem("run_name: ${now:%Y}"), "run_name", "${now:%Y}");
  EXPECT_MENTIONS(problem("run_name: a${steps"), "run_name", "no end");
  EXPECT_MENTIONS(problem("run_name: a-${tokenizer_path}\ntokenizer_path: ${run_name}"), "lead back",
                  "run_name");
  for (const char* line : {"steps: ${X}", "packing: ${X}", "learning_rate: ${X}", "mesh_axes: ['${X}']",
                           "logical_axis_rules: [[embed, ['${X}']]]", "prompt: ${X}", "sa_block_q: ${X}",
                           "dtype: ${X}", "data_path: a:${X}", "model_name: ${X}", "base_config: ${X}"}) {
    const std::string text = line;
    EXPECT_MENTIONS(problem(text), text.substr(0, text.find(':')), "${X}");
  }
}

TEST_F(ConfigText, EveryDocumentMapAndTagCounts) {
  EXPECT_EQ(config("---\nsteps: 3\n---\n").get_int("steps"), 3);
  EXPECT_MENTIONS(problem("steps: 3\n---\nrun_name: b\n"), path_.string(), "one document", "got 2");
  EXPECT_MENTIONS(problem("run_name: !env JOB"), "!env", "run_name");
  EXPECT_EQ(config("steps: !!int 3").get_int("steps"), 3);
  EXPECT_EQ(
      config("train_data_columns: &c [a, b]\nweight_decay_exclude: *c").get_strings("weight_decay_exclude"),
      (std::vector<std::string>{"a", "b"}));
  const Config merged = config("<<: {steps: 4, eval_interval: 6}\nsteps: 3\n");
  EXPECT_EQ(merged.get_int("steps"), 3);
  EXPECT_EQ(merged.get_int("eval_interval"), 6);
  EXPECT_EQ(config("<<: [{steps: 4}, {steps: 5, eval_interval: 7}]").get_int("steps"), 4);
  EXPECT_MENTIONS(problem("<<: 4"), "<<", path_.string());
  EXPECT_MENTIONS(problem("decode_logit_bias: {a: 1, a: 2}"), "a twice", "decode_logit_bias");
  EXPECT_MENTIONS(problem("weight_decay_exclude:\n\t- norm"), path_.string());  // a tab is no indentation
}

TEST_F(ConfigText, RulesForNoDimAreTold) {
  EXPECT_TRUE(
      notices_mention(config("logical_axis_rules: [[embd, [fsdp]]]"), {"embd", "embed", path_.string()}));
  EXPECT_TRUE(config("logical_axis_rules: [[embed, [fsdp]]]").notices().empty());
}

TEST_F(ConfigText, KeysOfTheEnvironment) {
  const Variable steps("M_STEPS", "77"), other("M_PATHS_OF_ANOTHER_PROGRAM", "1"), rules("M_PROMPT", "a, [b");
  const Config c = config("steps: 5", {"run_name=a"});
  EXPECT_EQ(c.get_int("steps"), 77);
  EXPECT_TRUE(c.is_set_by_user("steps"));
  EXPECT_EQ(c.get_string("prompt"), "a, [b");
  EXPECT_MENTIONS(c.describe(true), "steps", "77  (M_STEPS)");
  EXPECT_TRUE(c.notices().empty());
  EXPECT_MENTIONS(problem("", {"steps=5"}), "steps", "twice", "M_STEPS=77", "steps=5", "command line");
  {
    const Variable wrong("M_DTYPE", "float31");
    EXPECT_MENTIONS(problem_of({}), "dtype", "float31", "M_DTYPE");
  }
  {
    const Variable near("M_STEPPS", "1"), small("M_run_name", "x");
    EXPECT_TRUE(notices_mention(config_of({}), {"M_STEPPS", "steps", "M_STEPS"}));
    EXPECT_TRUE(notices_mention(config_of({}), {"M_run_name", "M_RUN_NAME"}));
  }
  EXPECT_EQ(Config::from_map({{"steps", 4}}, {}).get_int("steps"), 4);
  EXPECT_EQ(Config::from_map_and_environment({{"steps", 4}}, {}).get_int("steps"), 77);
}

}  // namespace
}  // namespace switchyard
