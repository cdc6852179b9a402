#include "ops/shared_result.h"

#include <algorithm>
#include <utility>

namespace switchyard {

std::shared_ptr<Buffer> shared_buffer(std::size_t bytes) {
  const UnchargedScope everyone_is_charged_by_charged_here;
  auto buffer = std::make_shared<Buffer>(bytes);
  buffer->make_read_only();
  return buffer;
}

std::shared_ptr<Buffer> charged_here(std::shared_ptr<Buffer> buffer, std::int64_t also) {
  const auto bytes = static_cast<std::int64_t>(buffer->bytes());
  std::shared_ptr<MemoryAccount> account = charging() ? current_account() : nullptr;
  if (account) {
    account->charge(bytes + also);
    account->charge(-also);
  }
  Buffer* const address = buffer.get();
  return {address, [buffer = std::move(buffer), account = std::move(account), bytes](Buffer*) mutable {
            if (account) account->charge(-bytes);
            buffer.reset();
          }};
}

Tensor made_together(Context& context, const Axes& axes, DType dtype, const Shape& shape,
                     const MakeShare& make) {
  const Group group = context.group(axes);
  const std::int64_t size = num_elements(shape), ranks = std::ssize(group.ranks);
  const std::int64_t share = (size + ranks - 1) / ranks;
  const auto bytes = static_cast<std::size_t>(size) * size_of(dtype);
  const auto made = std::static_pointer_cast<Buffer>(context.comm->make_together(
      group, joined(axes), [&] { return shared_buffer(bytes); },
      [&](void* buffer) {
        const std::int64_t begin = std::min(size, share * group.index);
        make(static_cast<Buffer*>(buffer)->data(), begin, std::min(size, begin + share));
      }));
  return {dtype, shape, charged_here(made)};
}

}  // namespace switchyard
