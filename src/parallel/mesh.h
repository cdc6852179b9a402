// Mesh: the ranks of a run arranged along named axes.
//
// A rank's coordinates are its index in row-major order over the axes, last axis fastest. Axis X has size
// dcn_X_parallelism x ici_X_parallelism, and its coordinate is dcn part * ici size + ici part.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/axis.h"

namespace switchyard {

struct MeshAxis {
  Axis axis;
  int size;
};

class Mesh {
 public:
  Mesh() = default;                           // one rank, no axes
  explicit Mesh(std::vector<MeshAxis> axes);  // row-major, last axis fastest; names differ, sizes >= 1

  int size() const { return size_; }  // ranks
  const std::vector<MeshAxis>& axes() const { return axes_; }
  int axis_size(Axis axis) const;  // 1 for an unknown axis
  int product(std::span<const Axis> axes) const;
  int coordinate(int rank, Axis axis) const;  // 0 for an unknown axis

  // Index of `rank` within the ranks that differ from it only along `axes` (axes[0] slowest).
  int index_along(int rank, std::span<const Axis> axes) const;
  // The ranks that differ from `rank` only along `axes`, in that order.
  std::vector<int> group(int rank, std::span<const Axis> axes) const;

  Mesh without(Axis axis) const;  // the other axes, for the ranks at one coordinate of `axis`

  std::string to_string() const;  // the axes larger than 1: "data=2 expert=4"; "one rank" without any

 private:
  struct Extent {
    int size;
    int stride;  // ranks between neighbours along the axis
  };
  Extent extent(Axis axis) const;

  std::vector<MeshAxis> axes_;
  std::vector<int> strides_;
  int size_ = 1;
};

// dcn_<axis>_parallelism and ici_<axis>_parallelism of one mesh axis; -1 means the remaining ranks. For the
// mesh axis "stage" the keys are dcn_pipeline_parallelism and ici_pipeline_parallelism.
struct ParallelismSizes {
  std::string axis;
  std::int64_t dcn = 1;
  std::int64_t ici = 1;
  bool dcn_given = false;  // true when the user set it
  bool ici_given = false;
};

// The mesh of `ranks` ranks over `mesh_axes`, in that order, axes of size 1 included. `num_slices` -1 means
// unset: then the slices are the product of the dcn sizes and a dcn -1 is 1. A given -1 turns a default -1 of
// its group (dcn or ici) into 1. Throws Error(usage), naming keys, product and rank count, for two -1 in one
// group, a size that is neither -1 nor positive, a size other than 1 for an axis the mesh lacks, more than 15
// axes larger than 1, and sizes whose product is not the rank count.
Mesh build_mesh(std::span<const std::string> mesh_axes, std::span<const ParallelismSizes> sizes,
                std::int64_t ranks, std::int64_t num_slices);

// Formats a rank count: "1 rank", "8 ranks".
std::string ranks_text(std::int64_t ranks);

}  // namespace switchyard
