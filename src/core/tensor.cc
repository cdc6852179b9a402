#include "core/tensor.h"

#include <fmt/ranges.h>

#include <cstring>

#include "core/current_memory.h"
#include "core/fence.h"
#include "core/gpu.h"
#include "core/graph_recording.h"

namespace switchyard {

std::int64_t num_elements(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

void no_gpu_kernel(const TensorView& view) {
  const std::string_view op = running_op();
  fail_runtime("[{}] device {} has no kernel for this: {} {}", op.empty() ? "kernel" : op,
               view.device().name(), name_of(view.dtype()), to_string(view.shape()));
}

HostAccess::HostAccess(std::string_view device)
    : Error(Kind::runtime, fmt::format("[{}] the host touched memory of the device", device)) {}

Buffer::Buffer(const Memory& memory, std::size_t bytes)
    : memory_(memory), data_(memory_.device().allocate(bytes)), bytes_(bytes) {
  if (memory_.account()) memory_.account()->charge(static_cast<std::int64_t>(bytes_));
}

namespace {

Memory memory_for_scratch() {
  const Memory now = current_memory();
  return {now.device().is_abstract() ? Device::abstract() : Device::cpu(), now.account()};
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : Buffer(memory_for_scratch(), bytes) {}

// Nothing writes to a read-only buffer; the return type of data() cannot express that.
Buffer::Buffer(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
    : owner_(std::move(owner)),
      read_only_(true),
      data_(const_cast<std::byte*>(bytes.data())),
      bytes_(bytes.size()) {
  CHECK(owner_ != nullptr, "memory without an owner");
}

Buffer::~Buffer() {
  if (owner_) return;
  if (memory_.account()) memory_.account()->charge(-static_cast<std::int64_t>(bytes_));
  device().release(data_, bytes_);
}

Tensor::Tensor(DType dtype, Shape shape) : Tensor(Memory(), dtype, std::move(shape)) {}

Tensor::Tensor(const Memory& memory, DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::make_shared<Buffer>(memory, bytes())) {}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset_bytes)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::move(buffer)), offset_(offset_bytes) {
  CHECK(offset_ + bytes() <= buffer_->bytes(), "offset {} + {} bytes in a buffer of {}", offset_, bytes(),
        buffer_->bytes());
}

Tensor Memory::empty(DType dtype, const Shape& shape) const {
  return {*this, dtype, shape};
}

Tensor Memory::zeros(DType dtype, const Shape& shape) const {
  Tensor t(*this, dtype, shape);
  t.fill_zero();
  return t;
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor t(dtype, std::move(shape));
  t.fill_zero();
  return t;
}

Tensor Tensor::reshaped(Shape shape) const {
  CHECK(num_elements(shape) == size(), "{} as {}", to_string(shape_), to_string(shape));
  Tensor t = *this;
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::slice_rows(std::int64_t begin, std::int64_t end) const {
  CHECK(rank() >= 1 && begin >= 0 && begin <= end && end <= dim(0), "rows [{},{}) of {}", begin, end,
        to_string(shape_));
  Tensor t = *this;
  t.shape_[0] = 1;
  const auto row_bytes = static_cast<std::size_t>(num_elements(t.shape_)) * size_of(dtype_);
  t.shape_[0] = end - begin;
  t.offset_ += static_cast<std::size_t>(begin) * row_bytes;
  return t;
}

Tensor Tensor::clone() const {
  Tensor t(memory(), dtype_, shape_);
  copy(view(), t.view());
  return t;
}

Tensor Tensor::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  CHECK(is_float(dtype) && is_float(dtype_), "{} to {}", name_of(dtype_), name_of(dtype));
  Tensor t(memory(), dtype, shape_);
  if (t.abstract()) return t;
  if (memory().device().is_gpu()) {
    copy(to_host(*this).cast(dtype).view(), t.view());
    return t;
  }
  const std::int64_t n = size();
  if (dtype == DType::bf16) {
    const float* from = view().kernel_data<float>();
    auto* to = t.view().kernel_data<bfloat16>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = bfloat16(from[i]);
  } else {
    const auto* from = view().kernel_data<bfloat16>();
    float* to = t.view().kernel_data<float>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
  }
  return t;
}

void Tensor::fill_zero() {
  if (bytes() == 0 || abstract()) return;
  std::byte* const to = view().device_address();
  const DeviceKind kind = memory().device().kind();
  if (kind == DeviceKind::cuda)
    gpu::fill_zero(to, bytes());
  else if (kind == DeviceKind::cuda_emulated)
    gpu::do_or_record([to, count = bytes()] { std::memset(to, 0, count); });
  else
    std::memset(to, 0, bytes());
}

void copy(const TensorView& from, const TensorView& to) {
  CHECK(from.bytes() == to.bytes() && from.is_contiguous() && to.is_contiguous(), "{} bytes to {}",
        from.bytes(), to.bytes());
  if (from.bytes() == 0 || from.is_abstract() || to.is_abstract()) return;
  const auto is_cuda = [](const TensorView& x) { return x.device().kind() == DeviceKind::cuda; };
  if (is_cuda(from) && is_cuda(to))
    return gpu::move(to.device_address(), from.device_address(), from.bytes());
  if (is_cuda(from) || is_cuda(to))
    return gpu::copy(to.device_address(), from.device_address(), from.bytes());
  const auto move = [to = to.device_address(), from = from.device_address(), count = from.bytes()] {
    std::memcpy(to, from, count);
  };
  if (from.on_gpu() && to.on_gpu()) return gpu::do_or_record(move);
  if (from.on_gpu() || to.on_gpu()) gpu::forbid_in_graph("a copy to the host or from it");
  move();
}

Tensor to_host(const Tensor& x) {
  if (x.memory().device().is_host() || x.abstract()) return x;
  Tensor host(Memory(), x.dtype(), x.shape());
  copy(x.view(), host.view());
  return host;
}

Tensor to_device(const Memory& memory, const Tensor& host) {
  if (&memory.device() == &host.memory().device()) return host;
  Tensor there(memory, host.dtype(), host.shape());
  copy(host.view(), there.view());
  return there;
}

}  // namespace switchyard
