#include "chat/jinja/budget.h"

#include <fmt/format.h>

namespace switchyard::jinja {

namespace {

thread_local Budget* budget_of_thread = nullptr;

const char* stack_address() {
  return static_cast<const char*>(__builtin_frame_address(0));
}

}  // namespace

Budget::Budget(const RenderLimits& limits)
    : limits_(limits), stack_base_(stack_address()), outer_(budget_of_thread) {
  budget_of_thread = this;
}

Budget::~Budget() {
  budget_of_thread = outer_;
}

void Budget::count_steps(std::size_t steps) {
  Budget* budget = budget_of_thread;
  if (budget == nullptr) return;
  budget->steps_ += steps;
  if (budget->steps_ > budget->limits_.steps || steps > budget->limits_.steps) {
    fail_limit(fmt::format("the template takes more than {} steps", budget->limits_.steps));
  }
}

void Budget::check_stack() {
  const Budget* budget = budget_of_thread;
  if (budget == nullptr) return;
  // This is negative in the function that made the budget, where the constructor's frame was the larger one.
  const std::ptrdiff_t used = budget->stack_base_ - stack_address();
  if (used > kStackBytes) fail_limit("the template or its values are nested too deep");
}

void Budget::check_bytes(std::size_t bytes) {
  const Budget* budget = budget_of_thread;
  if (budget == nullptr) return;
  if (bytes > budget->limits_.bytes || budget->bytes_ > budget->limits_.bytes - bytes) {
    fail_limit(fmt::format("the template makes more than {} bytes", budget->limits_.bytes));
  }
}

std::size_t Budget::take(std::size_t bytes) {
  if (budget_of_thread == nullptr) return 0;
  check_bytes(bytes);
  budget_of_thread->bytes_ += bytes;
  return bytes;
}

void Budget::give_back(std::size_t bytes) {
  if (budget_of_thread != nullptr) budget_of_thread->bytes_ -= bytes;
}

void fail(TemplateError::Kind kind, const std::string& message) {
  throw TemplateError(kind, message);
}
void fail_other(const std::string& message) {
  fail(TemplateError::Kind::other, message);
}
void fail_limit(const std::string& message) {
  fail(TemplateError::Kind::limit, message);
}

}  // namespace switchyard::jinja
