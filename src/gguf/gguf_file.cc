#include "gguf/gguf_file.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/metadata.h"

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

// Bytes of one value in a file; for a string, the minimum.
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

// Reads a file's header from front to back.
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
  std::array<char, 64> bytes{};
  file.read(bytes.data(), bytes.size());
  const std::string_view begin(bytes.data(), static_cast<std::size_t>(file.gcount()));
  return begin.starts_with(kMagic) || (path.ends_with(".gguf") && is_lfs_pointer(begin));
}

namespace {

// A model in parts, as their metadata tell it: split.no counts from 0.
struct Split {
  std::int64_t number = 0, count = 1;
};
Split split_of(const GgufFile& file) {
  const GgufMetadata metadata(file, "split");
  return {metadata.integer("no", 0), metadata.integer("count", 1)};
}

// "-00001-of-00003.gguf".
std::string end_of_part(std::int64_t number, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// The path of part `number` of those that `path` is one of.
std::string part_path(const std::string& path, const Split& split, std::int64_t number) {
  const std::string end = end_of_part(split.number, split.count);
  if (!path.ends_with(end))
    fail_usage("[gguf] {}: part {} of {} of a model: expected a name that ends with {}", path,
               split.number + 1, split.count, end);
  return path.substr(0, path.size() - end.size()) + end_of_part(number, split.count);
}

}  // namespace

GgufFile GgufFile::open_part(const std::string& path) {
  GgufFile file;
  file.path_ = path;
  file.paths_ = {path};
  const MappedFile mapped = map_file(path, "gguf");
  file.storage_ = {mapped.memory};
  file.mapped_ = true;
  file.parse_all(mapped.bytes);
  return file;
}

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file = open_part(path);
  const Split split = split_of(file);
  if (split.count > 1) {
    const std::string first = part_path(path, split, 0);
    if (split.number != 0)
      fail_usage("[gguf] {}: part {} of {} of a model: expected the first, {}", path, split.number + 1,
                 split.count, first);
    file.add_parts(split.count);
  }
  return file;
}

// Adds the tensors of all parts but the first, which this is.
void GgufFile::add_parts(std::int64_t count) {
  for (std::int64_t i = 1; i < count; ++i) {
    const std::string path = part_path(path_, {0, count}, i);
    std::error_code none;
    if (!std::filesystem::exists(path, none))
      fail_usage("[gguf] {}: part 1 of {} of a model: part {} is missing, expected at {}", path_, count,
                 i + 1, path);
    GgufFile part = open_part(path);
    const Split split = split_of(part);
    if (split.number != i || split.count != count)
      fail_usage("[gguf] {}: part {} of {} by split.no and split.count, expected part {} of {} by its name",
                 path, split.number + 1, split.count, i + 1, count);
    for (auto& [name, entry] : part.entries_) {
      entry.part = static_cast<std::size_t>(i);
      if (!entries_.emplace(name, entry).second)
        fail_usage("[gguf] {}: tensor {} is in another part, too", path, in_quotes(name));
    }
    paths_.push_back(path);
    storage_.insert(storage_.end(), part.storage_.begin(), part.storage_.end());
  }
  const GgufMetadata metadata(*this, "split");
  const std::int64_t tensors = metadata.integer("tensors.count", std::ssize(entries_));
  if (tensors != std::ssize(entries_))
    metadata.wrong("tensors.count", fmt::format("{}, as many as all parts have", entries_.size()));
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.path_ = name;
  file.paths_ = {name};
  const auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  file.storage_ = {std::shared_ptr<const void>(copy, copy->data())};
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
  const auto version = version_ = reader.number<std::uint32_t>("version");
  // The bytes of 2 or 3 the other way round.
  if ((version & 0xffffu) == 0 && version != 0)
    fail_usage("[gguf] {}: big-endian (its version is {} read so), expected little-endian numbers", path_,
               __builtin_bswap32(version));
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
    if (tensor.entry.type == nullptr) {
      const std::string_view known = unread_gguf_type(number);
      fail_usage("[gguf] {}: tensor {} has type {}{}, expected one of {}", path_, in_quotes(tensor.name),
                 number, known.empty() ? "" : fmt::format(" ({})", known), gguf_type_names());
    }
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

void GgufFile::check_scales(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const Entry& entry = at(name);
  const auto block = block_of_infinite_scale(*entry.type, bytes_of(entry, begin, end));
  if (!block) return;
  const std::int64_t before = begin * (entry.shape.back() / entry.type->values);
  fail_usage("[gguf] {}: tensor {}: block {} of {} has a scale that is no finite number", path_,
             in_quotes(name), before + *block, entry.type->name);
}

void GgufFile::release_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  if (mapped_) release_pages(bytes_of(at(name), begin, end));
}

}  // namespace switchyard
