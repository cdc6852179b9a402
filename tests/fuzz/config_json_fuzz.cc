// Any bytes as a Hugging Face config.json: mapped to our keys, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/json_file.h"
#include "models/families/hub_tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    switchyard::config_from_hub(switchyard::parse_json(text, "input"));
  } catch (const switchyard::Error&) {
  }
  return 0;
}
