// A signal while weights are made ends the program at once, whatever it was told to save later.
#include "child.h"

namespace switchyard::cli_test {
namespace {

class StoppedStart : public ProgramTest {
 protected:
  void expect_end_by_signal(const Arguments& command, int signal) {
    SCOPED_TRACE(command[0]);
    const pid_t child = start_and_stop_at("weight made", command);
    ASSERT_NE(child, 0);
    ::kill(child, signal);
    ::kill(child, SIGCONT);
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == signal) << state;
  }
};

TEST_F(StoppedStart, EndsAtOnce) {
  const Arguments model = tiny_model() + Arguments{"tokenizer_type=byte", "vocab_size=260"};
  for (const int signal : {SIGTERM, SIGINT}) {
    expect_end_by_signal(Arguments{"train"} + tiny_model() + Arguments{"enable_checkpointing=true"}, signal);
    expect_end_by_signal(Arguments{"serve"} + model + Arguments{"--port", "0"}, signal);
    expect_end_by_signal(Arguments{"generate"} + model + Arguments{"prompt=a"}, signal);
  }
  // Nothing that a run would go on from, or stumble over.
  const Finished again = run(Arguments{"train"} + tiny_model() +
                             Arguments{"enable_checkpointing=true", "dataset_type=synthetic", "steps=1"});
  EXPECT_EQ(again.status, 0) << again.err;
}

}  // namespace
}  // namespace switchyard::cli_test
