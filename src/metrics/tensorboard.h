// TensorBoard event records: protobuf messages in TFRecord framing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "metrics/metrics.h"

namespace switchyard {

// TFRecord framing, integers little-endian: length (8 bytes), masked CRC-32C of the length (4), `payload`,
// masked CRC-32C of the payload (4).
std::string tensorboard_record(std::string_view payload);

// The first record of every event file. `wall_time`: seconds since 1970.
std::string tensorboard_file_header(double wall_time);

// One record with all scalars of a step, as float32 (the format's type), tagged with their names.
std::string tensorboard_step(double wall_time, std::int64_t step, const StepMetrics& metrics);

// The record that makes TensorBoard drop older files' data for `step` and later:
// a resumed run continues at this step.
std::string tensorboard_start(double wall_time, std::int64_t step);

// events.out.tfevents.<seconds>.<host>.<process>:
// TensorBoard finds the file by the part before the seconds.
std::string tensorboard_file_name(double wall_time);

}  // namespace switchyard
