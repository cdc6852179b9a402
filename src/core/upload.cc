#include "core/upload.h"

#include <algorithm>
#include <cstring>

namespace switchyard {
namespace {

constexpr std::size_t kSlots = 3;                               // one is filled, one is copied, one waits
constexpr std::int64_t kFilledAtOnce = std::int64_t{64} << 10;  // elements of a thread's piece

// Elements [first, first + count) of a tensor of the host, to `to`.
void fill_piece(const Tensor& from, DType dtype, std::int64_t first, std::int64_t count, std::byte* to) {
  if (from.dtype() == dtype) {
    const std::size_t element = size_of(dtype);
    std::memcpy(to, from.raw() + static_cast<std::size_t>(first) * element,
                static_cast<std::size_t>(count) * element);
  } else if (dtype == DType::bf16) {
    const float* const values = from.data<float>() + first;
    std::transform(values, values + count, reinterpret_cast<bfloat16*>(to),
                   [](float x) { return bfloat16(x); });
  } else {
    const bfloat16* const values = from.data<bfloat16>() + first;
    std::transform(values, values + count, reinterpret_cast<float*>(to),
                   [](bfloat16 x) { return static_cast<float>(x); });
  }
}

}  // namespace

Upload::Upload(const Memory& device, ThreadPool& pool, std::int64_t buffer_bytes)
    : pinned_(device), pool_(pool), buffer_bytes_(buffer_bytes), slots_(kSlots) {
  CHECK(device.device().is_gpu() && buffer_bytes > 0 && buffer_bytes % 64 == 0, "{}, {} bytes",
        device.device().name(), buffer_bytes);
}

// The buffers go back to a pool, whose next user writes to them.
Upload::~Upload() {
  try {
    finish();
  } catch (...) {  // a kernel failed, which the next work on the GPU reports
  }
}

Upload::Slot& Upload::next_slot() {
  Slot& slot = slots_[next_++ % slots_.size()];
  if (!slot.buffer.defined()) slot.buffer = pinned_.empty(DType::u8, {buffer_bytes_});
  if (slot.is_filled) slot.copied.wait();
  return slot;
}

Tensor Upload::send(const Tensor& host, DType dtype) {
  const Tensor there = pinned_.device().empty(dtype, host.shape());
  if (!there.abstract()) send(host, there.view());
  return there;
}

void Upload::send(const Tensor& host, const TensorView& there) {
  const DType dtype = there.dtype();
  CHECK(dtype == host.dtype() || (is_float(dtype) && is_float(host.dtype())), "{} to {}",
        name_of(host.dtype()), name_of(dtype));
  CHECK(there.size() == host.size() && there.is_contiguous(), "{} to {}", to_string(host.shape()),
        to_string(there.shape()));
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t most = std::max<std::int64_t>(1, buffer_bytes_ / element);
  for (std::int64_t first = 0; first < host.size(); first += most) {
    const std::int64_t count = std::min(most, host.size() - first);
    Slot& slot = next_slot();
    std::byte* const buffer = slot.buffer.raw();
    pool_.for_range(count, kFilledAtOnce, [&](std::int64_t begin, std::int64_t end) {
      fill_piece(host, dtype, first + begin, end - begin, buffer + begin * element);
    });
    const auto bytes = static_cast<std::size_t>(count * element);
    std::byte* const to = there.device_address() + first * element;
    if (there.device().kind() == DeviceKind::cuda) {
      gpu::Transfer::start(to, buffer, bytes).before_later_work();
      slot.copied = gpu::Moment::now_untimed();
      slot.is_filled = true;
    } else {
      std::memcpy(to, buffer, bytes);
    }
  }
}

void Upload::finish() {
  for (Slot& slot : slots_) {
    if (slot.is_filled) slot.copied.wait();
    slot.is_filled = false;
  }
}

}  // namespace switchyard
