#include "cli/chat_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>

#include "cli/chat/input.h"
#include "cli/chat/local.h"
#include "cli/chat/session.h"
#include "cli/help_page.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "commands/options.h"
#include "commands/sampling_words.h"
#include "commands/serving.h"
#include "core/error.h"
#include "core/json_file.h"
#include "parallel/comm/stop_signal.h"

namespace switchyard {
namespace {

constexpr const char* kChatHelp =
    R"(switchyard chat FOLDER|FILE.gguf [key=value ...] [--tool-format NAME] [--reasoning-format NAME]
switchyard chat --url URL [--api-key-file FILE] [key=value ...]

A conversation with a model at a terminal. FOLDER holds the weights, as for `serve`, and may be a GGUF file; --url asks another server that speaks
OpenAI's chats instead. A line is a message; one that ends with \ goes on in the next, and so do lines between """ and """.
A model without a chat template goes on from each line. /help lists the commands. Ctrl-C ends an answer, which stays as far as it came; Ctrl-D ends the program.
Where standard input is no terminal, each line is a message, and only answers are printed.

  system=TEXT                 the system's text
  reasoning=show|hide|fold    how reasoning is shown: grey, not at all, or as one line
  history=off|FILE            what was typed; without, ~/.local/state/switchyard/history
  temperature=0.7 top_p=0.9 top_k=40 min_p=0.05 max_tokens=200 seed=7 stop=TEXT
  presence_penalty= frequency_penalty= repetition_penalty=
                              what requests say, as in `generate` and `serve`; with FOLDER, tokens are drawn
                              as its generation_config.json says, or at temperature 0.7; temperature=0: the
                              most probable one
  chat_template_kwargs={"enable_thinking": false}    what the template gets
  model=NAME reasoning_effort=low …    with --url: other fields of its requests
  decode_sampling_strategy=greedy    and the other keys of `generate` and `serve`, with FOLDER

Exit status: 0 ended, 1 failed or, in a pipe, an answer or a command was an error, 2 wrong command line, config or file, 130 Ctrl-C twice.

Examples:
  switchyard chat switchyard_output/mine
  switchyard chat model-Q4_K_M.gguf
  switchyard chat --url http://127.0.0.1:8000 system="Be brief."
  echo "Hello!" | switchyard chat switchyard_output/mine
)";

// Settings that are the terminal's own, taken out of those for the model.
struct OwnSettings {
  std::string system, reasoning = "show", history;
  std::vector<std::string> others;
};

OwnSettings own_settings(const Options& options) {
  OwnSettings own;
  for (const std::string& setting : options.settings) {
    const std::size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    if (equals != std::string::npos && name == "system")
      own.system = setting.substr(equals + 1);
    else if (equals != std::string::npos && name == "reasoning")
      own.reasoning = setting.substr(equals + 1);
    else if (equals != std::string::npos && name == "history")
      own.history = setting.substr(equals + 1);
    else
      own.others.push_back(setting);
  }
  if (own.reasoning != "show" && own.reasoning != "hide" && own.reasoning != "fold")
    fail_usage("[chat] reasoning: expected show, hide or fold, got {}", own.reasoning);
  return own;
}

// Ctrl-C while an answer is made.
std::atomic<bool> answer_interrupted{false};

class CatchInterrupt {
 public:
  CatchInterrupt() {
    answer_interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { answer_interrupted = true; };
    sigaction(SIGINT, &action, &before_);
  }
  ~CatchInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

