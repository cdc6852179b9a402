// Whole tensors from the blocks that the ranks of a session hold.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

// During a session every rank puts its blocks in, under the same names; afterwards one thread takes whole
// tensors out. Ranks write to places of their own, so put() needs no lock.
class Gather {
 public:
  // `mesh` of the run, stages of a pipeline included.
  explicit Gather(const Mesh& mesh);

  // A copy of this rank's block, floating point as f32. `first_row`: where x begins in the whole, which then
  // is all that was put under this name, one behind the other (microbatches). What several stages of a
  // pipeline put under one name adds up.
  void put(const Context& context, const std::string& name, const Array& x, std::int64_t first_row = 0);
  // The gradient of x in its dual sharding, zeros where none arrived.
  void put_gradient(const Context& context, const std::string& name, const Array& x);

  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;
  // The whole tensor: blocks in place, partial sums added in rank order. CHECKs that the name exists.
  Tensor whole(const std::string& name);
  // Names taken out so far of which ranks that should hold the same values held different bits.
  const std::set<std::string>& disagreements() const { return disagreements_; }

 private:
  struct Piece {
    Tensor local;
    Shape shape;
    Sharding sharding;
  };
  using Pieces = std::map<std::int64_t, Piece>;  // by first row
  void put(const Context& context, const std::string& name, std::int64_t first_row, Piece piece);
  // What the stage of these ranks put under `name` from `first_row` on.
  Tensor of_stage(const std::vector<int>& ranks, const std::string& name, std::int64_t first_row);
  const Pieces* find(int rank, const std::string& name) const;

  Mesh mesh_;                                          // of one stage
  std::vector<std::vector<int>> stages_;               // ranks of the run, in the order of mesh_
  std::vector<std::map<std::string, Pieces>> pieces_;  // one a rank of the run
  std::set<std::string> disagreements_;
};

// This rank's part of a whole cotangent for a value in `sharding`: its block on the first of the ranks that
// hold the same values, zeros on the others (invariant 2 of autograd/array.h).
Tensor cotangent_block(const Context& context, const Tensor& whole, const Sharding& sharding);

// This rank's block of a whole tensor.
Tensor block_of(const Context& context, const Tensor& whole, const Sharding& sharding);

}  // namespace switchyard
