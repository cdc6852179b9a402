#include "gguf/gguf_file.h"

#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kMostKeyBytes = 65535, kMostNameBytes = 4096;
constexpr std::uint32_t kMostGgufDims = 4, kDefaultAlignment = 32, kMostAlignment = 1 << 20;

enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  list,
  u64,
  i64,
  f64
};

// Bytes of one in a file; at least, of a string.
std::uint64_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    default:
      return 8;
  }
}

}  // namespace

// What is left of a file's header.
class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  std::size_t position() const { return position_; }
  std::uint64_t left() const { return file_.size() - position_; }

  template <typename T>
  T number(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, file_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }
  std::string string(std::string_view what, std::uint64_t most) {
    const auto length = number<std::uint64_t>(what);
    if (length > most)
      fail_usage("[gguf] {}: {} of {} bytes, expected at most {}", path_, what, length, most);
    need(length, what);
    std::string text(reinterpret_cast<const char*>(file_.data()) + position_, length);
    position_ += length;
    return text;
  }
  // A number of things of at least `each` bytes.
  std::uint64_t count(std::string_view what, std::uint64_t each) {
    const auto number_of = number<std::uint64_t>(what);
    if (number_of > left() / each)
      fail_usage("[gguf] {}: {} {} in the {} bytes that are left: truncated or broken", path_, number_of,
                 what, left());
    return number_of;
  }
  json value(ValueType type, const std::string& key) {
    switch (type) {
      case ValueType::u8:
        return number<std::uint8_t>(key);
      case ValueType::i8:
        return number<std::int8_t>(key);
      case ValueType::u16:
        return number<std::uint16_t>(key);
      case ValueType::i16:
        return number<std::int16_t>(key);
      case ValueType::u32:
        return number<std::uint32_t>(key);
      case ValueType::i32:
        return number<std::int32_t>(key);
      case ValueType::f32:
        return number<float>(key);
      case ValueType::boolean: {
        const auto value = number<std::uint8_t>(key);
        if (value > 1) fail_usage("[gguf] {}: {} is {}, expected 0 or 1", path_, in_quotes(key), value);
        return value == 1;
      }
      case ValueType::string:
        return string(key, std::numeric_limits<std::uint64_t>::max());
      case ValueType::u64:
        return number<std::uint64_t>(key);
      case ValueType::i64:
        return number<std::int64_t>(key);
      case ValueType::f64:
        return number<double>(key);
      case ValueType::list:
        return list(key);
    }
    fail_usage("[gguf] {}: {} has the unknown type {}", path_, in_quotes(key),
               static_cast<std::uint32_t>(type));
  }

 private:
  void need(std::uint64_t bytes, std::string_view what) const {
    if (bytes > left())
      fail_usage("[gguf] {}: truncated: {} needs {} bytes at {}, the file has {}", path_, in_quotes(what),
                 bytes, position_, file_.size());
  }
  json list(const std::string& key) {
    const auto type = static_cast<ValueType>(number<std::uint32_t>(key));
    if (type == ValueType::list) fail_usage("[gguf] {}: {} is a list of lists", path_, in_quotes(key));
    const std::uint64_t size = count("values of " + in_quotes(key), least_bytes(type));
    json values = json::array();
    for (std::uint64_t i = 0; i < size; ++i) values.push_back(value(type, key));
    return values;
  }

  std::span<const std::byte> file_;
  const std::string& path_;
  std::size_t position_ = 0;
};

bool GgufFile::is_gguf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  return file.read(magic.data(), magic.size()) && std::string_view(magic.data(), magic.size()) == kMagic;
}

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file;
  file.path_ = path;
  const MappedFile mapped = map_file(path, "gguf");
  file.storage_ = mapped.memory;
  file.mapped_ = true;
  file.parse_all(mapped.bytes);
  return file;
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.path_ = name;
  const auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  file.storage_ = std::shared_ptr<const void>(copy, copy->data());
  file.parse_all(*copy);
  return file;
}

namespace {

struct Described {
  std::string name;
  GgufFile::Entry entry;
  std::uint64_t offset = 0, bytes = 0;
};

std::uint64_t aligned_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

std::uint64_t alignment_of(const std::map<std::string, json>& metadata, const std::string& path) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultAlignment;
  const std::uint64_t alignment = found->second.is_number_unsigned() ? found->second.get<std::uint64_t>() : 0;
  if (alignment < 8 || alignment > kMostAlignment || (alignment & (alignment - 1)) != 0)
    fail_usage("[gguf] {}: general.alignment={}, expected a power of two from 8 to {}", path,
               found->second.dump(-1, ' ', false, json::error_handler_t::replace), kMostAlignment);
  return alignment;
}

// Bytes of a tensor of these sizes, the fastest first.
std::uint64_t bytes_of_sizes(std::span<const std::uint64_t> sizes, const GgufType& type,
                             const std::string& name, const std::string& path) {
  std::uint64_t values = 1;
  for (const std::uint64_t size : sizes) {
    if (size == 0) fail_usage("[gguf] {}: tensor {} has a dim of 0", path, in_quotes(name));
    if (__builtin_mul_overflow(values, size, &values) ||
        values > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / 8)
      fail_usage("[gguf] {}: the sizes of tensor {} overflow 64 bits", path, in_quotes(name));
  }
  const auto block = static_cast<std::uint64_t>(type.values);
  if (sizes[0] % block != 0)
    fail_usage("[gguf] {}: tensor {} has rows of {} values, expected a multiple of {} for {}", path,
               in_quotes(name), sizes[0], block, type.name);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(values / block, static_cast<std::uint64_t>(type.bytes), &bytes))
    fail_usage("[gguf] {}: the sizes of tensor {} overflow 64 bits", path, in_quotes(name));
  return bytes;
}

}  // namespace

