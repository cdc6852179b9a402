#include "cli/help_page.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace switchyard {
namespace {

constexpr std::size_t kWidest = 100, kNarrowest = 40, kFarthestColumn = 40;
constexpr std::size_t kDeep = 8;  // lines from here on are text that goes on

std::size_t columns_in(std::string_view utf8) {
  return static_cast<std::size_t>(std::ranges::count_if(
      utf8, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

// A name with the text that explains it, or a paragraph.
struct Block {
  std::string first;       // what stands before the text
  std::size_t indent = 0;  // the text's column
  std::string text;
};

Block block_of(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  const std::size_t gap = line.find("  ", begin);
  if (line.starts_with("switchyard ")) return {"", 4, line};
  if (begin == 0 || gap == std::string::npos) return {std::string(begin, ' '), begin, line.substr(begin)};
  const std::size_t text = line.find_first_not_of(' ', gap);
  const std::size_t indent = std::min(columns_in(line.substr(0, text)), kFarthestColumn);
  return {line.substr(0, text), indent, line.substr(text)};
}

// Returns whether a line goes on with the text of a block.
bool goes_on(const Block& block, const std::string& line) {
  if (block.text.empty() || block.text.starts_with("switchyard ") || line.starts_with("switchyard "))
    return false;
  const std::size_t begin = line.find_first_not_of(' ');
  const bool is_paragraph = block.first.find_first_not_of(' ') == std::string::npos;
  return begin == block.indent && (begin == 0 || begin >= kDeep || !is_paragraph);
}

std::string filled(const Block& block, std::size_t width) {
  if (block.text.empty()) return "\n";
  if (block.text.ends_with(" \\")) return block.first + block.text + "\n";  // of a command for a shell
  std::string lines, line = block.first;
  bool has_word = false;
  std::istringstream words(block.text);
  for (std::string word; words >> word; has_word = true) {
    if (has_word && columns_in(line) + 1 + columns_in(word) > width) {
      lines += line + "\n";
      line = std::string(block.indent, ' ');
    } else if (has_word) {
      line += ' ';
    }
    line += word;
  }
  return lines + line + "\n";
}

std::size_t width_of_terminal() {
  winsize size{};
  const char* const columns = std::getenv("COLUMNS");
  std::size_t width = columns != nullptr ? std::strtoul(columns, nullptr, 10) : 0;
  if (width == 0 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) width = size.ws_col;
  return width == 0 ? kWidest : std::clamp(width, kNarrowest, kWidest);
}

}  // namespace

std::string wrapped_help(std::string_view page, std::size_t width) {
  const std::size_t examples = std::min(page.find("\nExample"), page.size());
  std::istringstream lines{std::string(page.substr(0, examples))};
  std::string wrapped;
  Block block;
  bool has_block = false;
  for (std::string line; std::getline(lines, line);) {
    if (has_block && !line.empty() && goes_on(block, line)) {
      block.text += " " + line.substr(block.indent);
      continue;
    }
    if (has_block) wrapped += filled(block, width);
    block = line.empty() ? Block{} : block_of(line);
    has_block = true;
  }
  if (has_block) wrapped += filled(block, width);
  return wrapped + std::string(page.substr(examples));
}

void print_help_page(std::string_view page) {
  std::fputs(wrapped_help(page, width_of_terminal()).c_str(), stdout);
}

}  // namespace switchyard
