// Threads, processes, and processes of threads: the same bits.
#include "core/testing.h"
#include "mpirun.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;

using Mpi = MpiTest;

Arguments with(Arguments arguments, const std::string& more) {
  std::istringstream words(more);
  for (std::string word; words >> word;) arguments.push_back(word);
  return arguments;
}

// The suite of parallel/comm/collectives_test.cc; /1, /2 and /4 are its cases of 2, 4 and 8 ranks, of which 3
// processes make 3.
TEST_F(Mpi, CollectivesKeepTheirPromises) {
  NEEDS_MPIRUN();
  const std::string suite = fs::path(program()).parent_path() / "parallel_test";
  ASSERT_TRUE(fs::exists(suite)) << "build the target parallel_test";
  const std::map<int, std::string> cases{{2, "Ranks/Collectives.*/1:Ranks/Collectives.*/2"},
                                         {3, "Ranks/Collectives.*/1"},
                                         {4, "Ranks/Collectives.*/2:Ranks/Collectives.*/4"}};
  for (const auto& [processes, filter] : cases) {
    const Finished run = execute("mpirun", launch(processes) + Arguments{suite, "--gtest_filter=" + filter});
    EXPECT_EQ(run.status, 0) << processes << " processes\n" << run.out << run.err;
    std::size_t passed = 0;
    for (std::size_t at = 0; (at = run.out.find("[  PASSED  ]", at)) != std::string::npos; ++at) ++passed;
    EXPECT_EQ(passed, static_cast<std::size_t>(processes)) << run.out;
  }
}

// A program that calls the library: both processes print what one process with both ranks prints.
TEST_F(Mpi, AnEngineIsTheSameInTwoProcesses) {
  NEEDS_MPIRUN();
  const std::string suite = fs::path(program()).parent_path() / "engine_test";
  ASSERT_TRUE(fs::exists(suite)) << "build the target engine_test";
  const Arguments test{suite, "--gtest_filter=Engine.TwoRanksWhereverTheyAre"};
  const auto lines = [](const std::string& out) {
    std::vector<std::string> found;
    std::istringstream all(out);
    for (std::string line; std::getline(all, line);) {
      if (const std::size_t at = line.find("engine: loss"); at != std::string::npos)
        found.push_back(line.substr(at));
    }
    return found;
  };
  const Finished one = execute(test[0], {test[1]});
  ASSERT_EQ(one.status, 0) << one.out << one.err;
  ASSERT_EQ(lines(one.out).size(), 1u) << one.out;
  const Finished two = execute("mpirun", launch(2) + test);
  ASSERT_EQ(two.status, 0) << two.out << two.err;
  EXPECT_EQ(lines(two.out), std::vector<std::string>(2, lines(one.out)[0]));
}

TEST_F(Mpi, TrainsLikeThreads) {
  NEEDS_MPIRUN();
  const std::vector<std::string> layouts{
      "ici_expert_parallelism=2 ici_fsdp_parallelism=2",
      "ici_expert_parallelism=4 use_ring_of_experts=true decoder_block=deepseek first_num_dense_layers=0 "
      "attention_type=mla routed_bias=true routed_score_func=sigmoid routed_bias_update_rate=0.01",
      "ici_tensor_parallelism=2 ici_expert_parallelism=2 gradient_accumulation_steps=2",
      "ici_fsdp_parallelism=2 ici_data_parallelism=2 opt_type=muon",
      "ici_fsdp_parallelism=2 ici_expert_parallelism=2 opt_type=muon shard_exp_on_fsdp=true",
      "ici_fsdp_parallelism=2 ici_expert_parallelism=2 num_moe_token_chunks=2 dtype=bfloat16",
      // Threads multiply with the gathered experts together, processes do not.
      "ici_fsdp_parallelism=4 dtype=bfloat16 weight_dtype=bfloat16 max_target_length=64",
      "ici_fsdp_parallelism=2 ici_expert_parallelism=2 use_ring_of_experts=true dtype=bfloat16 "
      "max_target_length=64",
      // Threads sum gradients of experts as they make them.
      "ici_data_parallelism=4 dtype=bfloat16 weight_dtype=bfloat16 max_target_length=64",
      "ici_data_parallelism=2 ici_expert_parallelism=2 dtype=bfloat16 grad_dtype=bfloat16 opt_type=muon",
      "ici_fsdp_parallelism=2 ici_expert_parallelism=2 num_moe_emb_chunks=2 use_ring_of_experts=true",
      "ici_fsdp_parallelism=2 ici_pipeline_parallelism=2",
      "ici_fsdp_parallelism=2 ici_pipeline_parallelism=2 num_pipeline_repeats=2 base_num_decoder_layers=5 "
      "num_pipeline_microbatches=4",
      "ici_data_parallelism=2 ici_pipeline_parallelism=2 logits_via_embedding=true vocab_size=33",
      "ici_data_parallelism=2 ici_tensor_parallelism=2 per_device_batch_size=1 dtype=bfloat16 "
      "base_emb_dim=18"};
  for (const std::string& layout : layouts) {
    SCOPED_TRACE(layout);
    const Arguments command = with(Arguments{"train"} + tiny_model(),
                                   "enable_tensorboard=false load_balance_loss_weight=0.1 " + layout);
    // Processes start gathers ahead, threads do when they are asked to.
    const Finished threads = run(with(command, "ranks=4 run_name=threads"));
    ASSERT_EQ(threads.status, 0) << threads.err;
    const Finished ahead = run(with(command, "ranks=4 run_name=ahead overlap_communication=on"));
    ASSERT_EQ(ahead.status, 0) << ahead.err;
    EXPECT_EQ(steps_of("ahead"), steps_of("threads"));
    const Finished processes = mpirun_listening(4, with(command, "run_name=processes"));
    EXPECT_EQ(processes.status, 0) << processes.err << words_of_program(4);
    const Finished both = mpirun(2, with(command, "ranks=4 run_name=both"));
    EXPECT_EQ(both.status, 0) << both.err;
    EXPECT_EQ(steps_of("processes"), steps_of("threads"));
    EXPECT_EQ(steps_of("both"), steps_of("threads"));
    EXPECT_FALSE(steps_of("threads").empty());
    // One process speaks.
    EXPECT_EQ(processes.out.find("output: "), processes.out.rfind("output: ")) << processes.out;
    EXPECT_NE(processes.out.find("output: "), std::string::npos) << processes.out;
    EXPECT_EQ(words_of_program(4), "");
  }
  // Had a process said something, it would have been heard.
  ::setenv("SWITCHYARD_VERBOSE", "dispatch", 1);
  mpirun_listening(2, Arguments{"train"} + tiny_model());
  ::unsetenv("SWITCHYARD_VERBOSE");
  EXPECT_EQ(words_of_program(2).find("[dispatch] "), 0u) << words_of_program(2);
}

