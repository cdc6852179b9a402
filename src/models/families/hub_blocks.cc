// Parameters that a Hugging Face folder or a GGUF file holds in blocks of a packed type.
#include <cstring>

#include "core/error.h"
#include "models/families/hub_tensors.h"

namespace switchyard {

std::optional<DType> packed_in_hub(const HubWeights& folder, const ModelFamily& family,
                                   const std::string& our_name, const Shape& our_shape) {
  const HubTensors tensors = hub_tensors(family, our_name, our_shape);
  if (!tensors.transposed) return std::nullopt;
  std::optional<DType> packed;
  for (const std::string& name : tensors.names) {
    if (!folder.contains(name)) return std::nullopt;
    const std::optional<DType> one = folder.packed_dtype(name);
    if (!one || (packed && packed != one)) return std::nullopt;
    packed = one;
  }
  return packed;
}

Tensor load_blocks_from_hub(const HubWeights& folder, const ModelFamily& family, const std::string& our_name,
                            const Shape& our_shape, const Shape& packed_shape, const Box& box) {
  const std::optional<DType> packed = packed_in_hub(folder, family, our_name, our_shape);
  CHECK(packed, "{} has no blocks in {}", our_name, folder.path());
  const HubTensors tensors = hub_tensors(family, our_name, our_shape);
  const bool stack = tensors.names.size() > 1;
  const std::int64_t first = stack ? box.start[0] : 0, count = stack ? box.shape[0] : 1;
  Shape part_shape = packed_shape;
  Box in_part = box;
  if (stack) part_shape[0] = count, in_part.start[0] = 0;
  const Tensor part(*packed, part_shape);
  std::byte* to = part.raw();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string& name = tensors.names[static_cast<std::size_t>(first + i)];
    const Tensor blocks = folder.take_blocks(name);
    CHECK(to + blocks.bytes() <= part.raw() + part.bytes(), "blocks of {} exceed {}", name,
          to_string(part_shape));
    std::memcpy(to, blocks.raw(), blocks.bytes());
    to += blocks.bytes();
  }
  CHECK(to == part.raw() + part.bytes(), "blocks do not fill {}", to_string(part_shape));
  if (part_shape == box.shape) return part;
  const Tensor cut(*packed, box.shape);
  const std::size_t bytes = size_of(*packed);
  for_runs(part_shape, in_part, [&](std::int64_t from, std::int64_t at, std::int64_t run) {
    std::memcpy(cut.raw() + static_cast<std::size_t>(at) * bytes,
                part.raw() + static_cast<std::size_t>(from) * bytes, static_cast<std::size_t>(run) * bytes);
  });
  return cut;
}

}  // namespace switchyard
