#include "core/tensor.h"

#include <fmt/ranges.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace switchyard {
namespace {
std::atomic<std::size_t> in_use{0};
std::atomic<std::size_t> peak{0};
constexpr std::size_t kAlignment = 64;
}  // namespace

std::int64_t num_elements(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

Buffer::Buffer(std::size_t bytes) : data_(nullptr), bytes_(bytes) {
  const std::size_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;  // never 0
  data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (data_ == nullptr) fail_runtime("[memory] out of memory: {} bytes asked, {} in use", bytes, in_use.load());
  const std::size_t now = in_use.fetch_add(bytes_) + bytes_;
  std::size_t seen = peak.load();
  while (seen < now && !peak.compare_exchange_weak(seen, now)) {
  }
}

Buffer::~Buffer() {
  in_use.fetch_sub(bytes_);
  std::free(data_);
}

std::size_t memory_in_use() { return in_use.load(); }
std::size_t memory_peak() { return peak.load(); }
void reset_memory_peak() { peak.store(in_use.load()); }

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

Tensor Tensor::reshaped(Shape shape) const {
  CHECK(num_elements(shape) == size(), "{} as {}", to_string(shape_), to_string(shape));
  Tensor t = *this;
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::slice_rows(std::int64_t begin, std::int64_t end) const {
  CHECK(rank() >= 1 && begin >= 0 && begin <= end && end <= dim(0), "rows [{},{}) of {}", begin, end, to_string(shape_));
  Tensor t = *this;
  t.shape_[0] = 1;
  const auto row_bytes = static_cast<std::size_t>(num_elements(t.shape_)) * size_of(dtype_);
  t.shape_[0] = end - begin;
  t.offset_ += static_cast<std::size_t>(begin) * row_bytes;
  return t;
}

Tensor Tensor::clone() const {
  Tensor t(dtype_, shape_);
  if (bytes() > 0) std::memcpy(t.raw(), raw(), bytes());
  return t;
}

Tensor Tensor::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  CHECK(is_float(dtype) && is_float(dtype_), "{} to {}", name_of(dtype_), name_of(dtype));
  Tensor t(dtype, shape_);
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
  if (bytes() > 0) std::memset(raw(), 0, bytes());
}

}  // namespace switchyard