void GgufFile::parse_all(std::span<const std::byte> file) {
  if (file.size() < kMagic.size() ||
      std::string_view(reinterpret_cast<const char*>(file.data()), kMagic.size()) != kMagic)
    fail_usage("[gguf] {}: expected a file that begins with GGUF", path_);
  Reader reader(file, path_);
  reader.number<std::uint32_t>("magic");
  const auto version = reader.number<std::uint32_t>("version");
  if (version != 2 && version != 3) fail_usage("[gguf] {}: version {}, expected 2 or 3", path_, version);
  const std::uint64_t tensors = reader.count("tensors", 8 + 4 + 8 + 4 + 8),
                      entries = reader.count("metadata entries", 8 + 4 + 1);
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::string key = reader.string("a key", kMostKeyBytes);
    if (key.empty()) fail_usage("[gguf] {}: a metadata entry without a key", path_);
    const auto type = static_cast<ValueType>(reader.number<std::uint32_t>(key));
    if (!metadata_.emplace(key, reader.value(type, key)).second)
      fail_usage("[gguf] {}: the key {} is there twice", path_, in_quotes(key));
  }
  const std::uint64_t alignment = alignment_of(metadata_, path_);

  std::vector<Described> described;
  std::uint64_t end = 0;  // of the tensors so far
  for (std::uint64_t i = 0; i < tensors; ++i) {
    Described& tensor = described.emplace_back();
    tensor.name = reader.string("a tensor's name", kMostNameBytes);
    if (tensor.name.empty()) fail_usage("[gguf] {}: a tensor without a name", path_);
    const auto dims = reader.number<std::uint32_t>(tensor.name);
    if (dims < 1 || dims > kMostGgufDims)
      fail_usage("[gguf] {}: tensor {} has {} dims, expected 1 to {}", path_, in_quotes(tensor.name), dims,
                 kMostGgufDims);
    std::vector<std::uint64_t> sizes;
    for (std::uint32_t d = 0; d < dims; ++d) sizes.push_back(reader.number<std::uint64_t>(tensor.name));
    const auto number = reader.number<std::uint32_t>(tensor.name);
    tensor.entry.type = gguf_type(number);
    if (tensor.entry.type == nullptr)
      fail_usage("[gguf] {}: tensor {} has type {}, which is not one of those read here", path_,
                 in_quotes(tensor.name), number);
    tensor.bytes = bytes_of_sizes(sizes, *tensor.entry.type, tensor.name, path_);
    for (std::size_t d = sizes.size(); d-- > 0;)
      tensor.entry.shape.push_back(static_cast<std::int64_t>(sizes[d]));
    tensor.offset = reader.number<std::uint64_t>(tensor.name);
    if (tensor.offset != end)
      fail_usage("[gguf] {}: tensor {} begins at {}, expected {}, where the one before ends", path_,
                 in_quotes(tensor.name), tensor.offset, end);
    if (tensor.bytes > file.size() || tensor.offset > file.size())
      fail_usage("[gguf] {}: truncated: tensor {} has {} bytes at {}, the file has {}", path_,
                 in_quotes(tensor.name), tensor.bytes, tensor.offset, file.size());
    end = aligned_up(tensor.offset + tensor.bytes, alignment);
  }
  const std::uint64_t begin = aligned_up(reader.position(), alignment);
  for (Described& tensor : described) {
    if (begin > file.size() || tensor.offset + tensor.bytes > file.size() - begin)
      fail_usage("[gguf] {}: truncated: tensor {} ends at {}, the file has {} bytes", path_,
                 in_quotes(tensor.name), begin + tensor.offset + tensor.bytes, file.size());
    tensor.entry.bytes = file.subspan(begin + tensor.offset, tensor.bytes);
    if (!entries_.emplace(tensor.name, tensor.entry).second)
      fail_usage("[gguf] {}: tensor {} is there twice", path_, in_quotes(tensor.name));
  }
}

const GgufFile::Entry& GgufFile::at(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_usage("[gguf] {}: no tensor {}", path_, in_quotes(name));
  return found->second;
}

std::span<const std::byte> GgufFile::bytes_of(const Entry& entry, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = num_elements(entry.shape) / entry.shape.back();
  CHECK(begin >= 0 && begin <= end && end <= rows, "rows [{}, {}) of {}", begin, end, rows);
  const auto each = static_cast<std::size_t>(entry.shape.back() / entry.type->values * entry.type->bytes);
  return entry.bytes.subspan(static_cast<std::size_t>(begin) * each,
                             static_cast<std::size_t>(end - begin) * each);
}

Tensor GgufFile::read(const std::string& name) const {
  const Entry& entry = at(name);
  Tensor out(DType::f32, entry.shape);
  dequantize(*entry.type, entry.bytes, out.span<float>());
  return out;
}

Tensor GgufFile::read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const Entry& entry = at(name);
  Tensor out(DType::f32, {end - begin, entry.shape.back()});
  dequantize(*entry.type, bytes_of(entry, begin, end), out.span<float>());
  return out;
}

void GgufFile::release_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  if (mapped_) release_pages(bytes_of(at(name), begin, end));
}

}  // namespace switchyard
