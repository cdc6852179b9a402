// Array: a logically global tensor whose blocks are spread over the ranks, and the graph that computed it.
//
// Invariants
// 1. Every rank runs the same program (SPMD):
//    ranks build the same graph, in the same order, and walk it backward in the same order.
//    Collectives inside ops therefore meet.
// 2. The cotangent (gradient) of a value has the value's *dual* sharding: split dims stay split;
//    axes over which the value is whole hold partial sums,
//    and axes over which the value is a partial sum hold it whole.
//    With this rule the backward of every local op is just its local transpose; only reshard communicates.
// 3. A Value keeps no device data alive.
//    Its data is held by Array handles, by the nodes whose backward needs it, and,
//    when it had to be recomputed, by `recomputed` until the backward of its producer is done.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "parallel/sharding.h"

namespace switchyard {

// The metadata of an array, known without its data. A *ragged* array has as many rows (dim 0) as were routed
// to this rank; its `shape[0]` and `local[0]` are the local row count, known only after forward, and its
// sharding is ignored.
struct ArrayInfo {
  DType dtype = DType::f32;
  Shape shape;        // global
  Sharding sharding;  // one entry per dim
  Shape local;        // this rank's block
  bool ragged = false;
  Axes shared = {};  // for a weight: ranks of this process along these axes share one copy
};

// The metadata of a ragged array with `rank` dims, before forward.
ArrayInfo ragged_info(DType dtype, std::size_t rank);

struct Node;
struct OffloadedValue;

struct Value {
  ArrayInfo info;
  std::weak_ptr<Buffer> buffer;  // the data, while a handle holds it
  std::size_t offset_bytes = 0;
  std::shared_ptr<Node> producer;  // null for leaves
  bool requires_grad = false;
  bool always_keep = false;     // remat never drops it (routing decisions)
  bool never_save = false;      // cheaper to recompute than to keep (gathered weights, gathered rows)
  bool weight = false;          // a parameter, or its cast or gather: moved to where it is used
  std::string checkpoint_name;  // the name that a remat policy refers to
  Tensor grad;
  Tensor recomputed;                          // or copied back from the host
  std::shared_ptr<OffloadedValue> offloaded;  // the data in the host's memory (autograd/offload.h)
};
using ValuePtr = std::shared_ptr<Value>;

class Array {
 public:
  Array() = default;
  Array(ValuePtr value, Tensor data) : value_(std::move(value)), data_(std::move(data)) {}

  bool defined() const { return value_ != nullptr; }
  const ArrayInfo& info() const { return value_->info; }
  const Shape& shape() const { return value_->info.shape; }
  const Sharding& sharding() const { return value_->info.sharding; }
  DType dtype() const { return value_->info.dtype; }
  const Tensor& tensor() const { return data_; }  // this rank's block
  const ValuePtr& value() const { return value_; }

  // Gradient in the dual sharding; undefined before backward, or when no gradient reached this value.
  const Tensor& grad() const { return value_->grad; }

 private:
  ValuePtr value_;
  Tensor data_;
};

// A leaf: `data` is this rank's block of a global tensor of `shape`.
Array make_leaf(Tensor data, Shape shape, Sharding sharding, bool requires_grad);

// Attach marks for the remat policy and for saving; each returns its argument.
Array checkpoint_name(Array x, std::string name);
Array always_keep(Array x);
Array never_save(Array x);

}  // namespace switchyard
