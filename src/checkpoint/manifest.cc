#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Reads members of JSON objects; an error is one line that names the file and the member.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  const json& member(const json& object, const char* name) const {
    if (!object.is_object()) fail_usage("[checkpoint] {}: expected an object with {}", path_, name);
    const auto found = object.find(name);
    if (found == object.end()) fail_usage("[checkpoint] {}: {} is missing", path_, name);
    return *found;
  }
  const json& object(const json& in, const char* name) const {
    const json& value = member(in, name);
    if (!value.is_object()) fail_usage("[checkpoint] {}: {} is not an object", path_, name);
    return value;
  }
  const json& list(const json& in, const char* name) const {
    const json& value = member(in, name);
    if (!value.is_array()) fail_usage("[checkpoint] {}: {} is not a list", path_, name);
    return value;
  }
  std::string text(const json& in, const char* name) const {
    const json& value = member(in, name);
    if (!value.is_string()) fail_usage("[checkpoint] {}: {} is not a string", path_, name);
    return value.get<std::string>();
  }
  std::int64_t count(const json& in, const char* name) const { return count_of(member(in, name), name); }
  Shape shape(const json& in, const char* name) const {
    const json& values = list(in, name);
    if (values.size() > kMostDims)
      fail_usage("[checkpoint] {}: expected at most {} dims, got {} in {}", path_, kMostDims, values.size(),
                 name);
    Shape shape;
    for (const json& value : values) shape.push_back(count_of(value, name));
    return shape;
  }
  std::uint64_t hash(const json& in, const char* name) const {
    std::uint64_t value = 0;
    if (!parse_hex(text(in, name), value))
      fail_usage("[checkpoint] {}: {} is not a hash of 16 hexadecimal digits", path_, name);
    return value;
  }
  // A path below the folder and nowhere else.
  std::string file_name(const json& in) const {
    const std::string name = text(in, "name");
    const bool outside = name.empty() || name.front() == '/' || name.find('\0') != std::string::npos ||
                         ("/" + name + "/").find("/../") != std::string::npos;
    if (outside) fail_usage("[checkpoint] {}: file name {} is not allowed", path_, in_quotes(name));
    return name;
  }
  [[noreturn]] void refuse(const std::string& rule) const { fail_usage("[checkpoint] {}: {}", path_, rule); }

 private:
  std::int64_t count_of(const json& value, const char* name) const {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 53;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost)
      fail_usage("[checkpoint] {}: {} is not a whole number from 0 to 2^53", path_, name);
    return static_cast<std::int64_t>(value.get<std::uint64_t>());
  }

  const std::string& path_;
};

// Elements of a shape, or -1 when that overflows.
std::int64_t checked_elements(const Shape& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t d : shape) {
    if (__builtin_mul_overflow(elements, d, &elements)) return -1;
  }
  return elements;
}

// Returns true if two of the boxes share an element. Sorts the boxes by their begin along dim 0, and
// compares only neighbours that overlap there.
bool overlap(std::vector<Chunk> chunks) {
  if (chunks.empty() || chunks[0].box.start.empty()) return chunks.size() > 1;
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return a.box.start < b.box.start; });
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Box& a = chunks[i].box;
    for (std::size_t j = i + 1; j < chunks.size(); ++j) {
      const Box& b = chunks[j].box;
      if (b.start[0] >= a.start[0] + a.shape[0]) break;
      if (num_elements(intersection(a, b).shape) > 0) return true;
    }
  }
  return false;
}

void check_chunks(const Reader& reader, const ManifestTensor& tensor) {
  const std::string name = in_quotes(tensor.name);
  const std::int64_t elements = checked_elements(tensor.shape);
  if (elements < 0) reader.refuse("shape of tensor " + name + " overflows 64 bits");
  std::int64_t covered = 0;
  for (const Chunk& chunk : tensor.chunks) {
    if (!inside(chunk.box, tensor.shape))
      reader.refuse(
          fmt::format("a chunk of tensor {} is outside its shape {}", name, to_string(tensor.shape)));
    covered += num_elements(chunk.box.shape);
  }
  if (covered != elements || overlap(tensor.chunks))
    reader.refuse(fmt::format("the chunks of tensor {} do not cover each of its elements once", name));
}

