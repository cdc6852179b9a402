// GathersAhead: starts gathers before they are needed, so that they overlap this rank's computation.
//
// Two users:
// 1. Weights. The ops of a step that have only weights as input
//    (cast, slice, gather) are the same sequence in every step.
//    The first step records the sequence. Later steps start its gathers in order, up to one layer's bytes
//    before their turn. A gather's turn is where the program asks for its result; it is counted there.
// 2. Chunks. start() names a gather whose result will be needed soon.
//
// Every rank of a group starts the same gathers at the same points of the same program, so they meet. A
// prefetched result is charged to the rank like every other tensor.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

class GathersAhead {
 public:
  // Called around the passes of one training step. A step may deviate from the recorded sequence: gathers
  // then wait for their turn, and the new sequence applies from the next step on.
  void begin_step();
  void end_step(Context& context);

  // Starts an op that run() will be called for with the same input;
  // no effect for an op that has no separate start.
  void start(Context& context, std::shared_ptr<const Op> op, const Tensor& input);

  // Runs the forward of an op with one input; `weight`: the input is derived from a weight alone.
  std::vector<Tensor> run(Context& context, const std::shared_ptr<const Op>& op, const Tensor& input,
                          const ArrayInfo& info, bool weight);

  // Bytes of weights that were gathered before their turn.
  std::int64_t held() const { return held_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  // One op on a weight, in the order in which the program asks for results.
  struct Turn {
    std::shared_ptr<const Op> op;
    Tensor leaf;                         // the input, if it is a parameter
    std::size_t source = kNone;          // else the turn that computes the input
    ArrayInfo info;                      // of the input
    std::int64_t layer = -1, bytes = 0;  // bytes of the results
    bool gathers = false, ahead = false;

    // State of the current step:
    std::unique_ptr<StartedOp> started;
    std::vector<Tensor> results;  // prefetched
    std::weak_ptr<Buffer> made;   // set once the turn has come
    std::int64_t held = 0;        // bytes prefetched before the turn
  };
  struct Asked {
    std::shared_ptr<const Op> op;
    Tensor input;
    std::unique_ptr<StartedOp> started;
  };

  std::vector<Tensor> take_turn(Context& context, const std::shared_ptr<const Op>& op, const Tensor& input,
                                const ArrayInfo& info);
  bool is_next(const Op& op, const Tensor& input) const;
  void write_down(Context& context, std::shared_ptr<const Op> op, const Tensor& input, const ArrayInfo& info,
                  const Tensor& result, bool gathers);
  void choose();
  void fill(Context& context);
  bool start_turn(Context& context, Turn& turn);
  void give_up_sequence(Context& context);

  bool in_step_ = false;
  bool writing_ = true;   // records the sequence
  bool partial_ = false;  // the recording began in the middle of a step
  std::vector<Turn> turns_;
  std::unordered_map<const Buffer*, std::size_t> makers_;  // while recording: the turn that made a buffer
  std::size_t next_ = 0, started_ = 0;                     // turns: the next; the first not yet seen
  std::int64_t budget_ = 0, held_ = 0;                     // bytes
  std::deque<Asked> asked_;
};

}  // namespace switchyard
