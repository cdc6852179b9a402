// Any bytes as a chat template and its context: rendered within the limits, or refused with a TemplateError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "chat/jinja/template.h"
#include "core/error.h"

namespace {

using namespace switchyard;
using jinja::Json;

// The template, then a zero byte, then the JSON of the context.
Json context_of(std::string_view text) {
  Json context = Json::parse(text, nullptr, false);
  if (context.is_object()) return context;
  return {{"messages", {{{"role", "user"}, {"content", std::string("a \xC3\xA9\n")}}}},
          {"tools", nullptr},
          {"x", {{"a", 1}, {"b", {1.5, "it's", nullptr, true}}}}};
}

void check(const jinja::Rendered& rendered, std::size_t most_bytes) {
  CHECK(rendered.text.size() <= most_bytes, "{} bytes", rendered.text.size());
  std::size_t end = 0;
  for (const TextRange& range : rendered.foreign) {
    CHECK(range.begin < range.end && (end == 0 || range.begin > end), "ranges touch at {}", range.begin);
    end = range.end;
  }
  CHECK(end <= rendered.text.size(), "a range ends at {} of {}", end, rendered.text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  jinja::RenderOptions options;
  options.limits = {100'000, std::size_t{1} << 20, 50};
  options.allow_mutation = size % 2 == 0;
  options.now = [] { return std::tm{}; };
  try {
    const auto parsed = jinja::Template::parse(input.substr(0, end));
    const Json foreign = context_of(end == std::string_view::npos ? "" : input.substr(end + 1));
    check(parsed.render({{"bos_token", "<s>"}}, foreign, options), options.limits.bytes);
  } catch (const jinja::TemplateError&) {
  }
  return 0;
}
