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
  explicit Gather(const Mesh& mesh) : mesh_(mesh), pieces_(static_cast<std::size_t>(mesh.size())) {}

  // A copy of this rank's block, floating point as f32.
  void put(const Context& context, const std::string& name, const Array& x);
  // The gradient of x in its dual sharding, zeros where none arrived.
  void put_gradient(const Context& context, const std::string& name, const Array& x);

  bool contains(const std::string& name) const { return pieces_[0].contains(name); }
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
  void put(const Context& context, const std::string& name, const Tensor& local, Shape shape,
           Sharding sharding);
  void place(const Piece& piece, int rank, Tensor& whole) const;

  const Mesh& mesh_;
  std::vector<std::map<std::string, Piece>> pieces_;  // one a rank
  std::set<std::string> disagreements_;
};

// This rank's part of a whole cotangent for a value in `sharding`: its block on the first of the ranks that
// hold the same values, zeros on the others (invariant 2 of autograd/array.h).
Tensor cotangent_block(const Context& context, const Tensor& whole, const Sharding& sharding);

// This rank's block of a whole tensor.
Tensor block_of(const Context& context, const Tensor& whole, const Sharding& sharding);

}  // namespace switchyard
