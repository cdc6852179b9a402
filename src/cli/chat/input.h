// ChatInput: the messages that a person types, or that a pipe brings line by line.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace switchyard {

class ChatInput {
 public:
  virtual ~ChatInput() = default;
  // Waits for the next message. None at the end of input.
  virtual std::optional<std::string> next() = 0;
};

// Thrown by a terminal's next() when Ctrl-C came twice.
struct ChatInterrupted {};

// Lines of standard input.
std::unique_ptr<ChatInput> piped_chat_input();

// A terminal with line editing, for the thread that makes and uses it. `history_file` keeps what was typed
// (mode 0600); empty: nothing is kept. The file's folder is made where it is missing; a file that cannot be
// written is passed over with a note.
// Without libedit in the build: plain lines, of which none is kept.
std::unique_ptr<ChatInput> terminal_chat_input(const std::string& history_file);

// Returns where the history stands without a word from anyone: $XDG_STATE_HOME or ~/.local/state, then
// switchyard/history. Empty where there is no home.
std::string usual_history_file();

// Joins lines to messages: `\` at a line's end, or """, goes on.
class MessageLines {
 public:
  // Takes a line without its end. Returns a message once it is whole.
  std::optional<std::string> add(std::string line);
  // Returns what has been begun, at the end of input.
  std::optional<std::string> finish();
  bool has_begun() const { return begun_; }
  void forget() { *this = {}; }

 private:
  std::string text_;
  bool begun_ = false, quoted_ = false;
};

}  // namespace switchyard
