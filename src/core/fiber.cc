#include "core/fiber.h"

#include <cxxabi.h>

#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "core/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace switchyard {
namespace {

using GuardedStack = boost::context::protected_fixedsize_stack;

#if defined(__SANITIZE_ADDRESS__)
// A fiber's outermost frames never return, so the address sanitizer's marks around their variables remain.
// They are cleared with the stack; otherwise the next owner of the addresses would get false reports.
class StackAllocator : public GuardedStack {
 public:
  explicit StackAllocator(std::size_t bytes) : GuardedStack(bytes) {}

  void deallocate(boost::context::stack_context& stack) noexcept {
    __asan_unpoison_memory_region(static_cast<std::byte*>(stack.sp) - stack.size, stack.size);
    GuardedStack::deallocate(stack);
  }
};
#else
using StackAllocator = GuardedStack;
#endif

}  // namespace

Fiber::Fiber(std::function<void()> body, std::size_t stack_bytes) : body_(std::move(body)) {
  namespace context = boost::context;
  StackAllocator allocator(stack_bytes);
  const context::stack_context stack = [&] {
    try {
      return allocator.allocate();
    } catch (const std::bad_alloc&) {
      fail_usage(
          "[ranks] no memory for the stack of a rank ({} bytes): raise the limit of address space (ulimit "
          "-v) or of "
          "data (ulimit -d), or let fewer ranks share a process",
          stack_bytes);
    }
  }();
  marks_.stack_bytes = stack.size;
  marks_.stack = static_cast<const std::byte*>(stack.sp) - stack.size;
#if defined(__SANITIZE_THREAD__)
  marks_.track = __tsan_create_fiber(0);
#endif
  inside_ = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), allocator,
                           [this](context::fiber&& thread) {
                             outside_ = std::move(thread);
                             arrive_in_fiber();
                             body_();
                             ended_ = true;
                             leave_fiber();
                             return std::move(outside_);
                           });
}

Fiber::~Fiber() {
  CHECK(ended_ || !began_, "a fiber goes away before it has ended");
  if (!began_) {  // its stack is unwound on itself
    leave_thread();
    inside_ = {};
    arrive_in_thread();
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(marks_.track);
#endif
}

void Fiber::resume() {
  began_ = true;
  swap_exceptions();
  leave_thread();
  inside_ = std::move(inside_).resume();
  arrive_in_thread();
  swap_exceptions();
}

void Fiber::suspend() {
  leave_fiber();
  outside_ = std::move(outside_).resume();
  arrive_in_fiber();
}

void Fiber::swap_exceptions() {
  void* const of_thread = abi::__cxa_get_globals();
  Exceptions own;
  std::memcpy(&own, of_thread, sizeof own);
  std::memcpy(of_thread, &exceptions_, sizeof own);
  exceptions_ = own;
}

// The thread sanitizer keeps the calls of every fiber apart. It hears of both switches on the thread's side,
// from functions that it does not count itself: so each call ends where it began.
[[gnu::no_sanitize("thread")]] void Fiber::leave_thread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&marks_.thread_fake_stack, marks_.stack, marks_.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  marks_.thread_track = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(marks_.track, 0);
#endif
}

void Fiber::arrive_in_fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(marks_.fake_stack, &marks_.thread_stack, &marks_.thread_stack_bytes);
#endif
}

void Fiber::leave_fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ended_ ? nullptr : &marks_.fake_stack, marks_.thread_stack,
                                 marks_.thread_stack_bytes);
#endif
}

[[gnu::no_sanitize("thread")]] void Fiber::arrive_in_thread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(marks_.thread_fake_stack, nullptr, nullptr);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(marks_.thread_track, 0);
#endif
}

}  // namespace switchyard
