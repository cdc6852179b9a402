// Checkpoints of whole runs: what goes on after whatever ended them.
#include <csignal>
#include <cstring>
#include <map>
#include <random>

#include "checkpoint/checkpoint_folder.h"
#include "child.h"
#include "parallel/comm/stop_signal.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool soaks() {
  return std::getenv("SWITCHYARD_SOAK") != nullptr;
}

class Checkpoints : public ProgramTest {
 protected:
  static Arguments command(const std::string& run, const Arguments& more = {}) {
    return Arguments{"train"} + tiny_model() +
           Arguments{"enable_checkpointing=true", "checkpoint_period=4", "steps=10",
                     "enable_tensorboard=false", "run_name=" + run} +
           more;
  }
  Finished train_as(const std::string& name, const Arguments& more = {}) const {
    const Finished finished = run(command(name, more));
    EXPECT_EQ(finished.status, 0) << finished.err;
    return finished;
  }
  std::string checkpoint(const std::string& name, std::int64_t step) const {
    return path("out/" + name + "/checkpoints/" + std::to_string(step));
  }
  void forget(const std::string& name, std::int64_t after) const {
    for (const FoundCheckpoint& found : find_checkpoints(path("out/" + name + "/checkpoints")))
      if (found.step > after) fs::remove_all(found.path);
  }

