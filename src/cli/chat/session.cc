#include "cli/chat/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>

#include "commands/sampling_words.h"
#include "core/error.h"
#include "metrics/atomic_file.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr const char* kCommands =
    "/clear            forget the conversation\n"
    "/system TEXT      the system's text from now on; none: without\n"
    "/undo             forget the last message and its answer\n"
    "/again            answer the last message again\n"
    "/save FILE        write the conversation, the JSON of `messages`\n"
    "/load FILE        read it\n"
    "/set KEY=VALUE    a field of requests, such as temperature=0.2 or max_tokens=500; no value: forget it\n"
    "/tokens           how many tokens the conversation has\n"
    "/help             this list\n"
    "/quit             end (so does Ctrl-D)\n"
    "A line that ends with \\ goes on in the next one; so do lines between \"\"\" and \"\"\".\n";
constexpr const char* kGrey = "\033[90m";
constexpr const char* kPlain = "\033[0m";

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\n") + 1 - begin);
}

double seconds_of_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The answer of one request, as it grows.
struct Growing {
  std::string content, reasoning, finish, error;
  ChatJson calls = ChatJson::array();
  std::int64_t tokens = 0, prompt = 0;
  std::optional<std::int64_t> cached = {};  // of the prompt's tokens, where it is told

  void take_calls(const ChatJson& parts) {
    for (const ChatJson& part : parts) {
      const auto index = part.value("index", std::size_t{0});
      while (calls.size() <= index)
        calls.push_back({{"id", ""}, {"type", "function"}, {"function", {{"name", ""}, {"arguments", ""}}}});
      ChatJson& call = calls[index];
      if (part.contains("id") && part["id"].is_string()) call["id"] = part["id"];
      const ChatJson function = part.value("function", ChatJson::object());
      for (const char* name : {"name", "arguments"}) {
        if (function.contains(name) && function[name].is_string())
          call["function"][name] =
              call["function"][name].get<std::string>() + function[name].get<std::string>();
      }
    }
  }
  void take_usage(const ChatJson& usage) {
    tokens = usage.value("completion_tokens", tokens);
    prompt = usage.value("prompt_tokens", prompt);
    const auto details = usage.find("prompt_tokens_details");
    if (details != usage.end() && details->is_object())
      cached = details->value("cached_tokens", std::int64_t{0});
  }
  // The line behind an answer; times in seconds, `first` 0 where nothing came.
  std::string numbers(double begin, double first, double end) const {
    // Without the end of an answer nobody counted its tokens.
    if (finish.empty())
      return fmt::format("{}first after {:.2f} s; ended here{}\n", kGrey, (first == 0 ? end : first) - begin,
                         kPlain);
    // The first token comes at the time's beginning; of a moment's tokens a speed would say nothing.
    const double making = end - first;
    const bool has_speed = first != 0 && tokens > 1 && making > 0.05;
    const std::string speed =
        has_speed ? fmt::format("{:.1f} a second, ", static_cast<double>(tokens - 1) / making) : "";
    const char* const why = finish == "length" ? "; cut at the length" : "";
    const std::string reused = cached ? fmt::format("; {} of {} prompt tokens reused", *cached, prompt) : "";
    return fmt::format("{}{} tokens, {}first after {:.2f} s{}{}{}\n", kGrey, tokens, speed,
                       (first == 0 ? end : first) - begin, reused, why, kPlain);
  }
};

std::string text_member(const ChatJson& object, const char* name) {
  const auto member = object.find(name);
  return member != object.end() && member->is_string() ? member->get<std::string>() : "";
}

}  // namespace

