#include "convert/prove.h"

#include <xxhash.h>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

void prove_tensor(const CheckpointFolder& checkpoint, const ManifestTensor& tensor) {
  for (const Chunk& chunk : tensor.chunks) checkpoint.read(tensor.name, chunk.box);
}

void prove_extra(const CheckpointFolder& checkpoint, const ManifestExtra& extra) {
  const std::string path = checkpoint.path() + "/" + extra.name, content = read_whole_file(path);
  if (XXH3_64bits(content.data(), content.size()) != extra.xxh3)
    fail_usage("[checkpoint] {}: its hash is not the manifest's: damaged", path);
}

}  // namespace

std::vector<std::string> damage_of(const std::string& path) {
  std::vector<std::string> damage;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      damage.push_back(error.what());
    }
  };
  attempt([&] {
    const CheckpointFolder checkpoint = CheckpointFolder::open(path);
    for (const ManifestTensor& tensor : checkpoint.manifest().tensors)
      attempt([&] { prove_tensor(checkpoint, tensor); });
    for (const ManifestExtra& extra : checkpoint.manifest().extras)
      attempt([&] { prove_extra(checkpoint, extra); });
  });
  return damage;
}

}  // namespace switchyard
