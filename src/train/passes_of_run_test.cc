// Tests whole runs with a cap on a rank's rows: further passes change no result, they are reported, and
// evaluations have the right cap.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "train/run.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Keys = std::vector<std::string>;

class Lines : public RunObserver {
 public:
  void line(const std::string& text) override { all += text + "\n"; }
  void progress(std::int64_t, const std::string&) override {}
  std::string all;
};

struct RunFiles {
  std::vector<json> metrics;  // a line a step
  json summary;
  std::string text;
};

class PassesOfRuns : public ::testing::Test {
 protected:
  PassesOfRuns() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~PassesOfRuns() override { fs::remove_all(folder_); }

  RunFiles run(const Keys& more) {
    Keys keys{"decoder_block=mixtral",
              "base_emb_dim=32",
              "base_num_query_heads=4",
              "base_num_kv_heads=2",
              "head_dim=16",
              "base_mlp_dim=32",
              "num_experts=8",
              "num_experts_per_tok=2",
              "base_num_decoder_layers=3",
              "vocab_size=257",
              "max_target_length=32",
              "per_device_batch_size=2",
              "steps=3",
              "dtype=float32",
              "dataset_type=synthetic",
              "enable_tensorboard=false",
              "load_balance_loss_weight=0.01",
              "run_name=run",
              "base_output_directory=" + folder_};
    keys.insert(keys.end(), more.begin(), more.end());
    fs::remove_all(folder_ + "/run");
    Lines lines;
    RunFiles result;
    const RunReport report = run_training(Config::from_args(keys), *one_process(), lines);
    result.text = lines.all;
    for (const std::string& line : report.lines) result.text += line + "\n";
    std::ifstream metrics(report.folder + "/metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) result.metrics.push_back(json::parse(line));
    std::ifstream(report.folder + "/summary.json") >> result.summary;
    return result;
  }
  std::string text_file() {
    std::ofstream file(folder_ + "/text.txt");
    for (int i = 0; i < 3000; ++i) file << "Line " << i * i % 997 << " of a text.\n";
    return folder_ + "/text.txt";
  }

 private:
  std::string folder_ = (fs::path(::testing::TempDir()) / "switchyard_passes.XXXXXX").string();
};

const std::vector<Keys>& layouts() {
  static const std::vector<Keys> all{
      {"ranks=4", "ici_fsdp_parallelism=1", "ici_expert_parallelism=4"},
      {"ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2", "use_ring_of_experts=true"},
      {"ranks=4", "ici_expert_parallelism=2", "ici_pipeline_parallelism=2", "ici_fsdp_parallelism=1",
       "remat_policy=minimal"}};
  return all;
}

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(PassesOfRuns, TrainAsWithoutACap) {
  const Keys log{"log_required_ragged_buffer_factor=true", "moe_log_max_load_ratio=true"};
  for (const Keys& layout : layouts()) {
    const RunFiles want = run(layout + log);
    for (const char* word : {"layer", "step"}) {
      const RunFiles got =
          run(layout + log + Keys{"ragged_buffer_factor=0.75", std::string("moe_dropless_fallback=") + word});
      ASSERT_EQ(got.metrics.size(), 3u);
      std::int64_t most = 0;
      for (std::size_t s = 0; s < 3; ++s) {
        const json &line = got.metrics[s], &other = want.metrics[s];
        for (const char* key : {"learning/loss", "learning/moe_lb_loss", "learning/raw_grad_norm"}) {
          const double expected = other[key];
          EXPECT_NEAR(line[key].get<double>(), expected, 2e-5 * expected) << key << " of step " << s;
        }
        double sum = 0, largest = 0;
        for (int l = 0; l < 3; ++l) {
          const std::string p = "moe/layer_" + std::to_string(l) + "/";
          EXPECT_EQ(line[p + "rows_dropped"], 0);
          EXPECT_FALSE(other.contains(p + "passes"));
          const double factor = line[p + "required_ragged_buffer_factor"];
          EXPECT_EQ(factor, other[p + "required_ragged_buffer_factor"].get<double>());
          EXPECT_GE(line[p + "passes"].get<double>(), factor / 0.75);
          EXPECT_LT(line[p + "passes"].get<double>(), factor / 0.75 + 1.1);
          most = std::max(most, line[p + "passes"].get<std::int64_t>());
          largest = std::max(largest, factor);
          sum += factor;
        }
        EXPECT_EQ(line["learning/moe_max_load_ratio"], largest);
        EXPECT_NEAR(line["learning/moe_max_load_ratio_mean"].get<double>(), sum / 3, 1e-12);
      }
      EXPECT_EQ(got.summary["passes"], json({{"layer_runs", layout.size() == 5 ? 18 : 9},
                                             {"overflowed", layout.size() == 5 ? 18 : 9},
                                             {"most", most}}));
      EXPECT_EQ(got.summary["fallbacks"].back()["op"], "moe");
      EXPECT_NE(got.text.find("runs of MoE layers had rows over the cap"), std::string::npos) << got.text;
      EXPECT_NE(got.text.find(" passes  "), std::string::npos) << got.text;
    }
    EXPECT_FALSE(want.summary.contains("passes"));
  }
}

// The least factor is one: with it nothing is dropped, with a little less something is.
TEST_F(PassesOfRuns, TheRequiredFactorDropsNothing) {
  for (const Keys& layout : layouts()) {
    const Keys keys = layout + Keys{"steps=1", "log_required_ragged_buffer_factor=true"};
    const RunFiles free = run(keys);
    double largest = 0;
    for (int l = 0; l < 3; ++l)
      largest = std::max(
          largest,
          free.metrics[0]["moe/layer_" + std::to_string(l) + "/required_ragged_buffer_factor"].get<double>());
    const auto dropped = [&](double factor) {
      const RunFiles got = run(keys + Keys{"ragged_buffer_factor=" + std::to_string(factor)});
      double sum = 0;
      for (int l = 0; l < 3; ++l)
        sum += got.metrics[0]["moe/layer_" + std::to_string(l) + "/rows_dropped"].get<double>();
      return sum;
    };
    EXPECT_EQ(dropped(largest + 1e-5), 0);
    EXPECT_GT(dropped(largest - 1e-3), 0);
  }
}

TEST_F(PassesOfRuns, EvaluationsHaveACapOfTheirOwn) {
  const Keys common{"ranks=4",
                    "ici_fsdp_parallelism=1",
                    "ici_expert_parallelism=4",
                    "dataset_type=text",
                    "tokenizer_type=byte",
                    "data_path=" + text_file(),
                    "steps=1",
                    "eval_interval=1",
                    "eval_steps=1",
                    "learning_rate=1e-30"};
  const auto loss = [&](const Keys& more) {
    return run(common + more).metrics.at(0)["eval/loss"].get<double>();
  };
  const double dropless = loss({}), capped = loss({"eval_ragged_buffer_factor=0.5"});
  EXPECT_GT(std::abs(capped - dropless), 1e-7);
  EXPECT_EQ(loss({"ragged_buffer_factor=0.5"}), dropless);
  EXPECT_EQ(loss({"ragged_buffer_factor=0.7", "eval_ragged_buffer_factor=0.5"}), capped);
  // Under the same cap, and yet whole.
  EXPECT_NEAR(loss({"ragged_buffer_factor=0.5", "moe_dropless_fallback=layer"}), dropless, 1e-6);
  EXPECT_NEAR(loss({"eval_ragged_buffer_factor=0.5", "moe_dropless_fallback=layer"}), dropless, 1e-6);
  const Keys compat{"compat=maxtext"};
  const double of_training = loss(compat + Keys{"ragged_buffer_factor=0.5"});
  EXPECT_EQ(of_training, loss(compat + Keys{"eval_ragged_buffer_factor=0.5"}));
  EXPECT_GT(std::abs(of_training - loss(compat)), 1e-7);
  EXPECT_EQ(loss(compat + Keys{"ragged_buffer_factor=0.5", "eval_ragged_buffer_factor=8"}), loss(compat));
}

}  // namespace
}  // namespace switchyard
