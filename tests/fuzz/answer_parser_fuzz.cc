// The first byte chooses the format, how the text begins and how it ends; the rest is what a model wrote, cut
// at each 0xff. Nothing throws, and the joined deltas of the pieces, the whole text and its bytes are equal.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "chat/answer_parser.h"
#include "core/error.h"

namespace {

using namespace switchyard::chat;

constexpr std::array kFormats{
    Format::hermes,        Format::qwen3_coder,     Format::glm4,    Format::minimax_m2, Format::deepseek_v3,
    Format::deepseek_v3_1, Format::kimi_k2,         Format::harmony, Format::mistral,    Format::llama3_json,
    Format::think,         Format::llama4_pythonic, Format::none,    Format::mimo,       Format::hy_v3,
    Format::hy_v3_preview, Format::ernie4_5};

const Json& tools() {
  static const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
    {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": ["array", "null"]},
    "d": {"type": "boolean"}, "e": {"anyOf": [{"type": "object"}, {"type": "number"}]}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {}}}])");
  return tools;
}

// Everything that the deltas say, joined; content and reasoning may come between calls.
class Joined {
 public:
  void add(const std::vector<Delta>& deltas) {
    for (const Delta& delta : deltas) {
      CHECK(delta.kind == Delta::Kind::call || !delta.text.empty());
      if (delta.kind == Delta::Kind::content) content_ += delta.text;
      if (delta.kind == Delta::Kind::reasoning) reasoning_ += delta.text;
      if (delta.kind == Delta::Kind::call) {
        CHECK(delta.index == calls_++ && !delta.name.empty(), "call {}", delta.index);
        calls_text_ += '\0' + delta.name + '\0' + delta.id + '\0';
      }
      if (delta.kind != Delta::Kind::arguments) continue;
      CHECK(delta.index + 1 == calls_, "arguments of call {} of {}", delta.index, calls_);
      calls_text_ += delta.text;
    }
  }
  bool operator==(const Joined&) const = default;

 private:
  std::string content_, reasoning_, calls_text_;
  std::size_t calls_ = 0;
};

// Reads the text in pieces: each ends at a 0xff, or after `bytes`.
Joined read(std::uint8_t choice, std::string_view text, std::size_t bytes) {
  AnswerParser parser(kFormats[choice % kFormats.size()], tools(), (choice & 0x80) != 0);
  Joined joined;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, std::min(bytes, text.find('\xff')));
    joined.add(parser.add(piece));
    text.remove_prefix(piece.size());
    if (!text.empty() && text.front() == '\xff') text.remove_prefix(1);
  }
  joined.add(parser.finish((choice & 0x40) != 0 ? TextEnd::length : TextEnd::stop));
  return joined;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string whole(text);
  std::erase(whole, '\xff');
  const Joined expected = read(data[0], whole, std::string_view::npos);
  CHECK(read(data[0], text, std::string_view::npos) == expected);
  CHECK(read(data[0], whole, 1) == expected);
  return 0;
}