  // The lines of metrics.jsonl without what depends on the clock.
  std::vector<json> steps_of(const std::string& name) const {
    std::vector<json> lines;
    std::ifstream file(path("out/" + name + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      json step = json::parse(line);
      for (auto item = step.begin(); item != step.end();)
        item = item.key().starts_with("perf/") ? step.erase(item) : std::next(item);
      lines.push_back(std::move(step));
    }
    return lines;
  }

  // Every tensor of two checkpoints has the same bytes, whichever chunks they were written in.
  static void expect_same(const std::string& a, const std::string& b) {
    const CheckpointFolder left = CheckpointFolder::open(a), right = CheckpointFolder::open(b);
    ASSERT_EQ(left.manifest().tensors.size(), right.manifest().tensors.size());
    for (const ManifestTensor& tensor : left.manifest().tensors) {
      const Tensor x = left.read(tensor.name), y = right.read(tensor.name);
      ASSERT_EQ(x.shape(), y.shape());
      ASSERT_EQ(x.dtype(), y.dtype());
      EXPECT_EQ(std::memcmp(x.raw(), y.raw(), x.bytes()), 0) << tensor.name << " of " << a << " and " << b;
    }
  }

  // Exit status, or 128 + signal.
  static int wait_for(pid_t child) {
    int state = 0;
    ::waitpid(child, &state, 0);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }
  void await_step(const std::string& name, std::size_t steps) const {
    for (int tries = 0; tries < 6000 && steps_written(name) < steps; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_GE(steps_written(name), steps);
  }
  std::size_t steps_written(const std::string& name) const {
    const std::string text = read("out/" + name + "/metrics.jsonl");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

const Arguments kBias{"decoder_block=deepseek",
                      "routed_score_func=sigmoid",
                      "routed_bias=true",
                      "routed_bias_update_rate=0.01",
                      "load_balance_loss_weight=0.01",
                      "shared_experts=1",
                      "first_num_dense_layers=1",
                      "attention_type=mla",
                      "kv_lora_rank=8",
                      "qk_nope_head_dim=8",
                      "qk_rope_head_dim=4",
                      "v_head_dim=8",
                      "base_moe_mlp_dim=16"};

TEST_F(Checkpoints, ARunGoesOnBitForBit) {
  const std::vector<Arguments> models{
      {},
      kBias,
      {"opt_type=muon"},
      {"weight_dtype=bfloat16", "mu_dtype=bfloat16", "async_checkpointing=false"}};
  for (std::size_t i = 0; i < models.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string whole = "whole" + std::to_string(i), parts = "parts" + std::to_string(i);
    train_as(whole, models[i]);
    // In three parts; the schedule is that of the whole.
    const Arguments schedule{"learning_rate_schedule_steps=10"};
    train_as(parts, models[i] + schedule + Arguments{"steps=3"});
    train_as(parts, models[i] + schedule + Arguments{"steps=7", "save_checkpoint_on_completion=false"});
    forget(parts, 4);
    const Finished last = train_as(parts, models[i] + schedule);
    EXPECT_NE(last.out.find("going on after step 4"), std::string::npos) << last.out;
    expect_same(checkpoint(whole, 10), checkpoint(parts, 10));
    EXPECT_EQ(steps_of(whole), steps_of(parts));
    const json summary = json::parse(read("out/" + parts + "/summary.json"));
    EXPECT_EQ(summary["config"]["steps"], 10);
    EXPECT_TRUE(summary["phases"].contains("checkpoint"));
  }
}

TEST_F(Checkpoints, AreWrittenWhenTheKeysSay) {
  const auto steps = [&](const std::string& name) {
    std::vector<std::int64_t> found;
    for (const auto& each : find_checkpoints(path("out/" + name + "/checkpoints")))
      found.push_back(each.step);
    return found;
  };
  using Steps = std::vector<std::int64_t>;
  train_as("usual");
  EXPECT_EQ(steps("usual"), (Steps{10, 8, 4, 0}));
  train_as("few", {"save_checkpoint_on_start=false", "save_checkpoint_on_completion=false"});
  EXPECT_EQ(steps("few"), (Steps{8, 4}));
  train_as("newest", {"max_num_checkpoints_to_keep=2"});
  EXPECT_EQ(steps("newest"), (Steps{10, 8}));
  train_as("none", {"enable_checkpointing=false"});
  EXPECT_FALSE(fs::exists(path("out/none/checkpoints")));
  const Finished again = train_as("usual");  // nothing is left to do
  EXPECT_NE(again.out.find("has trained 10 steps, steps=10 asks for no more"), std::string::npos)
      << again.out;
  EXPECT_EQ(steps_of("usual").size(), 10u);
}

TEST_F(Checkpoints, SignalsSaveAndEnd) {
  const Arguments endless{"steps=1000000", "learning_rate_schedule_steps=100", "checkpoint_period=1000000"};
  for (const int signal : kStopSignals) {
    const std::string name = "signal" + std::to_string(signal);
    const pid_t child = start(command(name, endless + Arguments{"ranks=2"}));
    await_step(name, 3);
    ::kill(child, signal);
    EXPECT_EQ(wait_for(child), 75);
    const auto found = find_checkpoints(path("out/" + name + "/checkpoints"));
    ASSERT_EQ(found.size(), 2u);  // the start, and where it stopped
    EXPECT_EQ(found[0].step, static_cast<std::int64_t>(steps_of(name).size()));
    CheckpointFolder::open(found[0].path).prove();
    const std::string all = "all" + std::to_string(signal),
                      steps = "steps=" + std::to_string(found[0].step + 2);
    train_as(name, {"ranks=2", "learning_rate_schedule_steps=100", steps});
    train_as(all, {"ranks=2", "learning_rate_schedule_steps=100", steps});
    expect_same(checkpoint(name, found[0].step + 2), checkpoint(all, found[0].step + 2));
    EXPECT_EQ(steps_of(name), steps_of(all));
  }
}

// What a link names is never removed or written through.
TEST_F(Checkpoints, PruningRemovesALinkItself) {
  train_as("linked", {"steps=4"});
  const std::string folder = path("out/linked/checkpoints/");
  fs::rename(folder + "4", path("archive"));
  fs::create_directory_symlink(path("archive"), folder + "4");
  const auto files = std::distance(fs::directory_iterator(path("archive")), fs::directory_iterator());
  EXPECT_GT(files, 0);
  train_as("linked", {"steps=8", "max_num_checkpoints_to_keep=1"});
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder + "4")));
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder + ".removing-4")));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("archive")), fs::directory_iterator()), files);
}

