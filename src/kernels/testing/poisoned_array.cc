#include "kernels/testing/poisoned_array.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

// A NaN in every half word, no two neighbours alike: a guard that was moved is not intact.
std::uint16_t guard_word(std::size_t i) {
  return static_cast<std::uint16_t>(0xffc0u | (i & 0x3fu));
}

std::uint8_t guard_byte(std::size_t i) {
  const std::uint16_t word = guard_word(i / 2);
  std::uint8_t bytes[2];
  std::memcpy(bytes, &word, 2);
  return bytes[i % 2];
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

constexpr std::align_val_t kAlignment{64};

// In whole pages, without the fence.
std::size_t in_pages(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

}  // namespace

FencedBytes::FencedBytes(std::size_t size, bool fenced) : data_(nullptr, Release{size, fenced}) {
  if (!fenced) {
    data_.reset(static_cast<std::uint8_t*>(::operator new(size, kAlignment)));
    return;
  }
  const std::size_t pages = in_pages(size);
  void* const start = ::mmap(nullptr, pages + page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED || ::mprotect(start, pages, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  data_.reset(static_cast<std::uint8_t*>(start) + pages - size);
}

FencedBytes::FencedBytes(const FencedBytes& other)
    : FencedBytes(other.size(), other.data_.get_deleter().fenced) {
  std::memcpy(data(), other.data(), size());
}

FencedBytes& FencedBytes::operator=(FencedBytes other) noexcept {
  data_ = std::move(other.data_);
  return *this;
}

void FencedBytes::Release::operator()(std::uint8_t* data) const {
  if (fenced) {
    ::munmap(data + size - in_pages(size), in_pages(size) + page_bytes());
  } else {
    ::operator delete(data, kAlignment);
  }
}

PoisonedArray::PoisonedArray(DType dtype, std::int64_t count)
    : dtype_(dtype), count_(count), bytes_(2 * kGuard + data_bytes(), false) {
  for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_.data()[i] = guard_byte(i);
  if (!is_float(dtype)) return;
  for (std::int64_t i = 0; i < count; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
}

PoisonedArray::PoisonedArray(const PoisonedArray& other, bool fenced)
    : dtype_(other.dtype_),
      count_(other.count_),
      bytes_(kGuard + data_bytes() + (fenced ? 0 : kGuard), fenced) {
  std::memcpy(bytes_.data(), other.bytes_.data(), kGuard + data_bytes());
}

PoisonedArray PoisonedArray::on(Device& device) const {
  PoisonedArray copied = *this;
  copied.there_ = std::make_shared<Buffer>(Memory(device, nullptr), bytes_.size());
  const auto size = static_cast<std::int64_t>(bytes_.size());
  copy(TensorView::of_host(bytes_.data(), {size}), {DType::u8, {size}, copied.there_->data(), device});
  return copied;
}

void PoisonedArray::read_back() {
  const auto size = static_cast<std::int64_t>(bytes_.size());
  copy({DType::u8, {size}, there_->data(), there_->device()}, TensorView::of_host(bytes_.data(), {size}));
}

TensorView PoisonedArray::view(const Shape& shape) const {
  if (!there_) return TensorView::of_host(dtype(), data(), shape);
  const TensorView all(DType::u8, {static_cast<std::int64_t>(bytes_.size())}, there_->data(),
                       there_->device());
  return all.as(dtype(), static_cast<std::int64_t>(kGuard), shape);
}

PoisonedArray PoisonedArray::integers(DType dtype, std::int64_t count, std::uint32_t seed, int limit) {
  PoisonedArray result(dtype, count);
  std::mt19937 generator(seed);
  const auto range = static_cast<std::uint32_t>(2 * limit + 1);
  for (std::int64_t i = 0; i < count; ++i)
    result.set(i, static_cast<float>(static_cast<int>(generator() % range) - limit));
  return result;
}

PoisonedArray PoisonedArray::fractions(DType dtype, std::int64_t count, std::uint32_t seed, int bits) {
  PoisonedArray result = integers(dtype, count, seed, (1 << bits) - 1);
  for (std::int64_t i = 0; i < count; ++i) result.set(i, std::ldexp(result.at(i), -bits));
  return result;
}

PoisonedArray PoisonedArray::normal(DType dtype, std::int64_t count, std::uint32_t seed, float scale) {
  PoisonedArray result(dtype, count);
  std::mt19937 generator(seed);
  std::normal_distribution<float> draw(0.0f, scale);
  for (std::int64_t i = 0; i < count; ++i) result.set(i, draw(generator));
  return result;
}

float PoisonedArray::at(std::int64_t i) const {
  if (dtype_ == DType::f32) return floats()[i];
  return static_cast<float>(static_cast<const bfloat16*>(data())[i]);
}

void PoisonedArray::set(std::int64_t i, float value) {
  if (dtype_ == DType::f32) {
    floats()[i] = value;
  } else {
    static_cast<bfloat16*>(data())[i] = bfloat16(value);
  }
}

double PoisonedArray::value(std::int64_t i) const {
  if (dtype_ == DType::i32) return static_cast<const std::int32_t*>(data())[i];
  if (dtype_ == DType::f64) return static_cast<const double*>(data())[i];
  if (dtype_ == DType::i8) return static_cast<const std::int8_t*>(data())[i];
  return static_cast<double>(at(i));
}

bool PoisonedArray::operator==(const PoisonedArray& other) const {
  return dtype_ == other.dtype_ && count_ == other.count_ && guards_intact() && other.guards_intact() &&
         std::memcmp(data(), other.data(), data_bytes()) == 0;
}

bool PoisonedArray::guards_intact() const {
  const auto intact = [&](std::size_t begin, std::size_t end) {
    for (; begin < end; ++begin) {
      if (bytes_.data()[begin] != guard_byte(begin)) return false;
    }
    return true;
  };
  return intact(0, kGuard) && intact(kGuard + data_bytes(), bytes_.size());
}

std::optional<std::int64_t> first_difference(const PoisonedArray& found, const PoisonedArray& expected,
                                             const Bound& bound, std::span<const double> rounding) {
  CHECK(found.size() == expected.size(), "{} and {} elements", found.size(), expected.size());
  for (std::int64_t i = 0; i < found.size(); ++i) {
    const double x = found.value(i), y = expected.value(i);
    const double allowed = bound.relative * std::abs(y) + bound.absolute +
                           (rounding.empty() ? 0.0 : rounding[static_cast<std::size_t>(i)]);
    if (x != y && !(std::abs(x - y) <= allowed)) return i;
  }
  return std::nullopt;
}

}  // namespace switchyard
