#include "chat/formats/table.h"

#include <array>

#include "core/error.h"

namespace switchyard::chat::formats {
namespace {

constexpr std::array kThink{TagPair{"<think>", "</think>"}};
constexpr std::array kMistralThink{TagPair{"[THINK]", "[/THINK]"}, TagPair{"<think>", "</think>"}};
constexpr std::array kHyThink{TagPair{"<think:opensource>", "</think:opensource>"}};
constexpr std::array kReasoning{kThink[0], kMistralThink[0], kHyThink[0]};
constexpr std::string_view kThinkEnd = "</think>";
constexpr TagPair kErnieContent{"<response>", "</response>"};

// The final channel's message; a call's message begins behind its own header.
constexpr std::string_view kFinal = "<|channel|>final<|message|>";
constexpr std::array<std::string_view, 2> kHarmonyEnds{"<|return|>", "<|call|>"};

constexpr std::array<std::string_view, 1> kOfHarmony{"<|channel|>"};
constexpr std::array<std::string_view, 1> kOfKimi{"<|tool_calls_section_begin|>"};
constexpr std::array<std::string_view, 1> kOfDeepseek{"<｜tool▁sep｜>"};
// Published templates of V3 and R1 write the type by a variable; their fence tells them apart.
constexpr std::array<std::string_view, 2> kNotOfDeepseek31{"function<｜tool▁sep｜>", "```json"};
constexpr std::array<std::string_view, 1> kOfMinimax{"<minimax:tool_call>"};
constexpr std::array<std::string_view, 1> kOfGlm{"<arg_key>"};
// Hy3's template adds the suffix of its tags when it runs; that of the preview has tags without one.
constexpr std::array<std::string_view, 2> kOfHy{"<tool_sep:opensource>", "<tool_sep{}>"};
constexpr std::array<std::string_view, 1> kOfHyPreview{"<tool_sep>"};
constexpr std::array<std::string_view, 1> kOfQwenCoder{"<function="};
// MiMo's template writes a value's end tag right behind it, that of Qwen behind a line end, which is written
// in the template as such or by its escape.
constexpr std::array<std::string_view, 2> kOfMimo{"'</parameter>'", "\"</parameter>\""};
constexpr std::array<std::string_view, 2> kNotOfMimo{"\n</parameter>", "\\n</parameter>"};
constexpr std::array<std::string_view, 1> kOfErnie{"<response>"};
constexpr std::array<std::string_view, 1> kOfMistral{"[TOOL_CALLS]"};
constexpr std::array<std::string_view, 1> kOfHermes{"<tool_call>"};
constexpr std::array<std::string_view, 2> kOfLlama4{"<|python_start|>", "<|header_start|>"};
constexpr std::array<std::string_view, 2> kOfLlama3{"<|python_tag|>", "\"parameters\""};
constexpr std::array<std::string_view, 1> kOfThink{"</think>"};

// clang-format off
constexpr std::array kRows{
    FormatRow{Format::harmony, "harmony", kOfHarmony, {}, {}, kFinal, nullptr, false, kHarmonyEnds},
    FormatRow{Format::kimi_k2, "kimi_k2", kOfKimi, {}, kThink, kThinkEnd, make_kimi_k2_calls, false, {},
              {}, true},
    FormatRow{Format::deepseek_v3_1, "deepseek_v3_1", kOfDeepseek, kNotOfDeepseek31, kThink, kThinkEnd,
              make_deepseek_v3_1_calls, false, {}},
    FormatRow{Format::deepseek_v3, "deepseek_v3", kOfDeepseek, {}, kThink, kThinkEnd, make_deepseek_v3_calls, false, {}},
    FormatRow{Format::minimax_m2, "minimax_m2", kOfMinimax, {}, kThink, kThinkEnd, make_minimax_m2_calls, false, {}},
    FormatRow{Format::hy_v3, "hy_v3", kOfHy, {}, kHyThink, "</think:opensource>",
              make_hy_v3_calls, false, {}},
    FormatRow{Format::hy_v3_preview, "hy_v3_preview", kOfHyPreview, {}, kThink, kThinkEnd,
              make_hy_v3_preview_calls, false, {}},
    FormatRow{Format::glm4, "glm4", kOfGlm, {}, kThink, kThinkEnd, make_glm4_calls, true, {}},
    FormatRow{Format::mimo, "mimo", kOfMimo, kNotOfMimo, kThink, kThinkEnd, make_mimo_calls, true, {}},
    FormatRow{Format::qwen3_coder, "qwen3_coder", kOfQwenCoder, {}, kThink, kThinkEnd, make_qwen3_coder_calls, true, {}},
    FormatRow{Format::mistral, "mistral", kOfMistral, {}, kMistralThink, "[/THINK]", make_mistral_calls, false, {}},
    FormatRow{Format::ernie4_5, "ernie4_5", kOfErnie, {}, kThink, kThinkEnd, make_hermes_calls, false, {},
              kErnieContent},
    FormatRow{Format::hermes, "hermes", kOfHermes, {}, kThink, kThinkEnd, make_hermes_calls, true, {}},
    FormatRow{Format::llama4_pythonic, "llama4_pythonic", kOfLlama4, {}, kThink, kThinkEnd,
              make_llama4_pythonic_calls, false, {}},
    FormatRow{Format::llama3_json, "llama3_json", kOfLlama3, {}, kThink, kThinkEnd, make_llama3_json_calls, false, {}},
    FormatRow{Format::think, "think", kOfThink, {}, kThink, kThinkEnd, nullptr, true, {}},
    FormatRow{Format::none, "none", {}, {}, {}, "", nullptr, true, {}},
};
// clang-format on

}  // namespace

std::span<const FormatRow> format_rows() {
  return kRows;
}

const FormatRow& format_row(Format format) {
  for (const FormatRow& row : kRows)
    if (row.format == format) return row;
  CHECK(false, "format {}", static_cast<int>(format));
  return kRows.back();
}

std::span<const TagPair> reasoning_tags() {
  return kReasoning;
}

}  // namespace switchyard::chat::formats
