#include "ops/shared_result.h"

#include <algorithm>
#include <utility>

namespace switchyard {

bool shares_memory(const Context& context) {
  return context.comm->shared_memory() != nullptr;
}

std::shared_ptr<Buffer> shared_buffer(const Context& context, std::size_t bytes) {
  auto buffer = std::make_shared<Buffer>(context.memory.uncharged(), bytes);
  buffer->make_read_only();
  return buffer;
}

std::shared_ptr<Buffer> charged_here(const Context& context, std::shared_ptr<Buffer> buffer,
                                     std::size_t bytes, std::size_t also) {
  const auto held = static_cast<std::int64_t>(bytes);
  context.memory.charge(held);
  charge_for_a_moment(context, also);
  Buffer* const address = buffer.get();
  return {address, [buffer = std::move(buffer), memory = context.memory, held](Buffer*) mutable {
            memory.charge(-held);
            buffer.reset();
          }};
}

void charge_for_a_moment(const Context& context, std::size_t bytes) {
  context.memory.charge(static_cast<std::int64_t>(bytes));
  context.memory.charge(-static_cast<std::int64_t>(bytes));
}

Tensor made_together(Context& context, const Axes& axes, DType dtype, const Shape& shape,
                     const MakeShare& make) {
  const ProcessGroup& group = context.group(axes);
  const std::int64_t size = num_elements(shape), ranks = group.size(), share = (size + ranks - 1) / ranks;
  const std::size_t bytes = static_cast<std::size_t>(size) * size_of(dtype);
  const auto place = [&](void* made) {
    auto& buffer = *static_cast<Buffer*>(made);
    const std::int64_t begin = std::min(size, share * group.index);
    make({dtype, {size}, buffer.data(), buffer.device()}, begin, std::min(size, begin + share));
  };
  const auto buffer = std::static_pointer_cast<Buffer>(context.comm->shared_memory()->make_together(
      group, [&] { return shared_buffer(context, bytes); }, place));
  return {dtype, shape, charged_here(context, buffer, bytes)};
}

}  // namespace switchyard
