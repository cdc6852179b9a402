// Gather: assembles whole tensors from the blocks on the ranks of a session.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

// During a session every rank puts in its blocks, under the same names; afterwards one thread takes whole
// tensors out. Each rank writes to its own place, so put() needs no lock.
class Gather {
 public:
  // `mesh` of the run, with its pipeline stages.
  explicit Gather(const Mesh& mesh);

  // Puts in a copy of this rank's block, floating point as f32. `first_row`: first row of x in the whole
  // tensor, which is then everything put under this name, concatenated (microbatches). Tensors that several
  // stages of a pipeline put under one name are summed.
  void put(const Context& context, const std::string& name, const Array& x, std::int64_t first_row = 0);
  // Puts in the gradient of x in its dual sharding; zeros when there is none.
  void put_gradient(const Context& context, const std::string& name, const Array& x);

  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;
  // The whole tensor: blocks in place, partial sums added in rank order. CHECKs that the name exists.
  Tensor whole(const std::string& name);
  // Names, of tensors taken out so far, for which ranks that should agree held different bits.
  const std::set<std::string>& disagreements() const { return disagreements_; }

 private:
  struct Piece {
    Tensor local;
    Shape shape;
    Sharding sharding;
  };
  using Pieces = std::map<std::int64_t, Piece>;  // by first row
  void put(const Context& context, const std::string& name, std::int64_t first_row, Piece piece);
  // The data that a stage's ranks put under `name` from `first_row` on.
  Tensor of_stage(const std::vector<int>& ranks, const std::string& name, std::int64_t first_row);
  const Pieces* find(int rank, const std::string& name) const;

  Mesh mesh_;                                          // mesh of one stage
  std::vector<std::vector<int>> stages_;               // the run's ranks, in the order of mesh_
  std::vector<std::map<std::string, Pieces>> pieces_;  // one for each rank of the run
  std::set<std::string> disagreements_;
};

}  // namespace switchyard
