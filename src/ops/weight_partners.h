// The ranks of this process that hold one copy of a weight: partners in its products.
#pragma once

#include <utility>

#include "autograd/array.h"
#include "autograd/context.h"
#include "kernels/partners.h"

namespace switchyard {

class WeightPartners : public Partners {
 public:
  WeightPartners(Context& context, Axes axes)
      : context_(context), axes_(std::move(axes)), group_(context.group(axes_)) {}
  void meet(const void* mine, const Work& work) override {
    context_.comm->together(group_, joined(axes_), mine, work);
  }
  bool is_first() const { return group_.index == 0; }

 private:
  Context& context_;
  const Axes axes_;
  const Group group_;
};

}  // namespace switchyard
