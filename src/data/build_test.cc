// Builds that are interrupted and resumed.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "data/test_support.h"
#include "data/text_files.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

using Build = TokenTest;

// Every file below a folder.
std::map<std::string, std::string> content_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder)] = read_whole_file(entry.path());
  }
  return files;
}

struct Fault {};

// Sections that stick together, sections that are held out, JSON lines, and a file that is skipped.
void write_mixed_texts(const std::string& folder, std::mt19937& random) {
  fs::create_directories(folder + "/b");
  std::ofstream lines(folder + "/a.jsonl"), more(folder + "/c.jsonl"), text(folder + "/b/long.txt");
  for (int i = 0; i < 200; ++i) {
    lines << R"({"text":"line )" << i << std::string(random() % 90, 'y') << "\"}\n"
          << (i % 7 == 0 ? "\n" : "");
    more << R"({"text":")" << std::string(random() % 30, 'z') << "\"}\n";
  }
  for (int i = 0; i < 3000; ++i) text << "some words " << random() << (i % 50 == 0 ? "\n\n" : "\n");
  std::ofstream(folder + "/b/m.bin") << std::string(10, '\0');
}

// A fault between the rounds leaves what a kill leaves there: whole shards that the state does not know yet,
// open ones of which it knows the beginning.
TEST_F(Build, ABuildGoesOnWhereItWasAndMakesTheSameBytes) {
  std::mt19937 random(17);
  ::testing::internal::CaptureStderr();
  for (int round = 0; round < (rounds(1) > 1 ? 60 : 6); ++round) {
    fs::remove_all(path_ + "/texts");
    write_mixed_texts(path_ + "/texts", random);
    BuildOptions whole = options(0.3, 1 + static_cast<std::int64_t>(random() % 30000));
    whole.folder = path_ + "/whole";
    fs::remove_all(whole.folder);
    ASSERT_TRUE(build_token_folder(whole, pool_).complete);
    BuildOptions pieces = whole;
    pieces.folder = path_ + "/pieces";
    pieces.round_bytes = 1 + random() % 5000;  // documents are the same however they come
    pieces.saved_bytes = random() % 20000;
    fs::remove_all(pieces.folder);
    std::size_t longest = 0;
    for_documents(find_text_files(whole.paths), {.eval_fraction = 0.3}, 16 << 20, {},
                  [&](std::string&& document, bool, const TextPosition&) {
                    longest = std::max(longest, document.size());
                  });
    const auto bound = static_cast<std::int64_t>(pieces.saved_bytes + 2 * (pieces.round_bytes + longest));
    std::int64_t most = 0;
    std::string state;
    for (int fault = 0;; ++fault) {
      std::uint32_t left = fault < 12 ? draw(random) % 12 : 1000000;
      const bool stop = draw(random) % 2 == 0;  // as a signal does; else as a kill
      BuildObserver observer;
      observer.progress = [&](std::int64_t done) {
        EXPECT_GE(done, most - bound) << "work was lost";
        most = std::max(most, done);
        if (!stop && left-- == 0) throw Fault();
      };
      observer.stop = [&] { return stop && left-- == 0; };
      try {
        if (build_token_folder(pieces, pool_, observer).complete) break;
      } catch (const Fault&) {
        if (fs::exists(pieces.folder + "/unfinished.json")) state = read("pieces/unfinished.json");
        if (draw(random) % 2 == 0) continue;
        for (auto& entry : fs::directory_iterator(pieces.folder)) {  // written since, and never synced
          if (entry.path().string().ends_with(".partial") || entry.path().string().ends_with(".starts"))
            std::ofstream(entry.path(), std::ios::app) << "more";
        }
      }
    }
    const auto expected = content_of(whole.folder);
    ASSERT_EQ(content_of(pieces.folder), expected) << "round " << round;
    // Killed while the last leftovers were removed.
    if (state.empty()) continue;
    write("pieces/unfinished.json", state);
    write("pieces/train-00001.tokens.partial.starts", "left");
    EXPECT_TRUE(build_token_folder(pieces, pool_).complete);
    EXPECT_EQ(content_of(pieces.folder), expected);
  }
  ::testing::internal::GetCapturedStderr();
}

