// GathersAhead: starts gathers before they are needed, so that they go on while this rank computes.
//
// Two users:
// 1. Weights. What a step does to weights by themselves (cast, slice, gather) is the same sequence in every
// step, so the
//    first one is written down, and in later ones gathers are started, in their order, up to one layer's
//    bytes before their turn. A gather's turn is where the program asks for its result; it is counted there.
// 2. Chunks. start() names a gather that will be asked for soon.
//
// Every rank of a group starts the same gathers at the same points of the same program, so they meet. What is
// made ahead of its turn is charged to the rank like everything it makes.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "autograd/op.h"

namespace switchyard {

class GathersAhead {
 public:
  // Around the passes of one training step. The sequence of another step than the one written down is no
  // error: gathers then wait for their turn, and the new sequence counts from the next step on.
  void begin_step();
  void end_step(Context& context);

  // Starts an op that run() will be asked for with the same input; without effect for an op that cannot be
  // started.
  void start(Context& context, std::shared_ptr<const Op> op, const Tensor& input);

  // forward of an op with one input; `weight`: on a weight by itself.
  std::vector<Tensor> run(Context& context, const std::shared_ptr<const Op>& op, const Tensor& input,
                          const ArrayInfo& info, bool weight);

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  // One op on a weight, in the order of their turns.
  struct Turn {
    std::shared_ptr<const Op> op;
    Tensor leaf;                         // its input, where that is a parameter
    std::size_t source = kNone;          // else the turn that makes its input
    ArrayInfo info;                      // of the input
    std::int64_t layer = -1, bytes = 0;  // of the results
    bool gathers = false, ahead = false;

    // In this step:
    std::unique_ptr<StartedOp> started;
    std::vector<Tensor> results;  // made ahead
    std::weak_ptr<Buffer> made;   // once it had its turn
    std::int64_t held = 0;        // bytes made ahead of the turn
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
  bool writing_ = true;   // the sequence
  bool partial_ = false;  // from the middle of a step
  std::vector<Turn> turns_;
  std::unordered_map<const Buffer*, std::size_t> makers_;  // while writing: the turn that made a buffer
  std::size_t next_ = 0, started_ = 0;                     // turns: the next to come; the first not looked at
  std::int64_t budget_ = 0, held_ = 0;                     // bytes
  std::deque<Asked> asked_;
};

}  // namespace switchyard
