#include "metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>

#include "metrics/crc32c.h"

namespace switchyard {
namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string result;
  for (int byte = 0; byte < bytes; ++byte) result += static_cast<char>((value >> (8 * byte)) & 0xFFu);
  return result;
}

// A protobuf message as bytes: each field is its number and its wire type, then its value. The numbers are
// those of TensorBoard's Event, Summary and SessionLog (tensorboard_test.proto). As in proto3, an ordinary
// field with the value 0 is omitted.
class Message {
 public:
  Message& add_double(unsigned field, double value) {
    return value == 0 ? *this : add(field, kFixed64, little_endian(std::bit_cast<std::uint64_t>(value), 8));
  }
  Message& add_float(unsigned field, float value) {
    return add(field, kFixed32, little_endian(std::bit_cast<std::uint32_t>(value), 4));
  }
  Message& add_integer(unsigned field, std::int64_t value) {
    return value == 0 ? *this : add(field, kVarint, varint(static_cast<std::uint64_t>(value)));
  }
  Message& add_bytes(unsigned field, std::string_view value) {
    return add(field, kLength, varint(value.size()) + std::string(value));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  enum Form : unsigned { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

  static std::string varint(std::uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7fu) | 0x80u);
    return bytes + static_cast<char>(value);
  }
  Message& add(unsigned field, Form form, const std::string& value) {
    bytes_ += varint(field << 3 | form) + value;
    return *this;
  }

  std::string bytes_;
};

// Field numbers.
enum Event : unsigned { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum Value : unsigned { kTag = 1, kSimpleValue = 2 };
constexpr unsigned kValueOfSummary = 1, kStatus = 1;
constexpr std::int64_t kStart = 1;  // a status

}  // namespace

std::string tensorboard_record(std::string_view payload) {
  std::string record = little_endian(payload.size(), 8);
  record += little_endian(masked_crc32c(record), 4);
  record += payload;
  record += little_endian(masked_crc32c(payload), 4);
  return record;
}

std::string tensorboard_file_header(double wall_time) {
  return tensorboard_record(
      Message().add_double(kWallTime, wall_time).add_bytes(kFileVersion, "brain.Event:2").bytes());
}

std::string tensorboard_step(double wall_time, std::int64_t step, const StepMetrics& metrics) {
  Message summary;
  for (const auto& [name, value] : metrics.values())
    summary.add_bytes(
        kValueOfSummary,
        Message().add_bytes(kTag, name).add_float(kSimpleValue, static_cast<float>(value)).bytes());
  Message event;
  event.add_double(kWallTime, wall_time).add_integer(kStep, step);
  if (!summary.bytes().empty()) event.add_bytes(kSummary, summary.bytes());
  return tensorboard_record(event.bytes());
}

std::string tensorboard_start(double wall_time, std::int64_t step) {
  return tensorboard_record(Message()
                                .add_double(kWallTime, wall_time)
                                .add_integer(kStep, step)
                                .add_bytes(kSessionLog, Message().add_integer(kStatus, kStart).bytes())
                                .bytes());
}

std::string tensorboard_file_name(double wall_time) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  return fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<std::int64_t>(wall_time), host.data(),
                     ::getpid());
}

}  // namespace switchyard
