// The ranks of this process that hold one copy of an operand: partners in its products.
#pragma once

#include <memory>
#include <utility>

#include "autograd/array.h"
#include "autograd/context.h"
#include "kernels/grouped_matmul.h"
#include "kernels/partners.h"
#include "ops/shared_result.h"

namespace switchyard {

class RankPartners : public Partners {
 public:
  RankPartners(Context& context, Axes axes)
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

// Multiplications of two numbers by one rank that are worth waiting for the others.
constexpr std::int64_t kWorthMeeting = std::int64_t{1} << 22;

// The axes over which ranks of this process may hold one copy of x: those it is whole over.
inline Axes whole_axes(const Context& context, const Sharding& x) {
  return shares_memory(context) ? dual(*context.mesh, x).partial : Axes{};
}

inline void add_axes(Axes& to, const Axes& more) {
  for (const Axis axis : more) {
    if (!to.contains(axis)) to.push_back(axis);
  }
}

// The ranks along `axes`, where there are more than one and their kernels let them multiply `dtype` together;
// else null.
inline std::unique_ptr<RankPartners> partners_over(Context& context, const Axes& axes, DType dtype) {
  if (!takes_partners(dtype) || context.mesh->product(axes) == 1) return nullptr;
  return std::make_unique<RankPartners>(context, axes);
}

}  // namespace switchyard
