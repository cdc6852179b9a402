#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "core/error.h"
#include "core/half.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;

// Shape x element size in bytes; an error when the product overflows or is no whole number of bytes.
std::uint64_t checked_bytes(const SafetensorsHeader::Item& item, const std::string& name,
                            const std::string& path) {
  std::uint64_t bits = safetensors_element_bits(item.dtype);
  if (bits == 0)
    fail_usage("[safetensors] {}: tensor {} has unknown dtype {}", path, in_quotes(name),
               in_quotes(item.dtype));
  if (item.shape.size() > kMostDims)
    fail_usage("[safetensors] {}: expected at most {} dims, got {} of tensor {}", path, kMostDims,
               item.shape.size(), in_quotes(name));
  bool zero = false;
  for (std::uint64_t d : item.shape) {
    zero = zero || d == 0;
    // Zero dimensions are left out so that a product of the others that overflows is still seen.
    if (d != 0 && __builtin_mul_overflow(bits, d, &bits))
      fail_usage("[safetensors] {}: shape of tensor {} overflows 64 bits", path, in_quotes(name));
  }
  if (zero) return 0;
  if (bits % 8 != 0)
    fail_usage("[safetensors] {}: tensor {} of {} does not end at a whole byte", path, in_quotes(name),
               item.dtype);
  return bits / 8;
}

// Entries need not be aligned in the file, so every element is copied out.
template <typename From, typename To, typename Convert>
Tensor converted(const SafetensorsFile::Entry& entry, Convert convert) {
  Tensor out(dtype_of<To>::value, entry.shape);
  To* to = out.data<To>();
  const std::size_t n = entry.bytes.size() / sizeof(From);
  for (std::size_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, entry.bytes.data() + i * sizeof(From), sizeof(From));
    to[i] = convert(value);
  }
  return out;
}

Tensor copied(const SafetensorsFile::Entry& entry, DType dtype) {
  Tensor out(dtype, entry.shape);
  if (!entry.bytes.empty()) std::memcpy(out.raw(), entry.bytes.data(), entry.bytes.size());
  return out;
}

}  // namespace

std::size_t safetensors_element_bits(const std::string& dtype) {
  static const std::map<std::string, std::size_t> bits = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"F8_E4M3", 8},    {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"I16", 16},    {"U16", 16},    {"F16", 16},        {"BF16", 16},      {"I32", 32},    {"U32", 32},
      {"F32", 32},    {"F64", 64},    {"I64", 64},        {"U64", 64},       {"C64", 64},    {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? 0 : found->second;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  const MappedFile mapped = map_file(path, "safetensors");
  file.storage_ = mapped.memory;
  file.mapped_ = true;
  file.parse_all(mapped.bytes);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  SafetensorsFile file;
  file.path_ = name;
  const auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  file.storage_ = std::shared_ptr<const void>(copy, copy->data());
  file.parse_all(*copy);
  return file;
}

