#include "metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "metrics/crc32c.h"
#include "tensorboard.pb.h"

namespace switchyard {
namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string result;
  for (int byte = 0; byte < bytes; ++byte) result += static_cast<char>((value >> (8 * byte)) & 0xFFu);
  return result;
}

}  // namespace

std::string tensorboard_record(std::string_view payload) {
  std::string record = little_endian(payload.size(), 8);
  record += little_endian(masked_crc32c(record), 4);
  record += payload;
  record += little_endian(masked_crc32c(payload), 4);
  return record;
}

std::string tensorboard_file_header(double wall_time) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_file_version("brain.Event:2");
  return tensorboard_record(event.SerializeAsString());
}

std::string tensorboard_step(double wall_time, std::int64_t step, const StepMetrics& metrics) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  for (const auto& [name, value] : metrics.values()) {
    tensorboard::Summary::Value* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(name);
    scalar->set_simple_value(static_cast<float>(value));
  }
  return tensorboard_record(event.SerializeAsString());
}

std::string tensorboard_start(double wall_time, std::int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return tensorboard_record(event.SerializeAsString());
}

std::string tensorboard_file_name(double wall_time) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  return fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<std::int64_t>(wall_time), host.data(),
                     ::getpid());
}

}  // namespace switchyard
