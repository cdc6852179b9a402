#include "core/tensor.h"

#include <fmt/ranges.h>
#include <sys/mman.h>

#include <cstring>

#include "core/buffer_pool.h"

namespace switchyard {
namespace {

// The process's tensor memory. Never destroyed: threads may free tensors until the very end.
BufferPool& pool() {
  static BufferPool* const instance = new BufferPool;
  return *instance;
}

// Where all abstract buffers lie: address space that no access survives, larger than any tensor.
std::byte* abstract_address() {
  constexpr std::size_t kReserved = std::size_t{1} << 40;
  static void* const address =
      mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    fail_runtime("[memory] cannot reserve {} bytes of address space; raise its limit (ulimit -v)", kReserved);
  return static_cast<std::byte*>(address);
}

}  // namespace

std::int64_t num_elements(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

Buffer::Buffer(std::size_t bytes)
    : Buffer(bytes, current_account() != nullptr && current_account()->abstract()) {}

std::shared_ptr<Buffer> Buffer::without_memory(std::size_t bytes) {
  return std::shared_ptr<Buffer>(new Buffer(bytes, true));
}

Buffer::Buffer(std::size_t bytes, bool abstract)
    : account_(charging() ? current_account() : nullptr),
      abstract_(abstract),
      data_(abstract_ ? abstract_address() : pool().take(bytes)),
      bytes_(bytes) {
  if (account_) account_->charge(static_cast<std::int64_t>(bytes_));
}

Buffer::~Buffer() {
  if (account_) account_->charge(-static_cast<std::int64_t>(bytes_));
  if (!abstract_) pool().give(data_, bytes_);
}

std::size_t memory_in_use() {
  return pool().in_use();
}
std::size_t memory_peak() {
  return pool().peak();
}
void reset_memory_peak() {
  pool().reset_peak();
}
std::size_t memory_extent() {
  return pool().extent();
}

Tensor::Tensor(DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::make_shared<Buffer>(bytes())) {}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset_bytes)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::move(buffer)), offset_(offset_bytes) {
  CHECK(offset_ + bytes() <= buffer_->bytes(), "offset {} + {} bytes in a buffer of {}", offset_, bytes(),
        buffer_->bytes());
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor t(dtype, std::move(shape));
  t.fill_zero();
  return t;
}

Tensor Tensor::without_memory(DType dtype, Shape shape) {
  const auto bytes = static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
  return {dtype, std::move(shape), Buffer::without_memory(bytes)};
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
  Tensor t(dtype_, shape_);
  if (bytes() > 0 && !t.abstract()) std::memcpy(t.raw(), raw(), bytes());
  return t;
}

Tensor Tensor::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  CHECK(is_float(dtype) && is_float(dtype_), "{} to {}", name_of(dtype_), name_of(dtype));
  Tensor t(dtype, shape_);
  if (t.abstract()) return t;
  const std::int64_t n = size();
  if (dtype == DType::bf16) {
    const float* from = data<float>();
    auto* to = t.data<bfloat16>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = bfloat16(from[i]);
  } else {
    const auto* from = data<bfloat16>();
    float* to = t.data<float>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
  }
  return t;
}

void Tensor::fill_zero() {
  if (bytes() > 0 && !abstract()) std::memset(raw(), 0, bytes());
}

}  // namespace switchyard
