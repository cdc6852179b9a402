// Partners: ranks of one process that do one product together, since all multiply with the same weights.
#pragma once

#include <functional>
#include <span>

namespace switchyard {

class Partners {
 public:
  virtual ~Partners() = default;
  // Every partner calls it, at the same place of its program. One of them, whichever, calls its `work` with
  // what all of them show, in their order, while the others wait; their cores are free for its loops.
  using Work = std::function<void(std::span<const void* const> shown)>;
  virtual void meet(const void* mine, const Work& work) = 0;
};

}  // namespace switchyard
