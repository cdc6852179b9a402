#include "ops/shared_result.h"

#include <algorithm>
#include <utility>

namespace switchyard {

bool shares_memory(const Context& context) {
  return !context.abstract() && context.comm->shares_memory();
}

std::shared_ptr<Buffer> shared_buffer(std::size_t bytes) {
  const UnchargedScope everyone_is_charged_by_charged_here;
  auto buffer = std::make_shared<Buffer>(bytes);
  buffer->make_read_only();
  return buffer;
}

std::shared_ptr<Buffer> charged_here(std::shared_ptr<Buffer> buffer, std::size_t bytes, std::size_t also) {
  const auto held = static_cast<std::int64_t>(bytes);
  std::shared_ptr<MemoryAccount> account = charging() ? current_account() : nullptr;
  if (account) account->charge(held);
  charge_for_a_moment(also);
  Buffer* const address = buffer.get();
  return {address, [buffer = std::move(buffer), account = std::move(account), held](Buffer*) mutable {
            if (account) account->charge(-held);
            buffer.reset();
          }};
}

void charge_for_a_moment(std::size_t bytes) {
  if (!charging() || current_account() == nullptr) return;
  current_account()->charge(static_cast<std::int64_t>(bytes));
  current_account()->charge(-static_cast<std::int64_t>(bytes));
}

namespace {

// One buffer for all ranks along `axes`; each makes its share of `size` elements.
std::shared_ptr<Buffer> buffer_together(Context& context, const Axes& axes, std::size_t bytes,
                                        std::int64_t size, const MakeShare& make) {
  const Group group = context.group(axes);
  const std::int64_t ranks = std::ssize(group.ranks), share = (size + ranks - 1) / ranks;
  const auto place = [&](void* buffer) {
    const std::int64_t begin = std::min(size, share * group.index);
    make(static_cast<Buffer*>(buffer)->data(), begin, std::min(size, begin + share));
  };
  return std::static_pointer_cast<Buffer>(context.comm->make_together(
      group, joined(axes), [&] { return shared_buffer(bytes); }, place));
}

}  // namespace

Tensor made_together(Context& context, const Axes& axes, DType dtype, const Shape& shape,
                     const MakeShare& make) {
  const std::int64_t size = num_elements(shape);
  const std::size_t bytes = static_cast<std::size_t>(size) * size_of(dtype);
  return {dtype, shape, charged_here(buffer_together(context, axes, bytes, size, make), bytes)};
}

}  // namespace switchyard