 private:
  struct sigaction before_ {};
};

void write_now(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

void refuse_system_of(const std::string& model, bool chats, const OwnSettings& own) {
  if (!chats && !own.system.empty())
    fail_usage("[chat] system: {} has no chat template: it goes on from what you type", model);
}

// The conversation, from the first line to the last. Returns the exit status.
// `may_try_again`: another server may answer later.
int converse(ChatBackend& backend, const OwnSettings& own, ChatJson fields, bool may_try_again) {
  const AnsweringModel model = backend.model(fields.value("model", ""));
  refuse_system_of(model.name, model.chats, own);
  ChatSession::Settings settings;
  settings.completes = !model.chats;
  settings.fields = std::move(fields);
  settings.system = own.system;
  settings.reasoning = own.reasoning == "show"   ? ShownReasoning::show
                       : own.reasoning == "hide" ? ShownReasoning::hide
                                                 : ShownReasoning::fold;
  settings.is_terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
  settings.may_try_again = may_try_again && settings.is_terminal;
  std::unique_ptr<ChatInput> input;
  if (settings.is_terminal) {
    const std::string file = own.history == "off"  ? ""
                             : own.history.empty() ? usual_history_file()
                                                   : own.history;
    input = terminal_chat_input(file);
    write_now(stderr, greeting_of(model));
  } else {
    input = piped_chat_input();
  }
  ChatSession session(backend, settings,
                      {[](std::string_view text) { write_now(stdout, text); },
                       [](std::string_view text) { write_now(stderr, text); }},
                      [] { return !answer_interrupted && stop_signal() == 0; });
  try {
    while (std::optional<std::string> message = input->next()) {
      const CatchInterrupt catching;
      if (!session.take(*message)) break;
      if (stop_signal() != 0) break;
    }
  } catch (const ChatInterrupted&) {
    return 130;
  }
  return session.has_failed() && !settings.is_terminal ? 1 : 0;
}

// With --url the settings are fields of requests.
ChatJson fields_of(const std::vector<std::string>& settings) {
  ChatJson fields = ChatJson::object();
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      fail_usage("[chat] expected key=value beside --url, got {}", setting);
    const std::string name = setting.substr(0, equals);
    fields[name] = request_field(name, setting.substr(equals + 1));
  }
  return fields;
}

int chat_with_server(const Options& options) {
  for (const char* const option : kChatOptions) {
    if (options.values.contains(option) || options.flags.contains(option))
      fail_usage("[chat] {}: is for a model in this process, not for --url", option);
  }
  const OwnSettings own = own_settings(options);
  std::string key;
  if (const char* const given = std::getenv("SWITCHYARD_API_KEY")) key = given;
  if (const auto file = options.values.find("--api-key-file"); file != options.values.end()) {
    const std::string text = read_whole_file(file->second);
    key = text.substr(0, text.find_first_of("\r\n"));
  }
  const std::unique_ptr<ChatBackend> backend = remote_chat(options.values.at("--url"), key);
  return converse(*backend, own, fields_of(own.others), true);
}

int chat_with_model(const Options& options, Processes& processes) {
  const OwnSettings own = own_settings(options);
  if (own.others.empty()) fail_usage("[chat] expected the folder of a model, or --url URL");
  const bool first = processes.index() == 0;
  const Serving serving = make_serving("chat", processes, options, own.others, 1);
  refuse_system_of(serving.served.name, serving.served.chat != nullptr, own);
  texts::Inbox inbox(serving.limits);
  std::thread terminal;
  std::exception_ptr problem;
  int status = 0;
  // The terminal's thread talks; this one, with the ranks, makes the texts.
  const auto talk = [&](const Startup&) {
    terminal = std::thread([&] {
      try {
        const std::unique_ptr<ChatBackend> backend = local_chat(serving.served, inbox);
        status = converse(*backend, own, ChatJson::object(), false);
      } catch (...) {
        problem = std::current_exception();
      }
      inbox.close();
    });
  };
  const auto finish = [&] {
    inbox.close();
    if (terminal.joinable()) terminal.join();
  };
  try {
    run_serving(serving, processes, inbox, texts::Observer::none(),
                {.tell = print_warning,
                 .loading = load_bar(),
                 .before_texts = catch_stop_signals,  // until here one ends the process at once
                 .ready = talk,
                 .between = [&] {
                   if (stop_signal() != 0) inbox.close();
                 }});
  } catch (...) {
    finish();
    throw;
  }
  finish();
  if (problem) std::rethrow_exception(problem);
  return first ? status : 0;
}

}  // namespace

int chat_command(std::span<const std::string> args) {
  const Options options = parse_options("chat", args);
  if (options.help) {
    print_help_page(kChatHelp);
    return 0;
  }
  if (options.values.contains("--url")) return chat_with_server(options);
  if (options.values.contains("--api-key-file"))
    fail_usage("[chat] --api-key-file: expected --url beside it");
  return run_in_processes([&](Processes& processes) { return chat_with_model(options, processes); });
}

}  // namespace switchyard
