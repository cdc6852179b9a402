// MatrixExchange: gathers whole matrices from flat ranges of a sharded weight, and scatters them back. For
// optimizers that are not elementwise (Muon).
//
// A weight of E matrices (dims [stack | inputs | outputs]) is split into blocks. Ranks with the same entries
// of the stack form a group: R ranks hold the same block, each with one flat range of it, and X blocks make
// up whole matrices. Each of the group's E matrices has one owner among its R·X ranks, so that the group
// shares the work without repeating any:
//   gather   every rank sends each owner its range's elements of that owner's matrices (one ragged
//            all-to-all); the owner assembles the blocks;
//   scatter  the same way back.
// Each element travels at most once each way. Where the layout splits only the stack and R divides E, a range
// is a whole number of matrices: their rank owns them and nothing is sent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "models/parameters.h"

namespace switchyard {

// Work assigned to each rank of a group so far, by the group's axes. Weights with fewer matrices than ranks
// go to the least loaded ranks, so that heavy ones spread.
using OwnerLoads = std::map<std::string, std::vector<double>>;

class MatrixExchange {
 public:
  // The parameter must have a matrix form (CHECK). Not collective, but every rank of the group must construct
  // exchanges for the same parameters in the same order.
  MatrixExchange(const Context& context, const Parameter& parameter, OwnerLoads& loads);

  std::int64_t inputs() const { return inputs_; }
  std::int64_t outputs() const { return outputs_; }
  std::int64_t owned() const { return first_[me_ + 1] - first_[me_]; }  // number of this rank's matrices

  // gather: this rank's range, f32 [count] -> its matrices, f32 [owned, inputs, outputs]. Both collective.
  Tensor gather(Context& context, const Tensor& range) const;
  Tensor scatter(Context& context, const Tensor& matrices) const;

 private:
  struct Span {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };
  // The data that one rank sends and receives, for each rank of the group, in elements.
  struct Traffic {
    std::vector<std::int64_t> range_offset, range_count;  // between its range and the others' matrices
    std::vector<std::int64_t> block_offset, block_count;  // between its matrices and the others' ranges
  };

  void choose_owners(std::vector<double>& loads);
  void plan_traffic();
  TensorView part_in(const Tensor& parts, std::size_t x) const;
  TensorView block_in(const Tensor& whole, std::size_t x) const;
  Span range_of(std::size_t member) const;
  Span overlap(std::size_t member, std::size_t owner) const;

  const ProcessGroup* group_ = nullptr;
  std::size_t me_ = 0, replicas_ = 1, blocks_ = 1;  // member r·X + x holds range r of block x
  bool moves_ = false;
  std::int64_t matrices_ = 0, part_ = 0;  // matrices E of the group; elements of one matrix in a block
  std::int64_t inputs_ = 0, outputs_ = 0;
  std::vector<std::int64_t> first_;  // matrices [first[i], first[i+1]) are member i's
  Shape whole_, local_;              // dims of one matrix
  std::vector<Shape> offsets_;       // offset of each block in the matrix
  Traffic traffic_;
};

}  // namespace switchyard
