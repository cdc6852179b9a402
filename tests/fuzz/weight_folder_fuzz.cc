// Any bytes as the safetensors file of a Hugging Face folder, whose weights may be GPTQ's or 8 bits with
// scales: every weight read in each way there is, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "kernels/packed/packed_block.h"

namespace {

using namespace switchyard;

void read_each_way(const WeightFolder& weights, const std::string& name) {
  const Tensor whole = weights.read(name);
  CHECK(whole.shape() == weights.shape(name), "{} read as {}, said to be {}", name, to_string(whole.shape()),
        to_string(weights.shape(name)));
  if (!whole.shape().empty()) {
    weights.take_rows(name, 0, whole.dim(0));
    weights.take_values(name, 0, whole.dim(0));
  }
  if (const auto dtype = weights.packed_dtype(name)) {
    const Tensor blocks = weights.take_blocks(name);
    CHECK(blocks.dtype() == *dtype, "{} is in blocks of {}", name, name_of(blocks.dtype()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto weights =
        WeightFolder::of(SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "input"));
    for (const std::string& name : weights.names()) {
      try {
        read_each_way(weights, name);
      } catch (const Error&) {  // a dtype or value that does not convert
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
