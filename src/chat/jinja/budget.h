// Budget: what one rendering may still use. A template is foreign code, so every loop, text and recursion of
// the interpreter asks here first. It is of the thread, so that a text's destructor can give its bytes back.
#pragma once

#include <cstddef>
#include <string>

#include "chat/jinja/template.h"

namespace switchyard::jinja {

class Budget {
 public:
  // Makes itself the budget of this thread until it ends; the stack is counted from here.
  explicit Budget(const RenderLimits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // TemplateError of kind limit. On a thread without a budget (while a template is parsed) they do nothing.
  static void count_steps(std::size_t steps = 1);
  static void count_text(std::size_t bytes) { count_steps(1 + bytes / kTextBytesOfStep); }
  static void check_stack();
  // Fails before memory for a text of `bytes` bytes is asked for.
  static void check_bytes(std::size_t bytes);
  // Bytes of values that live; give_back() takes what take() answered.
  static std::size_t take(std::size_t bytes);
  static void give_back(std::size_t bytes);

  const RenderLimits& limits() const { return limits_; }

 private:
  static constexpr std::size_t kTextBytesOfStep = 256;
  // Threads have 8 MiB; frames under AddressSanitizer are several times larger than others.
  static constexpr std::ptrdiff_t kStackBytes = std::ptrdiff_t{2} << 20;

  RenderLimits limits_;
  std::size_t steps_ = 0, bytes_ = 0;
  const char* stack_base_;
  Budget* outer_;
};

[[noreturn]] void fail(TemplateError::Kind kind, const std::string& message);
[[noreturn]] void fail_other(const std::string& message);
[[noreturn]] void fail_limit(const std::string& message);

}  // namespace switchyard::jinja