// Standard output closed by whoever starts the program, and a limit of file size.
TEST_F(Checkpoints, WhatShellsDoToAProgram) {
  const auto in_shell = [&](const std::string& before, const Arguments& arguments, const std::string& after) {
    std::string line = before + " exec '" + program() + "'";
    for (const std::string& argument : arguments) line += " '" + argument + "'";
    const pid_t child = ::fork();
    if (child == 0) {
      fs::current_path(path("."));
      ::execl("/bin/bash", "bash", "-c", (line + after).c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    return wait_for(child);
  };
  EXPECT_EQ(in_shell("", command("closed"), " >&- 2>&-"), 0);
  EXPECT_EQ(steps_of("closed").size(), 10u);  // each line is one object
  const std::string told = path("told");
  EXPECT_EQ(in_shell("ulimit -f 4;", command("limited"), " >/dev/null 2>'" + told + "'"), 1);
  std::ifstream file(told);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("File too large"), std::string::npos) << text;
}

// Killed at random moments, again and again, the run ends where the undisturbed one does.
TEST_F(Checkpoints, KillsLoseNothing) {
  const Arguments keys{"steps=200", "checkpoint_period=3", "max_num_checkpoints_to_keep=2", "ranks=2",
                       "ici_expert_parallelism=2"};
  train_as("undisturbed", keys);
  std::mt19937 random(5);
  int run = 0;
  const auto name = [&] { return "killed" + std::to_string(run); };
  const auto compare = [&] {
    expect_same(checkpoint("undisturbed", 200), checkpoint(name(), 200));
    EXPECT_EQ(steps_of("undisturbed"), steps_of(name()));
    fs::remove_all(path("out/" + name()));
    ++run;
  };
  for (int kills = 0; kills < (soaks() ? 500 : 25) && !HasFailure();) {
    const pid_t child = start(command(name(), keys));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
    ::kill(child, SIGKILL);
    const int status = wait_for(child);
    if (status == 0) {  // it was done before
      compare();
    } else {
      ASSERT_EQ(status, 128 + SIGKILL);
      ++kills;
    }
  }
  train_as(name(), keys);
  compare();
}

TEST_F(Checkpoints, OtherDataIsSaid) {
  const Arguments schedule{"learning_rate_schedule_steps=10"};
  const Finished first = train_as("run", schedule + Arguments{"steps=4"});
  EXPECT_EQ(first.out.find("warning"), std::string::npos) << first.out;
  const Finished same = train_as("run", schedule + Arguments{"steps=6"});
  EXPECT_EQ(same.out.find("warning"), std::string::npos) << same.out;
  const Finished other = train_as("run", schedule + Arguments{"steps=8", "data_shuffle_seed=7"});
  EXPECT_NE(other.out.find("made with data_shuffle_seed=0, this run has data_shuffle_seed=7"),
            std::string::npos)
      << other.out;
}

// One line each; another mesh with the same batch is none.
TEST_F(Checkpoints, OtherTrainingIsSaid) {
  train_as("run", {"steps=2"});
  const std::string same = train_as("run", {"steps=2", "ranks=2", "per_device_batch_size=1"}).out;
  EXPECT_EQ(same.find("warning"), std::string::npos) << same;
  const std::string other = train_as("run", {"steps=3", "per_device_batch_size=4", "learning_rate=0.02",
                                             "load_balance_loss_weight=0.5", "grad_dtype=bfloat16"})
                                .out;
  for (const char* line :
       {"made with steps of the schedule=2, this run has steps of the schedule=3, from here on",
        "made with sequences of a step=2, this run has sequences of a step=4, from here on",
        "made with learning_rate=0.01, this run has learning_rate=0.02, from here on",
        "made with load_balance_loss_weight=0.0, this run has load_balance_loss_weight=0.5",
        "made with grad_dtype=\"float32\", this run has grad_dtype=\"bfloat16\""})
    EXPECT_NE(other.find(line), std::string::npos) << line << "\n" << other;
  EXPECT_EQ(other.find("adam_b1"), std::string::npos) << other;
}

TEST_F(Checkpoints, AnotherBlockOfTheSameModelIsSaid) {
  const Arguments sigmoid{"routed_score_func=sigmoid"};
  train_as("run", sigmoid + Arguments{"steps=2"});
  const std::string other = train_as("run", sigmoid + Arguments{"steps=3", "decoder_block=qwen3_moe"}).out;
  EXPECT_NE(other.find("both describe this model, nothing changes"), std::string::npos) << other;
}

TEST_F(Checkpoints, PackedFrozenWeightsAreSavedPackedAndGoOn) {
  const Arguments whole_blocks{"base_emb_dim=32", "base_mlp_dim=32", "head_dim=16"},
      packed = whole_blocks + Arguments{"weight_format=int8", "trainable_parameters_mask=norm"};
  train_as("whole", packed);
  fs::copy(path("out/whole"), path("out/run"), fs::copy_options::recursive);
  forget("run", 4);
  const Finished finished = train_as("run", packed);
  EXPECT_NE(finished.out.find("going on after step 4"), std::string::npos) << finished.out;
  expect_same(checkpoint("whole", 10), checkpoint("run", 10));
  EXPECT_EQ(steps_of("whole"), steps_of("run"));
  const CheckpointFolder saved = CheckpointFolder::open(checkpoint("run", 10));
  EXPECT_TRUE(std::ranges::any_of(saved.manifest().tensors,
                                  [](const ManifestTensor& t) { return t.dtype == DType::packed_int8; }));

  const Finished other =
      run(command("run", whole_blocks + Arguments{"trainable_parameters_mask=norm", "steps=11"}));
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("is int8"), std::string::npos) << other.err;
}

