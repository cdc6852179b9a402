// Work: the cost of one kernel call, for pools that count work instead of computing.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace switchyard {

struct Work {
  std::string_view kernel = {};  // a literal: "gemm"
  DType dtype = DType::f32;      // dtype of the operands
  double flops = 0;              // 2 per multiply-add
  double bytes = 0;              // bytes read and written: each operand once, each result once
  DType weights = DType::f32;    // of a product: dtype of the right operand, which may be a packed one
};

class WorkCounter {
 public:
  virtual ~WorkCounter() = default;
  virtual void count(const Work& work) = 0;
};

}  // namespace switchyard