TEST_F(Build, AnUnfinishedBuildOfOtherInputsIsRefused) {
  std::mt19937 random(4);
  ::testing::internal::CaptureStderr();
  write_mixed_texts(path_ + "/texts", random);
  BuildOptions small = options(0.3, 5000);
  small.round_bytes = 1000;
  const auto stop_at = [&](std::int64_t bytes) {
    std::int64_t done = 0;
    BuildObserver observer;
    observer.progress = [&](std::int64_t now) { done = now; };
    observer.stop = [&] { return done >= bytes; };
    EXPECT_FALSE(build_token_folder(small, pool_, observer).complete);
  };
  stop_at(15000);
  const auto refusal = [&](const BuildOptions& other) {
    return message_of([&] { build_token_folder(other, pool_); });
  };
  BuildOptions other = small;
  other.text.eval_fraction = 0.2;
  EXPECT_NE(refusal(other).find("unfinished build with eval_fraction=0.3, this one has 0.2"),
            std::string::npos)
      << refusal(other);
  other = small;
  other.shard_tokens = 6000;
  EXPECT_NE(refusal(other).find("--shard-tokens=5000"), std::string::npos) << refusal(other);
  const auto state = read("tokens/unfinished.json"), shard = read("tokens/train-00001.tokens");
  write("tokens/unfinished.json", state.substr(0, state.size() / 2));
  EXPECT_NE(refusal(small).find("unfinished.json"), std::string::npos) << refusal(small);
  write("tokens/unfinished.json", state);
  write("tokens/train-00001.tokens", "short");
  EXPECT_NE(refusal(small).find("train-00001.tokens: not a shard"), std::string::npos) << refusal(small);
  write("tokens/train-00001.tokens", shard);
  std::string open;
  for (const auto& entry : fs::directory_iterator(path_ + "/tokens")) {
    if (entry.path().string().ends_with(".partial")) open = "tokens/" + entry.path().filename().string();
  }
  ASSERT_NE(open, "");
  const std::string begun = read(open);
  std::string broken = begun;
  broken[70] = static_cast<char>(broken[70] ^ 1);
  write(open, broken);
  EXPECT_NE(refusal(small).find("not what an interrupted build saved"), std::string::npos) << refusal(small);
  write(open, begun);
  write("texts/c.jsonl", "{\"text\":\"not looked at yet\"}\n");  // may change
  stop_at(20000);
  write("texts/a.jsonl", "{\"text\":\"other\"}\n");
  EXPECT_NE(refusal(small).find("unfinished build of other text"), std::string::npos) << refusal(small);
  ::testing::internal::GetCapturedStderr();
}

TEST_F(Build, GoesOnWhenTheDiskHasRoomAgain) {
  std::mt19937 random(6);
  ::testing::internal::CaptureStderr();
  write_mixed_texts(path_ + "/texts", random);
  BuildOptions whole = options(0.3, 1 << 20);
  whole.folder = path_ + "/whole";
  build_token_folder(whole, pool_);
  BuildOptions pieces = options(0.3, 1 << 20);
  pieces.round_bytes = 1000;
  pieces.saved_bytes = 4000;
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t room : {30000, 60000}) {
    struct rlimit small = before;
    small.rlim_cur = room;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_NE(message_of([&] { build_token_folder(pieces, pool_); }).find("cannot write"), std::string::npos);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(fs::exists(path_ + "/tokens/unfinished.json"));
  }
  const BuildResult result = build_token_folder(pieces, pool_);
  EXPECT_GT(result.bytes_before, 20000);
  EXPECT_EQ(content_of(path_ + "/tokens"), content_of(path_ + "/whole"));
  ::testing::internal::GetCapturedStderr();
}

TEST_F(Build, OneBuildAtATime) {
  build(10, 0, 1000);
  fs::remove_all(path_ + "/tokens");
  BuildObserver observer;
  observer.progress = [&](std::int64_t) {
    EXPECT_NE(message_of([&] { build_token_folder(options(0, 1000), pool_); }).find("is being written by"),
              std::string::npos);
  };
  EXPECT_TRUE(build_token_folder(options(0, 1000), pool_, observer).complete);
}

TEST_F(Build, AFolderWithoutItsLastFileIsNoDataSet) {
  const TokenFolderInfo first = build(200, 0.1, 1000);
  ASSERT_GT(first.train.size(), 2u);
  const auto again = [&] { build_token_folder(options(0.1, 1000), pool_); };
  EXPECT_NE(message_of(again).find("holds a data set already"), std::string::npos);
  fs::remove(path_ + "/tokens/dataset.json");
  write("tokens/train-00009.tokens.partial", "left");
  EXPECT_NE(message_of([&] { tokens({1, 8}); }).find("no dataset.json"), std::string::npos);
  again();  // nothing was saved: it is begun anew
  EXPECT_EQ(read_token_folder(path_ + "/tokens").train[0].hash, first.train[0].hash);
  EXPECT_FALSE(fs::exists(path_ + "/tokens/train-00009.tokens.partial"));
  fs::remove(path_ + "/tokens/dataset.json");
  write("tokens/thesis.txt", "mine");
  EXPECT_NE(message_of(again).find("holds thesis.txt"), std::string::npos);
  EXPECT_EQ(read("tokens/thesis.txt"), "mine");
}

}  // namespace
}  // namespace switchyard
