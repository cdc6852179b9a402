#include "cli/tokenize_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/help_page.h"
#include "commands/options.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

constexpr const char* kTokenizeHelp = R"(switchyard tokenize TOKENIZER [--decode] [--json-lines]

Reads lines from standard input and writes for each the list of its ids, or with --decode for each list of ids its text.
TOKENIZER is a tokenizer.json, a SentencePiece *.model, a *.tiktoken file, Kimi's tiktoken.model, a folder with one of these, a GGUF file,
or the word byte.

  --decode      ids to text; special tokens give none
  --json-lines  the text of a line is a JSON string, so that it may hold line ends: "two\nlines"

Tokens that stand around a document (<s>, [CLS]) are not added. A carriage return before a line end belongs to the line.

Example:
  switchyard tokenize tests/golden/tokenizer/llama3.json < README.md
)";

struct Answer {
  std::string text;                  // a line, without its end
  std::optional<std::string> error;  // instead of it
};

nlohmann::json parsed(std::string_view line, const char* expected) {
  const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
  if (value.is_discarded()) fail_usage("expected {}, got {}", expected, in_quotes(line));
  return value;
}

std::string encode_line(const Tokenizer& tokenizer, std::string_view line, bool json_lines) {
  if (!json_lines) return nlohmann::json(tokenizer.encode(line)).dump();
  const nlohmann::json text = parsed(line, "a JSON string");
  if (!text.is_string()) fail_usage("expected a JSON string, got {}", in_quotes(line));
  return nlohmann::json(tokenizer.encode(text.get_ref<const std::string&>())).dump();
}

std::string decode_line(const Tokenizer& tokenizer, std::string_view line, bool json_lines) {
  const nlohmann::json list = parsed(line, "a list of ids");
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list.is_array() ? list : nlohmann::json::array({list})) {
    if (!list.is_array() || !id.is_number_integer() || id != id.get<std::int32_t>())
      fail_usage("expected a list of ids, got {}", in_quotes(line));
    if (id < 0 || id >= tokenizer.vocab_size())
      fail_usage("expected ids from 0 to {}, got {}", tokenizer.vocab_size() - 1, id.get<std::int32_t>());
    ids.push_back(id.get<std::int32_t>());
  }
  const std::string text = tokenizer.decode(ids);
  return json_lines ? nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                    : text;
}

// Answers lines on all cores; answers all lines that arrived before it waits for more.
class LineServer {
 public:
  LineServer(const Tokenizer& tokenizer, bool decode, bool json_lines)
      : tokenizer_(tokenizer), decode_(decode), json_lines_(json_lines), pool_(usable_cores()) {}

  void serve() {
    std::string pending;
    std::vector<char> block(1 << 20);
    for (;;) {
      const ssize_t got = ::read(STDIN_FILENO, block.data(), block.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_runtime("[tokenize] standard input: {}", std::strerror(errno));
      if (got == 0) break;
      pending.append(block.data(), static_cast<std::size_t>(got));
      const std::size_t whole = pending.rfind('\n');
      if (whole == std::string::npos) continue;
      answer(std::string_view(pending).substr(0, whole + 1));
      pending.erase(0, whole + 1);
    }
    if (!pending.empty()) answer(pending + "\n");
  }

 private:
  // `lines`: each with its end.
  void answer(std::string_view lines) {
    std::vector<std::string_view> list;
    for (std::size_t begin = 0; begin < lines.size();) {
      const std::size_t end = lines.find('\n', begin);
      list.push_back(lines.substr(begin, end - begin));
      begin = end + 1;
    }
    std::vector<Answer> answers(list.size());
    pool_.for_range(static_cast<std::int64_t>(list.size()), 16, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
        answers[i] = answer_line(list[i]);
    });
    for (const Answer& a : answers) {
      ++line_;
      if (a.error) {
        std::fflush(stdout);
        fail_usage("[tokenize] line {}: {}", line_, *a.error);
      }
      std::fwrite(a.text.data(), 1, a.text.size(), stdout);
      std::fputc('\n', stdout);
    }
    if (std::fflush(stdout) != 0) fail_runtime("[tokenize] standard output: {}", std::strerror(errno));
  }

  Answer answer_line(std::string_view line) const {
    try {
      return {
          decode_ ? decode_line(tokenizer_, line, json_lines_) : encode_line(tokenizer_, line, json_lines_),
          {}};
    } catch (const std::exception& e) {
      return {"", e.what()};
    }
  }

  const Tokenizer& tokenizer_;
  bool decode_, json_lines_;
  ThreadPool pool_;
  std::int64_t line_ = 0;
};

}  // namespace

int tokenize_command(std::span<const std::string> args) {
  const Options options = parse_options("tokenize", args);
  if (options.help) {
    print_help_page(kTokenizeHelp);
    return 0;
  }
  if (options.settings.size() != 1)
    fail_usage("[tokenize] expected one TOKENIZER, got {} (switchyard tokenize --help)",
               options.settings.size());
  const std::string& path = options.settings[0];
  const auto tokenizer = make_tokenizer(tokenizer_type_of(path), path == "byte" ? "" : path);
  LineServer(*tokenizer, options.flags.contains("--decode"), options.flags.contains("--json-lines")).serve();
  return 0;
}

}  // namespace switchyard
