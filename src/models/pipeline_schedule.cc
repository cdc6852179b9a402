#include "models/pipeline_schedule.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {
namespace {

// Runs all stages tick by tick.
class Clockwork {
 public:
  Clockwork(PipelineSchedule schedule, const PipelineShape& shape)
      : schedule_(schedule),
        shape_(shape),
        passes_(shape.microbatches * shape.repeats),
        forward_done_(static_cast<std::size_t>(shape.blocks() * shape.microbatches), kNever),
        backward_done_(forward_done_),
        stages_(static_cast<std::size_t>(shape.stages)) {}

  // The pass of each stage in the next tick; nothing once all are done.
  std::vector<std::optional<PipelinePass>> next_tick() {
    std::vector<std::optional<PipelinePass>> passes;
    for (int s = 0; s < shape_.stages; ++s) passes.push_back(choose(s));
    bool any = false;
    for (int s = 0; s < shape_.stages; ++s) {
      const auto& pass = passes[static_cast<std::size_t>(s)];
      if (!pass) continue;
      any = true;
      Progress& progress = stages_[static_cast<std::size_t>(s)];
      ++(pass->forward ? progress.forward : progress.backward);
      done(s, *pass) = tick_;
    }
    ++tick_;
    if (any) return passes;
    for (const Progress& progress : stages_)
      CHECK(progress.backward == passes_, "a pipeline of {} stages with {} blocks each stands still",
            shape_.stages, shape_.repeats);
    return {};
  }
  std::int64_t tick() const { return tick_; }

 private:
  static constexpr std::int64_t kNever = INT64_MAX;
  struct Progress {
    std::int64_t forward = 0, backward = 0;  // passes done
  };

  std::int64_t& done(int stage, const PipelinePass& pass) {
    const std::int64_t block = pass.block * shape_.stages + stage;
    return (pass.forward
                ? forward_done_
                : backward_done_)[static_cast<std::size_t>(block * shape_.microbatches + pass.microbatch)];
  }

  // Pass number k of every stage: a group of microbatches passes block after block of the stage, and back.
  PipelinePass pass_at(std::int64_t k, bool forward) const {
    const std::int64_t of_group = shape_.stages * shape_.repeats, group = k / of_group,
                       first = group * shape_.stages,
                       members = std::min<std::int64_t>(shape_.stages, shape_.microbatches - first),
                       in_group = k - group * of_group;
    const auto turn = static_cast<int>(in_group / members);
    return {forward, forward ? turn : shape_.repeats - 1 - turn, first + in_group % members};
  }

  bool is_ready(int stage, const PipelinePass& pass) {
    const std::optional<Source> source = source_of(stage, pass);
    if (source && done(source->stage, source->pass) >= tick_) return false;
    return pass.forward || done(stage, {true, pass.block, pass.microbatch}) < tick_;
  }

  // Passes forward that may live in a stage.
  std::int64_t most_alive(int stage) const {
    if (shape_.stages == 1) return 1;
    if (schedule_ == PipelineSchedule::gpipe) return passes_;
    const std::int64_t behind = shape_.stages - 1 - stage;
    return 1 + (shape_.repeats == 1 ? behind : 2 * behind + (shape_.repeats - 1) * shape_.stages);
  }

  std::optional<PipelinePass> choose(int stage) {
    const Progress& progress = stages_[static_cast<std::size_t>(stage)];
    const bool first_forward = progress.forward - progress.backward < most_alive(stage);
    if (progress.forward < passes_ && first_forward) {
      const PipelinePass pass = pass_at(progress.forward, true);
      if (is_ready(stage, pass)) return pass;
    }
    const bool goes_back =
        schedule_ != PipelineSchedule::gpipe || shape_.stages == 1 || progress.forward == passes_;
    if (progress.backward < progress.forward && goes_back) {
      const PipelinePass pass = pass_at(progress.backward, false);
      if (is_ready(stage, pass)) return pass;
    }
    return {};
  }

 public:
  struct Source {
    int stage;
    PipelinePass pass;
  };
  // Whose result a pass takes from another stage.
  std::optional<Source> source_of(int stage, const PipelinePass& pass) const {
    const int step = pass.forward ? -1 : 1, last = shape_.blocks() - 1;
    const int from = pass.block * shape_.stages + stage + step;
    if (from < 0 || from > last) return {};
    return Source{from % shape_.stages, {pass.forward, from / shape_.stages, pass.microbatch}};
  }

 private:
  const PipelineSchedule schedule_;
  const PipelineShape shape_;
  const std::int64_t passes_;  // forward, of a stage
  std::int64_t tick_ = 0;
  std::vector<std::int64_t> forward_done_, backward_done_;  // tick of each block and microbatch
  std::vector<Progress> stages_;
};

}  // namespace

PipelineSchedule parse_pipeline_schedule(const std::string& name) {
  return name == "gpipe" ? PipelineSchedule::gpipe : PipelineSchedule::one_forward_one_backward;
}

std::vector<PipelineEvent> pipeline_events(PipelineSchedule schedule, const PipelineShape& shape, int index) {
  Clockwork clockwork(schedule, shape);
  std::vector<PipelineEvent> events;
  const auto at = [](int stage) { return static_cast<std::size_t>(stage); };
  const int before = (index + shape.stages - 1) % shape.stages, after = (index + 1) % shape.stages;
  // In a tick, links that begin at stages of even numbers come first, in order, then the others: transfers do
  // not wait for each other all along the ring, nor in a circle.
  std::vector<int> neighbours{after, before};
  if (before == after) neighbours.pop_back();
  if (index % 2 != 0) std::ranges::reverse(neighbours);
  if (shape.stages == 1) neighbours.clear();
  for (;;) {
    const auto passes = clockwork.next_tick();
    if (passes.empty()) return events;
    const auto source = [&](int stage) {
      const auto& pass = passes[at(stage)];
      return pass ? clockwork.source_of(stage, *pass) : std::nullopt;
    };
    const auto mine = source(index);
    for (const int neighbour : neighbours) {
      PipelineEvent transfer;
      transfer.neighbour = neighbour;
      transfer.receives = mine && mine->stage == neighbour;
      const auto theirs = source(neighbour);
      if (theirs && theirs->stage == index) transfer.sent = theirs->pass;
      if (transfer.receives || transfer.sent) events.push_back(transfer);
    }
    if (!passes[at(index)]) continue;
    PipelineEvent run;
    run.pass = passes[at(index)];
    events.push_back(run);
  }
}

double pipeline_bubble(PipelineSchedule schedule, const PipelineShape& shape) {
  Clockwork clockwork(schedule, shape);
  while (!clockwork.next_tick().empty()) {
  }
  const double busy = 2.0 * static_cast<double>(shape.microbatches * shape.repeats);
  // The last tick has none.
  return (static_cast<double>(clockwork.tick() - 1) - busy) / busy;
}

}  // namespace switchyard
