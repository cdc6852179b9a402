// ChatBackend: who answers the terminal's chat: a model in this process, or another server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace switchyard {

using ChatJson = nlohmann::ordered_json;

struct AnsweringModel {
  std::string name;
  std::int64_t context = 0;  // tokens; 0: unknown
  bool chats = true;         // false: it has no chat template and completes texts
};

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;
  // Returns the model of that name, or the first where the name is empty. Error(runtime) for a server
  // that does not answer.
  virtual AnsweringModel model(const std::string& named) = 0;
  // Returns what is wrong with fields of requests, as far as it is known without a request; empty: nothing.
  virtual std::string problem_of(const ChatJson& fields) = 0;
  // Asks for the answer of a chat request's body, or of a completion's with `prompt`, with stream=true. Calls
  // `on_event` for each event, a chat.completion.chunk, a text_completion or {"error": …}, as it comes. Ends
  // the answer early, at the latest a fifth of a second after, once `goes_on` returns false. Error(runtime)
  // where nobody answers.
  virtual void ask(const ChatJson& body, const std::function<void(const ChatJson& event)>& on_event,
                   const std::function<bool()>& goes_on) = 0;
  // Returns how many tokens the body's prompt has. Error(runtime) where nobody answers.
  virtual std::int64_t count_tokens(const ChatJson& body) = 0;
};

// Asks the server at `url`, such as http://127.0.0.1:8000 (a path /v1 may follow), with `key` where it is not
// empty, for its first model. Error(usage) for another form of URL.
std::unique_ptr<ChatBackend> remote_chat(const std::string& url, const std::string& key);

// Cuts a stream of server-sent events into their JSON.
class EventReader {
 public:
  // Takes the next bytes; calls `on_event` for each whole event but [DONE].
  void add(std::string_view bytes, const std::function<void(const ChatJson& event)>& on_event);
  // Returns whether the stream came to its end, [DONE], with nothing but JSON before it.
  bool is_whole() const { return done_ && !broken_; }

 private:
  std::string line_;
  bool done_ = false, broken_ = false;
};

}  // namespace switchyard