TEST_F(Checkpoints, ADamagedNewestIsPassedOver) {
  train_as("whole");
  train_as("run");
  const auto damage = [&](std::int64_t step, const std::string& file, std::size_t from_end) {
    const std::string name = "out/run/checkpoints/" + std::to_string(step) + "/" + file;
    std::string bytes = read(name);
    bytes[bytes.size() - 1 - from_end] ^= 4;
    write(name, bytes);
  };
  fs::remove_all(checkpoint("run", 10));
  damage(8, "weights-00001.safetensors", 77);
  Finished finished = train_as("run");
  EXPECT_NE(finished.out.find("checkpoints/8/weights-00001.safetensors: tensor"), std::string::npos)
      << finished.out;
  EXPECT_NE(finished.out.find("going on after step 4"), std::string::npos) << finished.out;
  expect_same(checkpoint("whole", 10), checkpoint("run", 10));
  expect_same(checkpoint("whole", 8), checkpoint("run", 8));  // written again
  EXPECT_EQ(steps_of("whole"), steps_of("run"));

  fs::remove_all(checkpoint("run", 10));
  damage(8, "manifest.json", 40);
  finished = train_as("run", {"ranks=2", "per_device_batch_size=1"});
  EXPECT_NE(finished.out.find("checkpoints/8/manifest.json: hash"), std::string::npos) << finished.out;

  for (const std::int64_t step : {0, 4, 8, 10}) damage(step, "manifest.json", 40);
  finished = run(command("run"));
  EXPECT_EQ(finished.status, 2);
  EXPECT_NE(finished.err.find("no checkpoint before it can be read"), std::string::npos) << finished.err;
  EXPECT_EQ(steps_of("run").size(), 10u);
}

TEST_F(Checkpoints, OneWriterAtATime) {
  // Both want more steps than the first can make meanwhile: a run that has all its steps writes nothing.
  const Arguments endless = command("run", {"steps=1000000", "learning_rate_schedule_steps=10"});
  const pid_t child = start(endless);
  await_step("run", 2);
  for (const Arguments& more : {Arguments{}, Arguments{"enable_checkpointing=false", "steps=2"}}) {
    const Finished second = run(endless + more);
    EXPECT_EQ(second.status, 2);
    EXPECT_NE(second.err.find("written by process " + std::to_string(child)), std::string::npos) << second.err;
  }
  ::kill(child, SIGKILL);
  wait_for(child);
}

TEST_F(Checkpoints, OneWriterWithoutCheckpoints) {
  const Arguments endless =
      command("run", {"steps=1000000", "learning_rate_schedule_steps=10", "enable_checkpointing=false", "metrics_file=m.jsonl"});
  const pid_t child = start(endless);
  for (int tries = 0; tries < 3000 && (!fs::exists(path("m.jsonl")) || fs::file_size(path("m.jsonl")) == 0); ++tries)
    ::usleep(10000);
  const Finished second = run(endless + Arguments{"steps=2"});
  EXPECT_EQ(second.status, 2);
  EXPECT_NE(second.err.find("written by process " + std::to_string(child)), std::string::npos) << second.err;
  const Finished other = run(endless + Arguments{"steps=2", "run_name=other"});  // the same metrics_file
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("m.jsonl is being written by"), std::string::npos) << other.err;
  EXPECT_FALSE(fs::exists(path("out/other")));
  ::kill(child, SIGKILL);
  wait_for(child);
}

