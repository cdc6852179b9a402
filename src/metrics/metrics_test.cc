#include "metrics/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "metrics/atomic_file.h"
#include "metrics/crc32c.h"
#include "metrics/phase_timer.h"
#include "metrics/tensorboard.h"
#include "tensorboard_test.pb.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class MetricsFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("switchyard_metrics_test_{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

StepMetrics sample_metrics() {
  StepMetrics metrics;
  metrics.set("learning/loss", 2.345678901234567);
  metrics.set("learning/total_weights", 4096);
  metrics.set("learning/z_loss", 0);
  return metrics;
}

template <typename Action>
Error caught(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected an Error";
  return {Error::Kind::usage, ""};
}

// Splits TFRecords and checks their framing.
std::vector<tensorboard::Event> read_events(const std::string& bytes) {
  std::vector<tensorboard::Event> events;
  std::size_t at = 0;
  const auto number = [&](std::size_t offset, int size) {
    std::uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i) {
      value = value << 8 | static_cast<unsigned char>(bytes.at(offset + static_cast<std::size_t>(i)));
    }
    return value;
  };
  while (at < bytes.size()) {
    const std::size_t length = number(at, 8);
    EXPECT_EQ(number(at + 8, 4), masked_crc32c(bytes.substr(at, 8)));
    const std::string payload = bytes.substr(at + 12, length);
    EXPECT_EQ(number(at + 12 + length, 4), masked_crc32c(payload));
    EXPECT_TRUE(events.emplace_back().ParseFromString(payload));
    at += length + 16;
  }
  EXPECT_EQ(at, bytes.size());
  return events;
}

TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
}

TEST(StepMetrics, KeepsInsertionOrderAndReplaces) {
  StepMetrics metrics;
  metrics.set("b", 1);
  metrics.set("a", 2);
  metrics.set("b", 3);
  ASSERT_EQ(metrics.values().size(), 2u);
  EXPECT_EQ(metrics.values()[0].first, "b");
  EXPECT_EQ(metrics.values()[0].second, 3);
  EXPECT_EQ(metrics.find("c"), nullptr);
  EXPECT_EQ(*metrics.find("a"), 2);
}

TEST(JsonLine, FullPrecisionIntegersAndNull) {
  StepMetrics metrics;
  metrics.set("third", 1.0 / 3);
  metrics.set("count", 123456789012.0);
  metrics.set("nan", std::numeric_limits<double>::quiet_NaN());
  metrics.set("infinite", -std::numeric_limits<double>::infinity());
  metrics.set("tiny", 5e-324);
  metrics.set("quote\"", 0.5);
  const std::string line = to_json_line(7, metrics);
  EXPECT_EQ(line, R"({"step":7,"third":0.33333333333333331,"count":123456789012,"nan":null,"infinite":null,)"
                  R"("tiny":4.9406564584124654e-324,"quote\"":0.5})");
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["third"].get<double>(), 1.0 / 3);
  EXPECT_EQ(parsed["tiny"].get<double>(), 5e-324);
}

TEST_F(MetricsFiles, WritesJsonLinesAndEvents) {
  fs::create_directories(folder_);
  std::ofstream(in_folder("metrics.jsonl")) << "an older run\n";
  MetricsWriter writer(in_folder("metrics.jsonl"), in_folder("run/tensorboard"));
  writer.write(0, sample_metrics());
  EXPECT_EQ(read_file(in_folder("metrics.jsonl")), to_json_line(0, sample_metrics()) + "\n");  // at once
  writer.write(1, sample_metrics());
  writer.close();

  EXPECT_EQ(read_file(in_folder("metrics.jsonl")),
            to_json_line(0, sample_metrics()) + "\n" + to_json_line(1, sample_metrics()) + "\n");
  const fs::path event_file = fs::directory_iterator(in_folder("run/tensorboard"))->path();
  EXPECT_EQ(event_file.filename().string().rfind("events.out.tfevents.", 0), 0u);
  const auto events = read_events(read_file(event_file));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[2].step(), 1);
  EXPECT_GT(events[2].wall_time(), 1.6e9);
  ASSERT_EQ(events[2].summary().value_size(), 3);
  EXPECT_EQ(events[2].summary().value(0).tag(), "learning/loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 2.345678901234567f);
  EXPECT_EQ(events[2].summary().value(2).value_case(),
            tensorboard::Summary::Value::kSimpleValue);  // 0 is there
}