void SafetensorsFile::parse_all(std::span<const std::byte> file) {
  if (file.size() < 8) fail_usage("[safetensors] {}: {} bytes, expected at least 8", path_, file.size());
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = (length << 8) | std::to_integer<std::uint64_t>(file[i]);
  if (length > kMaxHeader) {
    fail_usage("[safetensors] {}: header of {} bytes, expected at most {}", path_, length, kMaxHeader);
  }
  if (length > file.size() - 8) {
    fail_usage("[safetensors] {}: header of {} bytes in a file of {}: truncated", path_, length, file.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  SafetensorsHeader header = parse_safetensors_header(text, path_);
  metadata_ = std::move(header.metadata);
  const auto data = file.subspan(8 + length);

  std::vector<std::pair<std::array<std::uint64_t, 2>, const std::string*>> order;
  for (auto& [name, item] : header.items) {
    const std::uint64_t bytes = checked_bytes(item, name, path_);
    const std::uint64_t begin = item.offsets[0], end = item.offsets[1];
    if (begin > end || end > data.size()) {
      fail_usage("[safetensors] {}: offsets [{}, {}) of tensor {} are not inside the {} bytes of data", path_,
                 begin, end, in_quotes(name), data.size());
    }
    if (end - begin != bytes) {
      fail_usage("[safetensors] {}: tensor {} takes {} bytes by its shape and dtype {}, its offsets say {}",
                 path_, in_quotes(name), bytes, item.dtype, end - begin);
    }
    order.push_back({{begin, end}, &name});
    entries_[name] = {item.dtype, Shape(item.shape.begin(), item.shape.end()), data.subspan(begin, bytes)};
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, *a.second) < std::tie(b.first, *b.second);
  });
  std::uint64_t expected = 0;
  for (const auto& [range, name] : order) {
    if (range[0] != expected) {
      fail_usage("[safetensors] {}: tensor {} begins at byte {} of the data, expected {} ({})", path_,
                 in_quotes(*name), range[0], expected, range[0] < expected ? "tensors overlap" : "a hole");
    }
    expected = range[1];
  }
  if (expected != data.size()) {
    fail_usage("[safetensors] {}: {} bytes follow the last tensor", path_, data.size() - expected);
  }
}

SafetensorsFile::Entry SafetensorsFile::rows_of(const std::string& name, std::int64_t begin,
                                                std::int64_t end) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_usage("[safetensors] {}: no tensor {}", path_, in_quotes(name));
  Entry entry = found->second;
  if (entry.shape.empty()) return entry;
  CHECK(0 <= begin && begin <= end && end <= entry.shape[0], "rows [{}, {}) of {} {}", begin, end, name,
        to_string(entry.shape));
  const auto rows = static_cast<std::size_t>(entry.shape[0]), first = static_cast<std::size_t>(begin);
  const std::size_t row = rows == 0 ? 0 : entry.bytes.size() / rows;
  entry.shape[0] = end - begin;
  entry.bytes = entry.bytes.subspan(first * row, static_cast<std::size_t>(end - begin) * row);
  return entry;
}

void SafetensorsFile::release(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;
  release_rows(name, 0, found->second.shape.empty() ? 0 : found->second.shape[0]);
}

void SafetensorsFile::release_rows(const std::string& name, std::int64_t first, std::int64_t last) const {
  if (!mapped_) return;
  release_pages(rows_of(name, first, last).bytes);
}

Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_usage("[safetensors] {}: no tensor {}", path_, in_quotes(name));
  return read_entry(found->second, name);
}

Tensor SafetensorsFile::read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  return read_entry(rows_of(name, begin, end), name);
}

Tensor SafetensorsFile::read_entry(const Entry& entry, const std::string& name) const {
  const std::string& type = entry.dtype;
  const auto narrow = [&](auto value) {
    if (!std::in_range<std::int32_t>(value)) {
      fail_usage("[safetensors] {}: tensor {} holds {}, which does not fit in 32 bits", path_,
                 in_quotes(name), value);
    }
    return static_cast<std::int32_t>(value);
  };
  if (type == "F32") return copied(entry, DType::f32);
  if (type == "BF16") return copied(entry, DType::bf16);
  if (type == "I32") return copied(entry, DType::i32);
  if (type == "U8" || type == "BOOL") return copied(entry, DType::u8);
  if (type == "F16") return converted<std::uint16_t, float>(entry, half_to_float);
  if (type == "F64") return converted<double, float>(entry, [](double v) { return static_cast<float>(v); });
  if (type == "I64") return converted<std::int64_t, std::int32_t>(entry, narrow);
  if (type == "U32") return converted<std::uint32_t, std::int32_t>(entry, narrow);
  if (type == "U16") return converted<std::uint16_t, std::int32_t>(entry, narrow);
  fail_usage(
      "[safetensors] {}: tensor {} is {}; F32, BF16, F16, F64, I32, I64, U32, U16, U8 and BOOL can be read",
      path_, in_quotes(name), type);
}

}  // namespace switchyard