TEST_F(Checkpoints, WhatDoesNotFitIsRefused) {
  train_as("run", {"steps=2"});
  const auto refused = [&](const Arguments& more, const std::string& word) {
    const Finished finished = run(command("run", more));
    EXPECT_EQ(finished.status, 2);
    EXPECT_NE(finished.err.find(word), std::string::npos) << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  };
  refused({"base_mlp_dim=32"}, "base_mlp_dim=16, this run has base_mlp_dim=32");
  refused({"num_experts=8"}, "num_experts=4");
  refused({"num_experts_per_tok=1"}, "num_experts_per_tok=2");
  refused({"opt_type=sgd"}, "opt_type=\"adamw\"");
  refused({"weight_dtype=bfloat16"}, "weight_dtype=\"float32\"");
  refused({"mu_dtype=bfloat16"}, "mu_dtype");
  refused({"run_name=new", "load_parameters_path=out/run", "load_full_state_path=out/run"}, "one of them");
  refused({"run_name=new", "load_parameters_path=out/run", "vocab_size=64"}, "vocab_size=32");
  refused({"run_name=new", "load_parameters_path=out/none"}, "out/none");
  EXPECT_FALSE(fs::exists(path("out/new")));
}

TEST_F(Checkpoints, StartOtherRuns) {
  train_as("first", {"steps=4", "learning_rate_schedule_steps=10"});
  train_as("whole");
  train_as("state", {"load_full_state_path=out/first"});
  expect_same(checkpoint("whole", 10), checkpoint("state", 10));
  const auto whole = steps_of("whole"), state = steps_of("state");
  EXPECT_EQ(state, std::vector<json>(whole.begin() + 4, whole.end()));
  // Weights alone: the first loss is that of step 4, the optimizer starts anew. Another type is rounded to.
  train_as("weights", {"load_parameters_path=out/first/checkpoints/4", "steps=1"});
  EXPECT_EQ(steps_of("weights")[0]["learning/loss"], whole[4]["learning/loss"]);
  train_as("narrow", {"load_parameters_path=out/first", "steps=1", "weight_dtype=bfloat16"});
  EXPECT_NEAR(steps_of("narrow")[0]["learning/loss"].get<double>(), whole[4]["learning/loss"].get<double>(),
              0.01);
  const CheckpointFolder from = CheckpointFolder::open(checkpoint("first", 4));
  const CheckpointFolder to = CheckpointFolder::open(checkpoint("narrow", 0));
  const Tensor want = from.read("layers.1.moe.experts.3.wo").cast(DType::bf16),
               got = to.read("layers.1.moe.experts.3.wo");
  EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0);
}

// Blocks of layers are no part of a checkpoint, and what two stages hold is in it once.
TEST_F(Checkpoints, GoOnOverOtherStagesAndBlocks) {
  const auto rows = [](int ranks) { return fmt::format("per_device_batch_size={}", 8.0 / ranks); };
  const Arguments keys{"base_num_decoder_layers=4", "logits_via_embedding=true", "checkpoint_period=3",
                       "learning_rate_schedule_steps=6", "steps=6"};
  const std::vector<Arguments> meshes{
      {"ranks=1", rows(1)},
      {"ranks=2", rows(2), "ici_pipeline_parallelism=2"},
      {"ranks=2", rows(2), "ici_pipeline_parallelism=2", "num_pipeline_repeats=2"},
      {"ranks=8", rows(8), "ici_pipeline_parallelism=4", "ici_fsdp_parallelism=2"},
      {"ranks=8", rows(8), "ici_pipeline_parallelism=2", "num_pipeline_repeats=2", "ici_data_parallelism=2",
       "ici_tensor_parallelism=2"}};
  train_as("whole", keys + meshes[0]);
  const auto whole = steps_of("whole");
  std::string before = "whole";
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string name = "mesh" + std::to_string(i);
    train_as(name, keys + meshes[i] + Arguments{"load_full_state_path=out/" + before + "/checkpoints/3"});
    expect_same(checkpoint(before, 3), checkpoint(name, 3));
    const auto lines = steps_of(name);
    ASSERT_EQ(lines.size(), 3u);
    for (std::size_t step = 0; step < 3; ++step) {
      for (const char* key : {"learning/loss", "learning/param_norm"}) {
        const double want = whole[3 + step][key];
        EXPECT_NEAR(lines[step][key].get<double>(), want, 1e-4 * want) << step << key;
      }
    }
    before = name;
  }
}

