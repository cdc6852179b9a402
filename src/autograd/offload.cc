#include "autograd/offload.h"

#include "autograd/array.h"

namespace switchyard {
namespace {

void start_back(Context& context, OffloadGroup& group) {
  if (std::exchange(group.comes_back, true)) return;
  for (const std::weak_ptr<Value>& weak : group.values) {
    const std::shared_ptr<Value> value = weak.lock();
    // A value whose device data is still held does not have to come back.
    if (value == nullptr || value->offloaded == nullptr || !value->buffer.expired()) continue;
    value->offloaded->arriving.emplace(*context.offload, value->offloaded->host);
    value->offloaded->host = Tensor();
  }
}

}  // namespace

void offload(Context& context, const std::shared_ptr<Value>& value,
             const std::shared_ptr<OffloadGroup>& group) {
  const std::shared_ptr<Buffer> buffer = value->buffer.lock();
  CHECK(buffer != nullptr && value->offloaded == nullptr, "a value to offload that is gone, or offloaded");
  const Tensor here(value->info.dtype, value->info.local, buffer, value->offset_bytes);
  const Tensor host = context.offload->empty(here.dtype(), here.shape());
  context.offload->send(here, host);
  value->offloaded = std::make_shared<OffloadedValue>(OffloadedValue{host, std::nullopt, group});
  group->values.push_back(value);
}

Tensor bring_back(Context& context, Value& value) {
  const std::shared_ptr<OffloadedValue> offloaded = std::move(value.offloaded);
  context.offload->let_go();
  start_back(context, *offloaded->group);
  if (!offloaded->arriving) offloaded->arriving.emplace(*context.offload, offloaded->host);
  Tensor here = offloaded->arriving->arrived();
  value.buffer = here.buffer();
  value.offset_bytes = 0;
  if (const auto before = offloaded->group->before.lock()) start_back(context, *before);
  return here;
}

}  // namespace switchyard