// Bytes written by hand from the protobuf and TFRecord definitions, so that reader and
// writer cannot share a mistake.
TEST(TensorBoard, StepRecordBytes) {
  StepMetrics metrics;
  metrics.set("a", 1);
  const std::string record = tensorboard_step(2.0, 3, metrics);
  const unsigned char payload[] = {0x09, 0,    0,   0,    0, 0, 0,    0,
                                   0x40,        // wall_time: field 1, double 2.0
                                   0x10, 0x03,  // step: field 2, varint 3
                                   0x2A, 0x0A,  // summary: field 5, 10 bytes
                                   0x0A, 0x08,  // value: field 1, 8 bytes
                                   0x0A, 0x01, 'a', 0x15, 0, 0, 0x80, 0x3F};  // tag "a", simple_value 1.0f
  ASSERT_EQ(record.size(), sizeof(payload) + 16);
  EXPECT_EQ(std::memcmp(record.data() + 12, payload, sizeof(payload)), 0);
  EXPECT_EQ(record[0], static_cast<char>(sizeof(payload)));
}

TEST_F(MetricsFiles, NothingToWriteIsFine) {
  MetricsWriter writer("", "");
  writer.write(0, sample_metrics());
  writer.close();
}

TEST_F(MetricsFiles, UnwritablePlacesAreUsageErrorsAndLeaveNothing) {
  std::ofstream(in_folder("file")) << "x";
  const Error jsonl = caught([&] { MetricsWriter(in_folder("file/metrics.jsonl"), ""); });
  EXPECT_EQ(jsonl.kind(), Error::Kind::usage);
  EXPECT_NE(std::string(jsonl.what()).find(in_folder("file/metrics.jsonl")), std::string::npos)
      << jsonl.what();
  EXPECT_EQ(caught([&] { MetricsWriter(in_folder("missing/metrics.jsonl"), ""); }).kind(),
            Error::Kind::usage);
  EXPECT_EQ(caught([&] { MetricsWriter(folder_.string(), ""); }).kind(), Error::Kind::usage);

  const Error events =
      caught([&] { MetricsWriter(in_folder("metrics.jsonl"), in_folder("file/tensorboard")); });
  EXPECT_EQ(events.kind(), Error::Kind::usage);
  EXPECT_EQ(std::string(events.what()).find('\n'), std::string::npos);
  EXPECT_FALSE(fs::exists(in_folder("metrics.jsonl")));

  std::ofstream(in_folder("old.jsonl")) << "an older run\n";
  caught([&] { MetricsWriter(in_folder("old.jsonl"), in_folder("file/tensorboard")); });
  EXPECT_EQ(read_file(in_folder("old.jsonl")), "an older run\n");
}

TEST_F(MetricsFiles, FullDiskIsARuntimeError) {
  MetricsWriter writer("/dev/full", "");
  const Error error = caught([&] { writer.write(0, sample_metrics()); });
  EXPECT_EQ(error.kind(), Error::Kind::runtime);
  EXPECT_NE(std::string(error.what()).find("/dev/full: No space left on device"), std::string::npos)
      << error.what();
}

// A file size limit cuts a write short in the middle of a record, as a disk that fills up does.
TEST_F(MetricsFiles, ShortWriteLeavesWholeRecords) {
  const std::string path = in_folder("metrics.jsonl");
  const std::string line = to_json_line(0, sample_metrics()) + "\n";
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  MetricsWriter writer(path, "");
  const rlimit limit{static_cast<rlim_t>(line.size() * 5 / 2), old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  writer.write(0, sample_metrics());
  writer.write(0, sample_metrics());
  const Error error = caught([&] { writer.write(0, sample_metrics()); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_EQ(error.kind(), Error::Kind::runtime);
  EXPECT_EQ(read_file(path), line + line);
  writer.write(0, sample_metrics());  // space is back: the next line follows the last whole one
  EXPECT_EQ(read_file(path), line + line + line);
}

TEST_F(MetricsFiles, AtomicFileReplacesOrKeeps) {
  const std::string path = in_folder("summary.json");
  write_file_atomic(path, "{}");
  write_file_atomic(path, "{\"version\":1}");
  EXPECT_EQ(read_file(path), "{\"version\":1}");

  fs::create_directories(in_folder("folder/inside"));
  const Error error = caught([&] { write_file_atomic(in_folder("folder"), "text"); });
  EXPECT_EQ(error.kind(), Error::Kind::runtime);
  EXPECT_EQ(caught([&] { write_file_atomic("/dev/null/summary.json", "text"); }).kind(),
            Error::Kind::runtime);
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++entries;
  EXPECT_EQ(entries, 2u);  // no temporary file is left
}

double fake_now = 0;

TEST(PhaseTimer, CountsEachSecondOnce) {
  PhaseTimer timer([] { return fake_now; });
  fake_now = 10;
  {
    const auto forward = timer.scope("forward");
    fake_now = 11;
    {
      const auto collectives = timer.scope("collectives");
      fake_now = 14;
    }
    fake_now = 16;
  }
  fake_now = 100;  // between scopes nothing counts
  {
    const auto collectives = timer.scope("collectives");
    fake_now = 100.5;
  }
  const std::vector<std::pair<std::string, double>> want = {{"forward", 3.0}, {"collectives", 3.5}};
  EXPECT_EQ(timer.totals(), want);
  timer.reset();
  EXPECT_TRUE(timer.totals().empty());
}

}  // namespace
}  // namespace switchyard
