// Experts recorded by one command and replayed by another.
#include <algorithm>
#include <sstream>

#include "child.h"
#include "engine/session.h"
#include "models/model_config.h"
#include "routing/routing_blocks.h"
#include "serve/http/testing.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class RecordedRouting : public ProgramTest {
 protected:
  static const inline Arguments kBytes{"vocab_size=257", "dataset_type=text", "data_path=text.txt",
                                       "tokenizer_type=byte", "max_target_length=24"};
  // The records of a file of the tiny model.
  std::vector<RoutingFile::Record> records(const std::string& name) {
    const ModelConfig model = model_config(Config::from_args(tiny_model() + kBytes));
    files_.push_back(RoutingFile::open(path(name), routed_layers(model)));
    return files_.back().records();
  }

 private:
  std::vector<RoutingFile> files_;  // keep the memory of records
};

TEST_F(RecordedRouting, ARunThatGoesOnRecordsWhatOneAtOnceDoes) {
  write("text.txt", std::string(400, 'a') + " and some other letters, too. ");
  const Arguments keys = kBytes + Arguments{"enable_checkpointing=true", "learning_rate_schedule_steps=4"};
  train(keys + Arguments{"steps=4", "routing_record=whole.rt", "run_name=whole"});
  train(keys + Arguments{"steps=2", "routing_record=parts.rt"});
  // As if the run had been killed after the checkpoint, inside of a record.
  write("parts.rt", read("parts.rt") + read("parts.rt").substr(0, 100));
  train(keys + Arguments{"steps=4", "routing_record=parts.rt"});
  EXPECT_EQ(read("parts.rt"), read("whole.rt"));
  EXPECT_GT(records("whole.rt").size(), 3u);
  train(keys + Arguments{"steps=4", "routing_replay=whole.rt", "run_name=again"});
  std::istringstream lines(read("out/again/metrics.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(lines, line); ++steps) {
    const json metrics = json::parse(line);
    EXPECT_EQ(metrics["moe/routing_agreement"], 1) << line;
    EXPECT_EQ(metrics["moe/routing_replayed"], 1) << line;
  }
  EXPECT_EQ(steps, 4);
}

TEST_F(RecordedRouting, TextsOfGenerateAndServe) {
  train_bytes();
  const Arguments how{"generate", "out/run", "prompt=aaaa aaaa aaaa aaaa",
                      "--json",   "g.json",  "max_target_length=24"};
  for (const Arguments& layout : {Arguments{}, Arguments{"ranks=4", "ici_expert_parallelism=4"}}) {
    const Finished made = run(how + layout + Arguments{"routing_record=made.rt"});
    ASSERT_EQ(made.status, 0) << made.err;
    const json g = json::parse(read("g.json"));
    std::vector<std::int32_t> text = g["prompt_tokens"];
    for (const std::int32_t token : g["results"][0]["tokens"]) text.push_back(token);
    text.pop_back();  // was never fed
    const auto generated = records("made.rt");
    ASSERT_EQ(generated.size(), 1u);
    EXPECT_TRUE(std::ranges::equal(generated[0].tokens, text));

    std::filesystem::remove(path("where.json"));
    const pid_t server = start(
        Arguments{"serve", "out/run", "--port", "0", "--json", "where.json", "routing_record=served.rt"} +
        layout);
    const json place = when_written("where.json");
    ASSERT_TRUE(place.contains("port"));
    const http::Client client(place["port"]);
    // The second of these begins with what a row remembers of the first.
    for (int i = 0; i < 2; ++i) {
      const json request{{"prompt", "aaaa aaaa aaaa aaaa"}, {"max_tokens", 5}, {"temperature", 0}};
      const auto answer = client.post("/v1/completions", request.dump());
      EXPECT_EQ(answer.status, 200);
    }
    ::kill(server, SIGTERM);
    int state = 0;
    ::waitpid(server, &state, 0);
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    const auto served = records("served.rt");
    ASSERT_EQ(served.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(served[i].source, (RoutingSource{RoutingSource::Kind::serve, static_cast<std::int64_t>(i)}));
      EXPECT_TRUE(std::ranges::equal(served[i].tokens, text));
    }
  }
}

TEST_F(RecordedRouting, RefusesWhatItCannotDo) {
  write("text.txt", std::string(400, 'a'));
  write("other.rt", "not such a file, though it is long enough for the header of a record");
  expect_no_training(kBytes + Arguments{"routing_replay=nowhere.rt"}, {"[routing]", "nowhere.rt"});
  expect_no_training(kBytes + Arguments{"routing_replay=other.rt"}, {"[routing]", "no record begins here"});
  expect_no_training(kBytes + Arguments{"routing_record=no/folder.rt"}, {"[routing]", "no/folder.rt"});
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/hf/deepseek3-tiny";
  expect_refused({"generate", folder, "tokenizer_type=byte", "routing_replay=x"},
                 {"routing_replay", "`train` and `verify`"});
  expect_refused({"eval", folder, "tokenizer_type=byte", "data_path=text.txt", "routing_record=x"},
                 {"routing_record", "`serve`"});
}

}  // namespace
}  // namespace switchyard::cli_test
