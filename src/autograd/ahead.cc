#include "autograd/ahead.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {
namespace {

bool same_place(const Tensor& a, const Tensor& b) {
  return a.buffer() == b.buffer() && a.offset_bytes() == b.offset_bytes();
}

}  // namespace

void GathersAhead::begin_step() {
  CHECK(!in_step_, "steps do not nest");
  in_step_ = true;
  next_ = started_ = 0;
  if (writing_) {
    turns_.clear();
    makers_.clear();
  }
}

void GathersAhead::end_step(Context& context) {
  if (!writing_ && next_ != turns_.size()) give_up_sequence(context);
  if (writing_ && !partial_) {
    choose();
    writing_ = false;
  }
  makers_.clear();
  in_step_ = partial_ = false;
}

// Decides which gathers to start early, and which turns make their inputs. The budget is the largest number
// of bytes that one layer's turns gather: one layer ahead.
void GathersAhead::choose() {
  for (std::size_t i = turns_.size(); i-- > 0;) {
    Turn& turn = turns_[i];
    turn.ahead = turn.ahead || turn.gathers;
    if (turn.ahead && turn.source != kNone) turns_[turn.source].ahead = true;
  }
  budget_ = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    if (i > 0 && turns_[i].layer != turns_[i - 1].layer) bytes = 0;
    if (turns_[i].ahead) bytes += turns_[i].bytes;
    budget_ = std::max(budget_, bytes);
  }
}

void GathersAhead::start(Context& context, std::shared_ptr<const Op> op, const Tensor& input) {
  const InsideOp inside(context, op->name(), "ahead");
  if (auto started = op->start(context, std::span(&input, 1)))
    asked_.push_back({std::move(op), input, std::move(started)});
}

std::vector<Tensor> GathersAhead::run(Context& context, const std::shared_ptr<const Op>& op,
                                      const Tensor& input, const ArrayInfo& info, bool weight) {
  if (weight && in_step_) return take_turn(context, op, input, info);
  const auto asked = std::find_if(asked_.begin(), asked_.end(), [&](const Asked& a) {
    return same_place(a.input, input) && a.op->name() == op->name();
  });
  if (asked == asked_.end()) return op->forward(context, std::span(&input, 1), std::span(&info, 1));
  Asked found = std::move(*asked);
  asked_.erase(asked);
  return found.started->finish(context);
}

std::vector<Tensor> GathersAhead::take_turn(Context& context, const std::shared_ptr<const Op>& op,
                                            const Tensor& input, const ArrayInfo& info) {
  if (!writing_ && !is_next(*op, input)) give_up_sequence(context);
  if (writing_) {
    auto started = op->start(context, std::span(&input, 1));
    const bool gathers = started != nullptr;
    auto results =
        gathers ? started->finish(context) : op->forward(context, std::span(&input, 1), std::span(&info, 1));
    write_down(context, op, input, info, results.front(), gathers);
    return results;
  }
  Turn& turn = turns_[next_];
  started_ = std::max(started_, ++next_);
  std::vector<Tensor> results = std::move(turn.results);
  turn.results.clear();
  if (!turn.started && results.empty())
    results = op->forward(context, std::span(&input, 1), std::span(&info, 1));
  held_ -= std::exchange(turn.held, 0);
  if (turn.gathers) fill(context);
  if (turn.started) results = turn.started->finish(context);
  turn.started.reset();
  turn.made = results.front().buffer();
  return results;
}

bool GathersAhead::is_next(const Op& op, const Tensor& input) const {
  if (next_ == turns_.size()) return false;
  const Turn& turn = turns_[next_];
  if (turn.op->name() != op.name()) return false;
  if (turn.source == kNone) return same_place(turn.leaf, input);
  return turns_[turn.source].made.lock() == input.buffer();
}

void GathersAhead::write_down(Context& context, std::shared_ptr<const Op> op, const Tensor& input,
                              const ArrayInfo& info, const Tensor& result, bool gathers) {
  Turn turn;
  turn.op = std::move(op);
  const auto maker = makers_.find(input.buffer().get());
  if (maker != makers_.end() && turns_[maker->second].made.lock() == input.buffer())
    turn.source = maker->second;
  else
    turn.leaf = input;
  turn.info = info;
  turn.layer = context.comm->position().layer;
  turn.bytes = static_cast<std::int64_t>(result.bytes());
  turn.gathers = gathers;
  turn.made = result.buffer();
  makers_[result.buffer().get()] = turns_.size();
  turns_.push_back(std::move(turn));
}

// Starts turns to come, in their order, while what is held ahead stays within the budget.
void GathersAhead::fill(Context& context) {
  for (; started_ < turns_.size(); ++started_) {
    Turn& turn = turns_[started_];
    if (!turn.ahead) continue;
    if (held_ > 0 && held_ + turn.bytes > budget_) return;
    if (!start_turn(context, turn)) return;
  }
}

// False where its input is still on its way.
bool GathersAhead::start_turn(Context& context, Turn& turn) {
  Tensor input = turn.leaf;
  if (turn.source != kNone) {
    const Turn& source = turns_[turn.source];
    if (source.started) return false;
    if (source.results.empty()) return true;  // had its turn: this one is made when it is asked for
    input = source.results.front();
  }
  const InsideOp inside(context, turn.op->name(), "ahead");
  if (turn.gathers)
    turn.started = turn.op->start(context, std::span(&input, 1));
  else
    turn.results = turn.op->forward(context, std::span(&input, 1), std::span(&turn.info, 1));
  turn.held = turn.bytes;
  held_ += turn.held;
  return true;
}

// Waits for what was started and forgets the sequence. What is left of this step is written down in vain.
void GathersAhead::give_up_sequence(Context& context) {
  for (Turn& turn : turns_) {
    if (turn.started) turn.started->finish(context);
  }
  turns_.clear();
  held_ = 0;
  next_ = started_ = 0;
  writing_ = partial_ = true;
}

}  // namespace switchyard