ManifestTensor parse_tensor(const Reader& reader, const json& in, const Manifest& manifest,
                            const std::string& path) {
  ManifestTensor tensor;
  tensor.name = reader.text(in, "name");
  tensor.dtype = stored_dtype(reader.text(in, "dtype"), path);
  tensor.shape = reader.shape(in, "shape");
  if (is_packed(tensor.dtype) && (tensor.shape.size() < 2 || tensor.shape.size() >= kMostDims))
    reader.refuse(fmt::format("tensor {} of {} has {} dims", in_quotes(tensor.name), name_of(tensor.dtype),
                              tensor.shape.size()));
  const std::string file = reader.text(in, "file");
  const auto found = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const ManifestFile& f) { return f.name == file; });
  if (found == manifest.files.end())
    reader.refuse(
        fmt::format("tensor {} is in {}, which is not listed", in_quotes(tensor.name), in_quotes(file)));
  tensor.file = static_cast<std::size_t>(found - manifest.files.begin());
  for (const json& chunk : reader.list(in, "chunks")) {
    tensor.chunks.push_back(
        {{reader.shape(chunk, "start"), reader.shape(chunk, "shape")}, reader.hash(chunk, "xxh3")});
  }
  check_chunks(reader, tensor);
  return tensor;
}

}  // namespace

std::string to_hex(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

bool parse_hex(std::string_view text, std::uint64_t& hash) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() != 16 || !std::all_of(text.begin(), text.end(), is_digit)) return false;
  return std::from_chars(text.data(), text.data() + text.size(), hash, 16).ec == std::errc();
}

std::string to_json(const Manifest& m) {
  using ordered = nlohmann::ordered_json;
  ordered out{{"format", Manifest::kFormat},
              {"version", m.version},
              {"step", m.step},
              {"model", m.model},
              {"mesh", m.mesh},
              {"ranks", m.ranks},
              {"data", m.data},
              {"rng", m.rng},
              {"phases", m.phases},
              {"config", m.config}};
  out["files"] = out["extras"] = out["tensors"] = ordered::array();
  for (const ManifestFile& f : m.files)
    out["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"header_xxh3", to_hex(f.header_xxh3)}});
  for (const ManifestExtra& e : m.extras)
    out["extras"].push_back({{"name", e.name}, {"bytes", e.bytes}, {"xxh3", to_hex(e.xxh3)}});
  for (const ManifestTensor& t : m.tensors) {
    ordered chunks = ordered::array();
    for (const Chunk& c : t.chunks)
      chunks.push_back({{"start", c.box.start}, {"shape", c.box.shape}, {"xxh3", to_hex(c.xxh3)}});
    out["tensors"].push_back({{"name", t.name},
                              {"dtype", stored_dtype_name(t.dtype)},
                              {"shape", t.shape},
                              {"file", m.files[t.file].name},
                              {"chunks", std::move(chunks)}});
  }
  return out.dump(-1, ' ', false, ordered::error_handler_t::replace) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const json in = parse_json(text, path);
  const Reader reader(path);
  if (const std::int64_t format = reader.count(in, "format"); format != Manifest::kFormat)
    fail_usage("[checkpoint] {}: format {}, expected {}", path, format, Manifest::kFormat);
  Manifest m;
  m.version = reader.text(in, "version");
  m.step = reader.count(in, "step");
  m.config = reader.object(in, "config");
  m.model = reader.text(in, "model");
  m.mesh = reader.object(in, "mesh");
  m.ranks = reader.count(in, "ranks");
  m.data = reader.object(in, "data");
  m.rng = reader.object(in, "rng");
  m.phases = reader.object(in, "phases");
  std::set<std::string> names;
  const auto once = [&](const std::string& what, const std::string& name) {
    if (!names.insert(what + name).second) reader.refuse(what + in_quotes(name) + " is listed twice");
  };
  for (const json& f : reader.list(in, "files")) {
    m.files.push_back({reader.file_name(f), reader.count(f, "bytes"), reader.hash(f, "header_xxh3")});
    once("file ", m.files.back().name);
  }
  for (const json& e : reader.list(in, "extras")) {
    m.extras.push_back({reader.file_name(e), reader.count(e, "bytes"), reader.hash(e, "xxh3")});
    once("file ", m.extras.back().name);
  }
  for (const json& t : reader.list(in, "tensors")) {
    m.tensors.push_back(parse_tensor(reader, t, m, path));
    once("tensor ", m.tensors.back().name);
  }
  return m;
}

}  // namespace switchyard
