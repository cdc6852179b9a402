// The schedule of a pipeline: for each stage the order of forward
// and backward passes, and of the transfers between them.
//
// Every rank computes the whole schedule, in ticks of one pass each, and takes its own part. A stage that
// needs data for a pass receives it just before. All stages agree on one order of transfers, so they never
// wait for each other in a circle.
//
//   gpipe  (Huang et al. 2019) all forward passes, then all backward passes: the activations of
//          every microbatch live at the same time.
//   1f1b   (Narayanan et al. 2019) stage s of S runs backward as soon as S - s microbatches live. With blocks
//          (Narayanan et al. 2021, "interleaved") microbatches go round in groups of S; the first stages run
//          further ahead, so that they do not wait, and up to 2 (S - s) - 1 + (R - 1) S passes live.
//
// In both, each block runs forward and backward through the microbatches in order. So a weight's gradient is
// the same sum in the same order: the schedule and the number of blocks do not change a bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

enum class PipelineSchedule { gpipe, one_forward_one_backward };
PipelineSchedule parse_pipeline_schedule(const std::string& name);

struct PipelineShape {
  int stages = 1, repeats = 1;  // blocks in a stage
  std::int64_t microbatches = 1;
  // Number of blocks that each microbatch passes through.
  int blocks() const { return stages * repeats; }
};

// A pass of one microbatch through one block of the stage.
struct PipelinePass {
  bool forward = true;
  int block = 0;
  std::int64_t microbatch = 0;
  bool operator==(const PipelinePass&) const = default;
};

// One event of a stage: a pass, or a transfer with another stage.
struct PipelineEvent {
  std::optional<PipelinePass> pass;
  int neighbour = -1;
  std::optional<PipelinePass> sent;  // the pass whose result is sent
  bool receives = false;             // receives the input of the next pass
};

// All events of stage `index`, in order.
std::vector<PipelineEvent> pipeline_events(PipelineSchedule schedule, const PipelineShape& shape, int index);

// Idle ticks of a stage over its busy ticks: (S - 1) / (R
// m) where the microbatches are a multiple of the stages.
double pipeline_bubble(PipelineSchedule schedule, const PipelineShape& shape);

}  // namespace switchyard