std::string shown_text(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters, too: 0xc2 and the character's number.
    const bool is_c1 =
        byte == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80;
    if (is_c1) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

std::string greeting_of(const AnsweringModel& model) {
  const std::string context = model.context > 0 ? fmt::format(", {} tokens of context", model.context) : "";
  const char* const completes =
      model.chats ? "" : "this model has no chat template: it goes on from what you type\n";
  return fmt::format("{}{}; /help lists the commands\n{}", shown_text(model.name), context, completes);
}

ChatSession::ChatSession(ChatBackend& backend, Settings settings, Output output, GoesOn goes_on)
    : backend_(backend),
      settings_(std::move(settings)),
      output_(std::move(output)),
      goes_on_(std::move(goes_on)) {}

bool ChatSession::take(const std::string& text) {
  if (trimmed(text).empty()) return true;
  const ChatJson before = messages_;
  try {
    if (text[0] == '/') return take_command(trimmed(text));
    if (settings_.completes) messages_ = ChatJson::array();
    messages_.push_back({{"role", "user"}, {"content", repaired_utf8(text)}});
    if (!answer()) messages_ = before;
  } catch (const Error& error) {
    if (!settings_.may_try_again) throw;
    messages_ = before;
    refuse(fmt::format("error: {}", shown_text(error.what())));
  }
  return true;
}

void ChatSession::refuse(const std::string& why) {
  output_.note(why + "\n");
  failed_ = true;
}

bool ChatSession::take_command(const std::string& line) {
  const std::size_t space = line.find(' ');
  const std::string word = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : trimmed(line.substr(space));
  if (word == "/quit" || word == "/exit") return false;
  if (settings_.completes && (word == "/system" || word == "/load")) {
    refuse(fmt::format("{}: the model has no chat template: it goes on from one text", word));
  } else if (word == "/clear") {
    messages_ = ChatJson::array();
  } else if (word == "/system") {
    settings_.system = rest;
  } else if (word == "/undo") {
    undo();
  } else if (word == "/again") {
    again();
  } else if (word == "/save") {
    save(rest);
  } else if (word == "/load") {
    load(rest);
  } else if (word == "/set") {
    set(rest);
  } else if (word == "/tokens") {
    output_.note(fmt::format("{} tokens\n", backend_.count_tokens(body())));
  } else if (word == "/help") {
    output_.note(kCommands);
  } else {
    refuse(fmt::format("{}: unknown; /help lists the commands", shown_text(word)));
  }
  return true;
}

ChatJson ChatSession::body() const {
  ChatJson body = settings_.fields;
  if (settings_.completes) {
    body["prompt"] = messages_.empty() ? "" : text_member(messages_[0], "content");
    return body;
  }
  body["messages"] = ChatJson::array();
  if (!settings_.system.empty())
    body["messages"].push_back({{"role", "system"}, {"content", settings_.system}});
  for (const ChatJson& message : messages_) body["messages"].push_back(message);
  return body;
}

// Shows the parts as they come. An answer that the person ended stays in the conversation as far as it came.
bool ChatSession::answer() {
  Growing growing;
  bool in_reasoning = false, has_said = false;
  const auto say = [&](const std::string& text, bool is_reasoning) {
    if (text.empty() || (is_reasoning && settings_.reasoning == ShownReasoning::hide)) return;
    if (is_reasoning && settings_.reasoning == ShownReasoning::fold) {
      if (!in_reasoning && settings_.is_terminal) output_.note("(reasoning …)\n");
      in_reasoning = true;
      return;
    }
    if (is_reasoning && !settings_.is_terminal) return;  // only answers go to a pipe
    if (is_reasoning != in_reasoning) {
      if (settings_.reasoning == ShownReasoning::show)
        output_.answer(is_reasoning ? kGrey : std::string(kPlain) + "\n\n");
      in_reasoning = is_reasoning;
    }
    output_.answer(shown_text(text));
    has_said = true;
  };
  ChatJson asked = body();
  asked["stream"] = true;
  asked["stream_options"] = {{"include_usage", true}};
  const double begin = seconds_of_clock();
  double first = 0;
  bool was_ended = false;  // by the person
  backend_.ask(
      asked,
      [&](const ChatJson& event) {
        if (event.contains("error")) {
          growing.error =
              event["error"].is_object() ? text_member(event["error"], "message") : event["error"].dump();
          return;
        }
        if (event.contains("usage") && event["usage"].is_object()) growing.take_usage(event["usage"]);
        if (!event.contains("choices") || event["choices"].empty()) return;
        const ChatJson& choice = event["choices"][0];
        const ChatJson delta = choice.value("delta", ChatJson::object());
        const std::string reasoning = text_member(delta, "reasoning_content"),
                          content = text_member(delta, "content") + text_member(choice, "text");
        if (choice.contains("error") && choice["error"].is_object())
          growing.error = text_member(choice["error"], "message");
        if (first == 0 && !(reasoning + content).empty()) first = seconds_of_clock();
        growing.reasoning += reasoning;
        growing.content += content;
        say(reasoning, true);
        say(content, false);
        if (delta.contains("tool_calls")) growing.take_calls(delta["tool_calls"]);
        if (const std::string finish = text_member(choice, "finish_reason"); !finish.empty())
          growing.finish = finish;
      },
      [&] {
        was_ended = was_ended || !goes_on_();
        return !was_ended;
      });
  if (growing.finish.empty() && growing.error.empty() && !was_ended)
    growing.error = "the answer ended without a finish_reason";
  const double end = seconds_of_clock();
  if (in_reasoning && settings_.reasoning == ShownReasoning::show) output_.answer(kPlain);
  for (const ChatJson& call : growing.calls) {
    output_.answer(fmt::format("{}[calls {}({})]", has_said ? "\n" : "",
                               shown_text(text_member(call["function"], "name")),
                               shown_text(text_member(call["function"], "arguments"))));
    has_said = true;
  }
  if (has_said) output_.answer("\n");
  if (!growing.error.empty()) {
    refuse(fmt::format("error: {}", shown_text(growing.error)));
    return false;
  }
  ChatJson message{{"role", "assistant"}, {"content", growing.content}};
  if (!growing.reasoning.empty()) message["reasoning_content"] = growing.reasoning;
  if (!growing.calls.empty()) message["tool_calls"] = growing.calls;
  messages_.push_back(std::move(message));
  if (settings_.is_terminal) output_.note(growing.numbers(begin, first, end));
  return true;
}

void ChatSession::undo() {
  while (!messages_.empty()) {
    const bool is_user = messages_.back()["role"] == "user";
    messages_.erase(messages_.size() - 1);
    if (is_user) return;
  }
}

void ChatSession::again() {
  const ChatJson before = messages_;
  while (!messages_.empty() && messages_.back()["role"] != "user") messages_.erase(messages_.size() - 1);
  if (messages_.empty()) refuse("there is no message yet");
  if (messages_.empty() || !answer()) messages_ = before;
}

void ChatSession::set(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    refuse("expected /set KEY=VALUE");
    return;
  }
  const std::string name = trimmed(assignment.substr(0, equals)),
                    value = trimmed(assignment.substr(equals + 1));
  ChatJson fields = settings_.fields;
  if (value.empty()) {
    if (fields.erase(name) == 0) output_.note(fmt::format("{} was not set\n", shown_text(name)));
  } else {
    try {
      fields[name] = request_field(name, value);
    } catch (const Error& error) {
      refuse(shown_text(error.what()));
      return;
    }
  }
  if (const std::string problem = backend_.problem_of(fields); !problem.empty())
    refuse(shown_text(problem));
  else
    settings_.fields = std::move(fields);
}

void ChatSession::save(const std::string& file) {
  if (file.empty()) {
    refuse("expected /save FILE");
    return;
  }
  try {
    write_file_atomic(file,
                      body()["messages"].dump(1, ' ', false, ChatJson::error_handler_t::replace) + "\n");
    output_.note(fmt::format("{} messages are in {}\n", messages_.size(), file));
  } catch (const Error& error) {
    refuse(error.what());
  }
}

void ChatSession::load(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  const ChatJson list = ChatJson::parse(text.str(), nullptr, false);
  const bool is_conversation =
      stream && list.is_array() && std::all_of(list.begin(), list.end(), [](const ChatJson& m) {
        return m.is_object() && !text_member(m, "role").empty();
      });
  if (!is_conversation) {
    refuse(fmt::format("{}: expected a JSON list of messages", file));
    return;
  }
  messages_ = ChatJson::array();
  settings_.system.clear();
  for (const ChatJson& message : list) {
    if (messages_.empty() && message["role"] == "system" && settings_.system.empty()) {
      settings_.system = text_member(message, "content");
    } else {
      messages_.push_back(message);
    }
  }
  output_.note(fmt::format("{} messages\n", messages_.size()));
}

}  // namespace switchyard
