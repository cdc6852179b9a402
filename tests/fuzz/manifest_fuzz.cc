// Any bytes as a checkpoint's manifest: refused with an Error, or read, written and read again to the same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace switchyard;
  std::string text;
  try {
    text = to_json(parse_manifest({reinterpret_cast<const char*>(data), size}, "input"));
  } catch (const Error&) {
    return 0;
  }
  try {
    const std::string again = to_json(parse_manifest(text, "written"));
    CHECK(again == text, "{} became {}", text, again);
  } catch (const Error& error) {
    CHECK(false, "{} was written and is refused: {}", text, error.what());
  }
  return 0;
}
