// What each stage of a pipeline does, and when: an order of forward and backward passes, and the transfers in
// between.
//
// Every rank works the whole schedule out, in ticks of one pass each, and takes its own part. Passes that a
// stage receives for are preceded by the transfer; all transfers have one order over all stages, so stages
// that wait for each other never wait in a circle.
//
//   gpipe  (Huang et al. 2019) all forward passes, then all backward passes: every microbatch's activations
//          live.
//   1f1b   (Narayanan et al. 2019) stage s of S goes back as soon as S - s microbatches live. With blocks
//          (Narayanan et al. 2021, "interleaved") microbatches go round in groups of S; the first stages run
//          further ahead, so that they do not wait, and up to 2 (S - s) - 1 + (R - 1) S passes live.
//
// In both, each block goes forward and back through the microbatches in their order. So a weight's gradient
// is the same sum in the same order: the schedule and the number of blocks do not change a bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

enum class PipelineSchedule { gpipe, one_forward_one_backward };
PipelineSchedule parse_pipeline_schedule(const std::string& name);

struct PipelineShape {
  int stages = 1, repeats = 1;  // blocks of a stage
  std::int64_t microbatches = 1;
  // Blocks that a microbatch passes.
  int blocks() const { return stages * repeats; }
};

// A block of the stage, with a microbatch.
struct PipelinePass {
  bool forward = true;
  int block = 0;
  std::int64_t microbatch = 0;
  bool operator==(const PipelinePass&) const = default;
};

// One thing that a stage does: a pass, or else a transfer with another stage.
struct PipelineEvent {
  std::optional<PipelinePass> pass;
  int neighbour = -1;
  std::optional<PipelinePass> sent;  // whose result goes out
  bool receives = false;             // what the next pass needs
};

// All that the stage `index` does, in order.
std::vector<PipelineEvent> pipeline_events(PipelineSchedule schedule, const PipelineShape& shape, int index);

// Ticks in which a stage has no pass, over those in which it has one: (S - 1) / (R m) where the microbatches
// are a multiple of the stages.
double pipeline_bubble(PipelineSchedule schedule, const PipelineShape& shape);

}  // namespace switchyard