TEST_F(Mpi, GeneratesLikeThreads) {
  NEEDS_MPIRUN();
  for (const char* layout : {"ici_expert_parallelism=2 ici_fsdp_parallelism=2 per_device_batch_size=0.5",
                             "ici_tensor_parallelism=4",
                             "ici_pipeline_parallelism=2 ici_expert_parallelism=2 use_ring_of_experts=true",
                             "ici_pipeline_parallelism=4 base_num_decoder_layers=8 num_pipeline_repeats=2 "
                             "logits_via_embedding=true"}) {
    SCOPED_TRACE(layout);
    const Arguments command =
        with(Arguments{"generate"} + tiny_model(),
             std::string("vocab_size=300 tokenizer_type=byte prompt=ab max_target_length=12 --json g.json "
                         "decode_sampling_strategy=weighted return_log_prob=true ") +
                 layout);
    const auto results = [&](const Finished& done) {
      EXPECT_EQ(done.status, 0) << done.err;
      const auto made = nlohmann::json::parse(read("g.json"));
      fs::remove(path("g.json"));
      return made.at("results");
    };
    const auto threads = results(run(with(command, "ranks=4")));
    EXPECT_FALSE(threads.empty());
    EXPECT_EQ(results(mpirun(4, command)), threads);
    EXPECT_EQ(results(mpirun(2, with(command, "ranks=4"))), threads);
  }
}

TEST_F(Mpi, EvaluatesLikeThreads) {
  NEEDS_MPIRUN();
  write("text.txt", "Wagons that are sorted onto tracks, and tokens that are sorted onto experts.");
  const std::string models = std::string(kSourceFolder) + "/tests/golden/gguf/qwen3moe/";
  for (const char* layout :
       {"ici_expert_parallelism=2 ici_fsdp_parallelism=2", "ici_tensor_parallelism=4",
        "ici_pipeline_parallelism=2 ici_expert_parallelism=2 use_ring_of_experts=true"}) {
    SCOPED_TRACE(layout);
    const Arguments command =
        with(Arguments{"eval", models + "Q4_0.gguf", "--against", models + "MXFP4.gguf"},
             std::string("data_path=text.txt --window 12 --json e.json ") + layout);
    const auto figures = [&](const Finished& done) {
      EXPECT_EQ(done.status, 0) << done.err;
      auto made = nlohmann::json::parse(read("e.json"));
      fs::remove(path("e.json"));
      EXPECT_GT(made.at("against").at("mean_kl").get<double>(), 0);
      made.erase("seconds");
      return made;
    };
    const auto threads = figures(run(with(command, "ranks=4")));
    EXPECT_EQ(figures(mpirun(4, command)), threads);
    EXPECT_EQ(figures(mpirun(2, with(command, "ranks=4"))), threads);
  }
}

TEST_F(Mpi, WhatIsWrongWithACommandIsSaidOnce) {
  NEEDS_MPIRUN();
  const auto expect_one = [&](const Finished& run, const std::string& text) {
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_NE(run.err.find("switchyard: [" + text), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("switchyard: "), run.err.rfind("switchyard: ")) << run.err;
    EXPECT_FALSE(fs::exists(path("out")));
  };
  const Arguments command = Arguments{"train"} + tiny_model();
  expect_one(mpirun(3, with(command, "ranks=4")), "train] ranks=4: expected a multiple of the 3 processes");
  expect_one(mpirun(2, with(command, "num_expert=4")), "config]");
  expect_one(
      mpirun(2, with(command, "dataset_type=text tokenizer_type=byte vocab_size=512 data_path=nowhere")),
      "data]");
  expect_one(mpirun(2, with(Arguments{"generate"} + tiny_model(),
                            "vocab_size=300 tokenizer_type=byte "
                            "prompt=long-enough")),
             "generate] max_target_length=8");
  expect_one(mpirun(2, {"verify", "some-case"}),
             "comm] expected `train`, `generate`, `serve` or `eval` under mpirun, got `verify`");
  // Process 0 comes last: the launcher must not end it before it has its say.
  const char* late = R"([ "$OMPI_COMM_WORLD_RANK" != 0 ] || sleep 1; exec "$0" "$@")";
  expect_one(execute("mpirun", launch(2) + Arguments{"sh", "-c", late, program(), "verify", "some-case"}),
             "comm] expected `train`, `generate`, `serve` or `eval` under mpirun, got `verify`");
}

}  // namespace
}  // namespace switchyard::cli_test
