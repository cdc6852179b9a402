#include "chat/answer_parser.h"

#include <algorithm>

#include "chat/formats/table.h"
#include "core/error.h"

namespace switchyard::chat {

std::string_view name_of(Format format) {
  return formats::format_row(format).name;
}

Format format_named(std::string_view name) {
  std::string names;
  for (const formats::FormatRow& row : formats::format_rows()) {
    if (row.name == name) return row.format;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  fail_usage("unknown format {} of calls and reasoning (there are {})", name, names);
}

Format format_of_template(std::string_view template_text) {
  const auto has = [&](std::string_view text) { return template_text.find(text) != std::string_view::npos; };
  for (const formats::FormatRow& row : formats::format_rows()) {
    if (std::ranges::any_of(row.chosen_by, has) && std::ranges::none_of(row.but_not_with, has))
      return row.format;
  }
  return Format::none;
}

class AnswerParser::Machine {
 public:
  Machine(const formats::FormatRow& row, const Json& tools, bool opens_reasoning, bool reads_reasoning)
      : tools_(tools),
        answer_(row.format == Format::harmony || makes_calls(row) || !row.content_tags.end.empty(),
                row.text_after_calls),
        reader_(row.format == Format::harmony
                    ? formats::make_harmony_reader(answer_, tools_, opens_reasoning)
                    : formats::make_marked_reader(
                          answer_, reads_reasoning ? marked_form(row) : formats::MarkedForm(),
                          makes_calls(row) ? row.make_calls(answer_, tools_) : nullptr, opens_reasoning)) {}

  std::vector<Delta> add(std::string_view text) {
    if (finished_) return {};
    input_.append(text);
    reader_->read(input_);
    return answer_.take();
  }

  std::vector<Delta> finish(TextEnd end) {
    if (finished_) return {};
    finished_ = true;
    input_.end();
    reader_->read(input_);
    while (end == TextEnd::stop && reader_->take_back(input_)) reader_->read(input_);
    reader_->finish(end);
    return answer_.take();
  }

  const formats::Answer& answer() const { return answer_; }
  bool in_reasoning() const { return reader_->in_reasoning(); }

 private:
  static formats::MarkedForm marked_form(const formats::FormatRow& row) {
    return {row.reasoning, row.content_tags, row.calls_end_reasoning};
  }

  // Without tools there are no calls: what looks like one is content.
  bool makes_calls(const formats::FormatRow& row) const {
    return row.make_calls != nullptr && !tools_.empty();
  }

  // The reader holds references to what stands before it.
  formats::ToolTypes tools_;
  formats::Answer answer_;
  formats::Input input_;
  std::unique_ptr<formats::Reader> reader_;
  bool finished_ = false;
};

AnswerParser::AnswerParser(Format format, const Json& tools, bool opens_reasoning, bool reads_reasoning)
    : machine_(std::make_unique<Machine>(
          formats::format_row(format == Format::harmony && !reads_reasoning ? Format::none : format), tools,
          opens_reasoning && reads_reasoning, reads_reasoning)) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;

std::vector<Delta> AnswerParser::add(std::string_view text) {
  return machine_->add(text);
}

std::vector<Delta> AnswerParser::finish(TextEnd end) {
  return machine_->finish(end);
}

std::size_t AnswerParser::calls() const {
  return machine_->answer().calls();
}

bool AnswerParser::first_call_is_whole() const {
  return machine_->answer().whole_calls() > 0;
}

bool AnswerParser::in_reasoning() const {
  return machine_->in_reasoning();
}

}  // namespace switchyard::chat
