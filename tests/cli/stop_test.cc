// A signal while weights are made ends the program at once, whatever it was told to save later.
#include "child.h"

namespace switchyard::cli_test {
namespace {

class StoppedStart : public ProgramTest {
 protected:
  // Half a billion weights: making them takes seconds.
  static Arguments slow_to_make() {
    return tiny_model() + Arguments{"base_emb_dim=1024", "base_moe_mlp_dim=2048",
                                    "base_mlp_dim=2048", "base_num_decoder_layers=4",
                                    "num_experts=16",    "tokenizer_type=byte",
                                    "vocab_size=260",    "ignore_memory_limit=true"};
  }

  void expect_end_by_signal(const Arguments& command, int signal) {
    SCOPED_TRACE(command[0]);
    const pid_t child = start(command);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto sent = std::chrono::steady_clock::now();
    ::kill(child, signal);
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - sent;
    EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == signal) << state;
    EXPECT_LT(took.count(), 5);  // a busy machine's; the weights take longer
  }
};

TEST_F(StoppedStart, EndsAtOnce) {
  for (const int signal : {SIGTERM, SIGINT}) {
    expect_end_by_signal(Arguments{"train"} + slow_to_make() + Arguments{"enable_checkpointing=true"},
                         signal);
    expect_end_by_signal(Arguments{"serve"} + slow_to_make() + Arguments{"--port", "0"}, signal);
    expect_end_by_signal(Arguments{"generate"} + slow_to_make() + Arguments{"prompt=a"}, signal);
  }
  // Nothing that a run would go on from, or stumble over.
  const Finished again = run(Arguments{"train"} + tiny_model() +
                             Arguments{"enable_checkpointing=true", "dataset_type=synthetic", "steps=1"});
  EXPECT_EQ(again.status, 0) << again.err;
}

}  // namespace
}  // namespace switchyard::cli_test
