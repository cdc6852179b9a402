#include "serve/whole_chat.h"

#include <chrono>
#include <utility>

#include "core/error.h"
#include "serve/protocol/chat_answer.h"
#include "texts/answer_reader.h"

namespace switchyard::serve {
namespace {

// The whole answer as one piece.
texts::Piece piece_of(const texts::TextRequest& request, const GeneratedText& made,
                      const Tokenizer& tokenizer) {
  texts::Piece piece{.choice = request.choice, .tokens = std::ssize(made.tokens)};
  texts::AnswerReader reader(*request.answer);
  for (const std::int32_t token : made.tokens) {
    const bool was_in_reasoning = reader.in_reasoning();
    for (chat::Delta& delta : reader.add(bytes_of_token(tokenizer, token)))
      piece.deltas.push_back(std::move(delta));
    piece.reasoning_tokens += was_in_reasoning || reader.in_reasoning();
  }
  const auto end = made.ended ? chat::TextEnd::stop : chat::TextEnd::length;
  for (chat::Delta& delta : reader.finish(end)) piece.deltas.push_back(std::move(delta));
  piece.made = made.tokens;
  piece.finish = made.ended ? texts::Finish::stop : texts::Finish::length;
  return piece;
}

}  // namespace

std::string whole_chat(const std::string& request, const ServedModel& model,
                       const std::vector<std::int32_t>& ends, const MakeTexts& make) {
  ChatRequest wanted = parse_chat(parse_chat_body(request), model, 0, -1);
  if (wanted.stream) fail_usage("[engine] chat: stream=true: expected false; stream() gives tokens");
  if (wanted.log_probs) fail_usage("[engine] chat: logprobs=true: expected false; generate() gives them");
  if (!wanted.ignored.empty())
    fail_usage("[engine] chat: {}: not a field that this model's chats know", wanted.ignored.front());
  for (texts::TextRequest& text : wanted.texts) {
    if (!text.ignore_end) text.ends.insert(text.ends.end(), ends.begin(), ends.end());
  }
  const std::vector<GeneratedText> made = make(wanted.texts);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  ChatAnswer answer(wanted, model, "chat", std::chrono::duration_cast<std::chrono::seconds>(now).count());
  for (std::size_t i = 0; i < made.size(); ++i)
    answer.add(piece_of(wanted.texts[i], made[i], *model.tokenizer));
  return answer.end();
}

}  // namespace switchyard::serve
