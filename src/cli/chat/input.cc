#include "cli/chat/input.h"

#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <utility>
#ifndef SWITCHYARD_NO_LIBEDIT
#include <histedit.h>
#endif

namespace switchyard {

std::optional<std::string> MessageLines::add(std::string line) {
  constexpr std::string_view kQuotes = "\"\"\"";
  if (quoted_) {
    const std::size_t end = line.find(kQuotes);
    if (end == std::string::npos) {
      text_ += line + "\n";
      return std::nullopt;
    }
    // Quotes on a line of their own end the line before them.
    if (end == 0 && text_.ends_with('\n')) text_.pop_back();
    text_ += line.erase(end, kQuotes.size());
    return finish();
  }
  if (!begun_ && line.starts_with(kQuotes)) {
    line.erase(0, kQuotes.size());
    begun_ = quoted_ = true;
    if (const std::size_t end = line.find(kQuotes); end != std::string::npos) {
      text_ = line.erase(end, kQuotes.size());
      return finish();
    }
    if (!line.empty()) text_ = line + "\n";
    return std::nullopt;
  }
  if (line.ends_with('\\')) {
    line.back() = '\n';
    text_ += line;
    begun_ = true;
    return std::nullopt;
  }
  text_ += line;
  begun_ = true;
  return finish();
}

std::optional<std::string> MessageLines::finish() {
  if (!begun_) return std::nullopt;
  std::string text = std::move(text_);
  forget();
  return text;
}

std::string usual_history_file() {
  if (const char* const state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return std::string(state) + "/switchyard/history";
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.local/state/switchyard/history";
}

namespace {

class PipedInput : public ChatInput {
 public:
  explicit PipedInput(bool has_prompt) : has_prompt_(has_prompt) {}
  std::optional<std::string> next() override {
    std::string line;
    while (prompt(), std::getline(std::cin, line)) {
      if (line.ends_with('\r')) line.pop_back();
      if (std::optional<std::string> message = lines_.add(std::move(line))) return message;
    }
    return lines_.finish();
  }

 private:
  void prompt() const {
    if (has_prompt_) std::fputs(lines_.has_begun() ? ". " : "> ", stderr);
  }

  const bool has_prompt_;
  MessageLines lines_;
};

#ifndef SWITCHYARD_NO_LIBEDIT

// While it lives, libedit takes this thread's text as UTF-8, whatever the locale says of languages: without
// one that knows UTF-8 it drops each character beyond ASCII. The process's locale stays as it is.
class Utf8Locale {
 public:
  Utf8Locale() {
    for (const char* name : {"", "C.UTF-8"}) {
      locale_ = ::newlocale(LC_CTYPE_MASK, name, nullptr);
      if (locale_ == nullptr) continue;
      if (std::strcmp(::nl_langinfo_l(CODESET, locale_), "UTF-8") == 0) break;
      ::freelocale(locale_);
      locale_ = nullptr;
    }
    if (locale_ != nullptr) before_ = ::uselocale(locale_);
  }
  ~Utf8Locale() {
    if (locale_ == nullptr) return;
    ::uselocale(before_);
    ::freelocale(locale_);
  }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;

 private:
  locale_t locale_ = nullptr, before_ = nullptr;
};

// A terminal by libedit. Ctrl-C is a key here, not a signal, while a line is edited.
class TerminalInput : public ChatInput {
 public:
  explicit TerminalInput(const std::string& history_file) : file_(history_file) {
    history_ = history_init();
    editor_ = el_init("switchyard", stdin, stderr, stderr);
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    read_history();
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &TerminalInput::prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_SIGNAL, 0);
    el_set(editor_, EL_ADDFN, "chat-interrupt", "give the line up", &TerminalInput::interrupt);
    el_set(editor_, EL_ADDFN, "chat-paste", "keep the lines of pasted text", &TerminalInput::paste);
    el_set(editor_, EL_BIND, "^C", "chat-interrupt", nullptr);
    el_set(editor_, EL_BIND, "\\e[200~", "chat-paste", nullptr);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
  }
  ~TerminalInput() override {
    el_end(editor_);
    history_end(history_);
  }

  std::optional<std::string> next() override {
    bool warned = false;
    for (;;) {
      interrupted_ = false;
      std::fputs("\033[?2004h", stderr);  // the terminal marks pasted text
      int size = 0;
      const char* const line = el_gets(editor_, &size);
      std::fputs("\033[?2004l", stderr);
      if (interrupted_) {
        std::fputs("\n", stderr);
        const bool was_empty = !lines_.has_begun() && line_was_empty_;
        lines_.forget();
        if (was_empty && warned) throw ChatInterrupted();
        if (was_empty) std::fputs("(Ctrl-D or /quit ends; Ctrl-C once more, too)\n", stderr);
        warned = was_empty;
        continue;
      }
      warned = false;
      if (line == nullptr || size <= 0) {
        std::fputs("\n", stderr);
        return lines_.finish();
      }
      std::string text(line, static_cast<std::size_t>(size));
      if (text.ends_with('\n')) text.pop_back();
      std::optional<std::string> message = lines_.add(std::move(text));
      if (!message) continue;
      remember(*message);
      return message;
    }
  }

 private:
  static TerminalInput& self(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<TerminalInput*>(data);
  }
  static const char* prompt(EditLine* editor) { return self(editor).lines_.has_begun() ? ". " : "> "; }
  static unsigned char interrupt(EditLine* editor, int) {
    TerminalInput& input = self(editor);
    const LineInfo* const line = el_line(editor);
    input.interrupted_ = true;
    input.line_was_empty_ = line->lastchar == line->buffer;
    return CC_EOF;
  }
  // Pasted text stands between two marks of the terminal.
  static unsigned char paste(EditLine* editor, int) {
    constexpr std::string_view kEnd = "\033[201~";
    std::string text;
    char byte = 0;
    while (el_getc(editor, &byte) == 1) {
      text += byte == '\r' ? '\n' : byte;
      if (text.ends_with(kEnd)) {
        text.resize(text.size() - kEnd.size());
        break;
      }
    }
    if (!text.empty()) el_insertstr(editor, text.c_str());
    return CC_REFRESH;
  }

  void read_history() {
    if (file_.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), failed);
    const int file = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
      std::fprintf(stderr, "the history is not kept: %s cannot be written\n", file_.c_str());
      file_.clear();
      return;
    }
    ::fchmod(file, 0600);
    ::close(file);
    HistEvent event;
    history(history_, &event, H_LOAD, file_.c_str());
  }
  void remember(const std::string& message) {
    HistEvent event;
    history(history_, &event, H_ENTER, message.c_str());
    if (file_.empty()) return;
    history(history_, &event, H_SAVE, file_.c_str());
    ::chmod(file_.c_str(), 0600);
  }

  Utf8Locale locale_;  // before libedit begins
  std::string file_;
  History* history_ = nullptr;
  EditLine* editor_ = nullptr;
  MessageLines lines_;
  bool interrupted_ = false, line_was_empty_ = false;
};

#endif

}  // namespace

std::unique_ptr<ChatInput> piped_chat_input() {
  return std::make_unique<PipedInput>(false);
}

std::unique_ptr<ChatInput> terminal_chat_input(const std::string& history_file) {
#ifdef SWITCHYARD_NO_LIBEDIT
  (void)history_file;
  return std::make_unique<PipedInput>(true);
#else
  return std::make_unique<TerminalInput>(history_file);
#endif
}

}  // namespace switchyard
