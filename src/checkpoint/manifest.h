// Manifest: the contents of a checkpoint's manifest.json (docs/run-files.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/box.h"

namespace switchyard {

struct ManifestFile {
  std::string name;
  std::int64_t bytes = 0;
  std::uint64_t header_xxh3 = 0;  // of a safetensors file's length and header
};

// A file stored along with the weights, such as a tokenizer's.
struct ManifestExtra {
  std::string name;  // "tokenizer/tokenizer.json"
  std::int64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // of the whole file
};

struct Chunk {
  Box box;
  std::uint64_t xxh3 = 0;  // of the chunk's elements in row-major order
};

struct ManifestTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::size_t file = 0;       // index into files
  std::vector<Chunk> chunks;  // disjoint, together the whole tensor
};

struct Manifest {
  static constexpr std::int64_t kFormat = 1;

  std::int64_t step = 0;                             // steps completed
  std::string version;                               // of the program
  nlohmann::json config = nlohmann::json::object();  // every key's value
  std::string model;                                 // "mixtral", …
  nlohmann::json mesh = nlohmann::json::object();    // axis -> size, for axes larger than 1
  std::int64_t ranks = 1;
  nlohmann::json data = nlohmann::json::object();    // rows consumed, seed, description
  nlohmann::json rng = nlohmann::json::object();     // seeds
  nlohmann::json phases = nlohmann::json::object();  // seconds of the run so far, by phase
  std::vector<ManifestFile> files;
  std::vector<ManifestExtra> extras;
  std::vector<ManifestTensor> tensors;
};

std::string to_json(const Manifest& manifest);

// Checks everything that needs no other file: form, types, names that stay inside the folder, and chunks that
// are disjoint boxes and cover their tensor. Error(usage) `[checkpoint] <path>: <rule>`.
Manifest parse_manifest(std::string_view text, const std::string& path);

// Converts a hash to 16 hexadecimal digits, "00ff…", and back; other texts are refused.
std::string to_hex(std::uint64_t hash);
bool parse_hex(std::string_view text, std::uint64_t& hash);

}  // namespace switchyard
