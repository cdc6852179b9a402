// ChatSession: a conversation at a terminal: messages and commands in, answers out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat/backend.h"

namespace switchyard {

enum class ShownReasoning { show, hide, fold };

class ChatSession {
 public:
  struct Settings {
    ChatJson fields = ChatJson::object();  // of every request, such as temperature
    std::string system;                    // empty: none
    ShownReasoning reasoning = ShownReasoning::show;
    bool completes = false;      // each message is a text that goes on
    bool is_terminal = false;    // colours, and a line of numbers after each answer
    bool may_try_again = false;  // an Error(runtime) of the backend is said, and the conversation goes on
  };
  struct Output {
    std::function<void(std::string_view)> answer;  // what is said; safe to show
    std::function<void(std::string_view)> note;    // what is said about it
  };
  // Returns whether the person still wants the answer.
  using GoesOn = std::function<bool()>;

  // The backend must outlive the session.
  ChatSession(ChatBackend& backend, Settings settings, Output output, GoesOn goes_on);

  // Takes a message, or a command that begins with `/`. Returns false at /quit. Error(runtime) where nobody
  // answers, unless the person may try again.
  bool take(const std::string& text);
  const ChatJson& messages() const { return messages_; }
  // Returns whether an answer was an error or a command was refused.
  bool has_failed() const { return failed_; }

 private:
  bool take_command(const std::string& line);
  void refuse(const std::string& why);
  bool answer();  // false: an error, which was said; the caller puts the messages back
  ChatJson body() const;
  void set(const std::string& assignment);
  void undo();
  void again();
  void save(const std::string& file);
  void load(const std::string& file);

  ChatBackend& backend_;
  Settings settings_;
  Output output_;
  GoesOn goes_on_;
  ChatJson messages_ = ChatJson::array();  // without the system's
  bool failed_ = false;
};

// Returns the line that a conversation at a terminal begins with.
std::string greeting_of(const AnsweringModel& model);

// Returns a model's text as it is safe on a terminal: control characters other than line end and
// tab become \xNN.
std::string shown_text(std::string_view text);

}  // namespace switchyard
