#include "convert/values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::size_t kBlock = 4096;  // elements decoded at a time

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void decode_as(const std::byte* from, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<double>(load<T>(from + i * sizeof(T)));
}

void decode_bf16(const std::byte* from, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(from + 2 * i)) << 16);
}

// Decodes a small float with `exponent` and `mantissa` bits after its sign. With `infinite` the highest
// exponent means infinity and NaN; without, only all ones mean NaN (E4M3).
double small_float(std::uint32_t bits, int exponent, int mantissa, bool infinite) {
  const std::uint32_t all = (1u << exponent) - 1, e = (bits >> mantissa) & all;
  const std::uint32_t m = bits & ((1u << mantissa) - 1);
  const bool negative = (bits >> (exponent + mantissa)) & 1;
  const int bias = static_cast<int>(all >> 1);
  double value = 0;
  if (e == all && infinite)
    value = m == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  else if (e == all && m == (1u << mantissa) - 1)
    value = std::numeric_limits<double>::quiet_NaN();
  else if (e == 0)
    value = std::ldexp(m, 1 - bias - mantissa);
  else
    value = std::ldexp(m | (1u << mantissa), static_cast<int>(e) - bias - mantissa);
  return negative ? -value : value;
}

void decode_f16(const std::byte* from, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = small_float(load<std::uint16_t>(from + 2 * i), 5, 10, true);
}
void decode_e4m3(const std::byte* from, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = small_float(load<std::uint8_t>(from + i), 4, 3, false);
}
void decode_e5m2(const std::byte* from, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = small_float(load<std::uint8_t>(from + i), 5, 2, true);
}

using Decode = void (*)(const std::byte*, std::size_t, double*);

Decode decoder_of(const std::string& dtype) {
  static const std::map<std::string, Decode> decoders{{"F64", decode_as<double>},
                                                      {"F32", decode_as<float>},
                                                      {"F16", decode_f16},
                                                      {"BF16", decode_bf16},
                                                      {"F8_E4M3", decode_e4m3},
                                                      {"F8_E5M2", decode_e5m2},
                                                      {"I64", decode_as<std::int64_t>},
                                                      {"I32", decode_as<std::int32_t>},
                                                      {"I16", decode_as<std::int16_t>},
                                                      {"I8", decode_as<std::int8_t>},
                                                      {"U64", decode_as<std::uint64_t>},
                                                      {"U32", decode_as<std::uint32_t>},
                                                      {"U16", decode_as<std::uint16_t>},
                                                      {"U8", decode_as<std::uint8_t>},
                                                      {"BOOL", decode_as<std::uint8_t>}};
  const auto found = decoders.find(dtype);
  return found == decoders.end() ? nullptr : found->second;
}

// Visits the elements of a tensor as doubles, in blocks.
class Reader {
 public:
  Reader(const std::string& dtype, std::span<const std::byte> bytes)
      : decode_(decoder_of(dtype)), size_(safetensors_element_bits(dtype) / 8), bytes_(bytes) {
    CHECK(decode_ != nullptr, "dtype {}", dtype);
  }
  std::size_t elements() const { return bytes_.size() / size_; }
  std::span<const double> block(std::size_t first) {
    const std::size_t count = std::min(kBlock, elements() - first);
    decode_(bytes_.data() + first * size_, count, values_.data());
    return {values_.data(), count};
  }

 private:
  Decode decode_;
  std::size_t size_;
  std::span<const std::byte> bytes_;
  std::array<double, kBlock> values_;
};

// The nearest bfloat16, ties to even.
double in_bf16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return value;
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

Statistics of_block(std::span<const double> values) {
  Statistics s;
  double sum = 0;
  for (double v : values) {
    if (!std::isfinite(v)) {
      ++s.non_finite;
      continue;
    }
    ++s.finite;
    sum += v;
    s.minimum = std::min(s.minimum, v);
    s.maximum = std::max(s.maximum, v);
  }
  if (s.finite == 0) return s;
  s.mean = sum / static_cast<double>(s.finite);
  for (double v : values) {
    if (std::isfinite(v)) s.squares += (v - s.mean) * (v - s.mean);
  }
  return s;
}

}  // namespace

bool is_numeric_dtype(const std::string& dtype) {
  return decoder_of(dtype) != nullptr;
}

// Chan, Golub and LeVeque's way to join means and squared deviations of two sets.
void Statistics::add(const Statistics& other) {
  non_finite += other.non_finite;
  if (other.finite == 0) return;
  const auto n = static_cast<double>(finite), m = static_cast<double>(other.finite);
  const double apart = other.mean - mean;
  mean += apart * m / (n + m);
  squares += other.squares + apart * apart * n * m / (n + m);
  finite += other.finite;
  minimum = std::min(minimum, other.minimum);
  maximum = std::max(maximum, other.maximum);
}

double Statistics::deviation() const {
  return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

Statistics statistics_of(const std::string& dtype, std::span<const std::byte> bytes) {
  Statistics all;
  Reader reader(dtype, bytes);
  for (std::size_t i = 0; i < reader.elements(); i += kBlock) all.add(of_block(reader.block(i)));
  return all;
}

Difference difference_of(const std::string& dtype_a, std::span<const std::byte> a, const std::string& dtype_b,
                         std::span<const std::byte> b) {
  Reader of_a(dtype_a, a), of_b(dtype_b, b);
  CHECK(of_a.elements() == of_b.elements(), "{} and {} elements", of_a.elements(), of_b.elements());
  Difference d;
  d.elements = static_cast<std::int64_t>(of_a.elements());
  if (dtype_a == dtype_b && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0)) return d;
  double largest = 0;
  for (std::size_t i = 0; i < of_a.elements(); i += kBlock) {
    const auto x = of_a.block(i), y = of_b.block(i);
    for (std::size_t k = 0; k < x.size(); ++k) {
      for (double v : {std::abs(x[k]), std::abs(y[k])}) {
        if (std::isfinite(v)) largest = std::max(largest, v);
      }
      if (x[k] == y[k] || (std::isnan(x[k]) && std::isnan(y[k]))) continue;
      ++d.differing;
      d.differing_in_bf16 += in_bf16(x[k]) != in_bf16(y[k]);
      const double apart = std::abs(x[k] - y[k]);
      d.max_abs = std::isfinite(apart) ? std::max(d.max_abs, apart) : std::numeric_limits<double>::infinity();
    }
  }
  d.max_rel = d.differing == 0 ? 0 : d.max_abs / largest;
  return d;
}

}  // namespace switchyard