// From every mesh to every other: the same tensors, and the loss goes on within rounding.
TEST_F(Checkpoints, GoOnOverAnyMesh) {
  const auto rows = [](int ranks) { return fmt::format("per_device_batch_size={}", 8.0 / ranks); };
  const std::vector<Arguments> meshes{
      {"ranks=1", rows(1)},
      {"ranks=2", rows(2), "ici_data_parallelism=2", "ici_fsdp_parallelism=1"},
      {"ranks=2", rows(2), "ici_fsdp_parallelism=2"},
      {"ranks=4", rows(4), "ici_fsdp_parallelism=4"},
      {"ranks=2", rows(2), "ici_tensor_parallelism=2"},
      {"ranks=2", rows(2), "ici_expert_parallelism=2"},
      {"ranks=4", rows(4), "ici_expert_parallelism=4", "use_ring_of_experts=true"},
      {"ranks=4", rows(4), "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
      {"ranks=8", rows(8), "ici_data_parallelism=2", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
      {"ranks=4", rows(4), "ici_tensor_parallelism=2", "ici_expert_parallelism=2"},
      {"ranks=2", rows(2), "ici_pipeline_parallelism=2"},
      {"ranks=4", rows(4), "ici_pipeline_parallelism=2", "ici_fsdp_parallelism=2"},
      {"ranks=4", rows(4), "ici_fsdp_parallelism=4", "shard_exp_on_fsdp=true"},
      {"ranks=4", rows(4), "ici_context_parallelism=2", "ici_fsdp_parallelism=2"}};
  for (const Arguments& optimizer : {Arguments{"opt_type=adamw"}, Arguments{"opt_type=muon"}}) {
    const std::string kind = optimizer[0].substr(9);
    const Arguments keys =
        kBias + optimizer + Arguments{"checkpoint_period=3", "learning_rate_schedule_steps=6"};
    train_as(kind, keys + meshes[0] + Arguments{"steps=6"});
    const auto whole = steps_of(kind);
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      if (!soaks() && kind == "muon" && i % 4 != 3) continue;
      SCOPED_TRACE(kind + " mesh " + std::to_string(i));
      const std::string name = kind + std::to_string(i);
      // One rank's checkpoint onto the mesh: saved again before the first step, it is the same.
      const Arguments from{"load_full_state_path=out/" + kind + "/checkpoints/3"};
      train_as(name, keys + meshes[i] + from + Arguments{"steps=6"});
      expect_same(checkpoint(kind, 3), checkpoint(name, 3));
      // And from the mesh back to one rank, or to the next mesh.
      const std::string back = name + "back", next = name + "next";
      const Arguments other{"load_full_state_path=out/" + name + "/checkpoints/6", "steps=6"};
      train_as(back, keys + meshes[0] + other);
      expect_same(checkpoint(name, 6), checkpoint(back, 6));
      if (soaks()) {
        train_as(next, keys + meshes[(i + 1) % meshes.size()] + other);
        expect_same(checkpoint(name, 6), checkpoint(next, 6));
      }
      const auto lines = steps_of(name);
      ASSERT_EQ(lines.size(), 3u);
      for (std::size_t step = 0; step < 3; ++step) {
        const double want = whole[3 + step]["learning/loss"];
        EXPECT_NEAR(lines[step]["learning/loss"].get<double>(), want, 1e-4 * want) << step;
      }
      for (const std::string& done : {name, back, next}) fs::remove_all(path("out/" + done));
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(Checkpoints, AFullDiskEndsTheRunAndNothingElse) {
  train_as("whole");
  train_as("run", {"steps=4", "learning_rate_schedule_steps=10"});
  // A limit on the size of files: every write beyond it fails as on a full disk.
  const Finished full =
      execute("sh", Arguments{"-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\"", program()} +
                        command("run", {"metrics_file=/dev/null"}));
  EXPECT_EQ(full.status, 1) << full.out;
  EXPECT_NE(full.err.find("[checkpoint] cannot "), std::string::npos) << full.err;
  EXPECT_EQ(std::count(full.err.begin(), full.err.end(), '\n'), 1) << full.err;
  train_as("run");
  expect_same(checkpoint("whole", 10), checkpoint("run", 10));
  EXPECT_EQ(steps_of("whole"), steps_of("run"));
}

}  // namespace
}  // namespace switchyard::cli_test
