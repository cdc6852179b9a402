// Fiber: a computation with its own stack. A thread runs the fiber until it suspends itself; any thread may
// resume it. thread_local state stays with the threads, except C++ exception state, which moves along.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace switchyard {

class Fiber {
 public:
  // The default size of a thread's stack. Only touched pages take memory.
  static constexpr std::size_t kStackBytes = std::size_t{8} << 20;
  // `body` must not throw. Error(usage) when the system gives no memory for the stack.
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = kStackBytes);
  ~Fiber();  // the fiber has ended, or never began
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it suspends itself or ends. Only one thread may call it at a time.
  void resume();
  // Returns to the thread that runs the fiber. Only the fiber itself calls it, and may continue on another
  // thread: no address of anything thread_local may be kept across the call.
  void suspend();
  bool ended() const { return ended_; }

 private:
  // The C++ run time's exception state of a thread (Itanium C++ ABI, Exception Handling, 2.2.2).
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };
  void swap_exceptions();
  // Tell sanitizers of every switch of stacks; empty without sanitizers.
  void leave_thread();
  void arrive_in_fiber();
  void leave_fiber();
  void arrive_in_thread();

  // The data passed to sanitizers at a switch.
  struct Marks {
    const void* stack = nullptr;  // lowest address, and size in bytes
    std::size_t stack_bytes = 0;
    const void* thread_stack = nullptr;
    std::size_t thread_stack_bytes = 0;
    void* fake_stack = nullptr;
    void* thread_fake_stack = nullptr;
    void* track = nullptr;
    void* thread_track = nullptr;
  };

  const std::function<void()> body_;
  boost::context::fiber inside_, outside_;  // where to continue in the fiber, and in its thread
  bool began_ = false, ended_ = false;
  Exceptions exceptions_;
  Marks marks_;
};

}  // namespace switchyard
