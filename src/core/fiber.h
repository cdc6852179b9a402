// Fiber: a computation with a stack of its own. A thread runs it until it suspends itself; any thread may run
// it on. What is thread_local stays with the threads, but for C++'s exceptions, which go along.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace switchyard {

class Fiber {
 public:
  // As much as threads have by default. Only what is touched takes memory.
  static constexpr std::size_t kStackBytes = std::size_t{8} << 20;
  // `body` must not throw.
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = kStackBytes);
  ~Fiber();  // it has ended, or never began
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs it, or runs it on, until it suspends itself or ends. By one thread at a time.
  void resume();
  // Back to the thread that runs it. For the fiber itself, which may find itself on another thread then: no
  // address of anything thread_local may be kept over this.
  void suspend();
  bool ended() const { return ended_; }

 private:
  // What C++'s run time keeps of a thread's exceptions (Itanium C++ ABI, Exception Handling, 2.2.2).
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };
  void swap_exceptions();
  // For sanitizers, around every switch; nothing without them.
  void leave_thread();
  void arrive_in_fiber();
  void leave_fiber();
  void arrive_in_thread();

  // What sanitizers are told at a switch.
  struct Marks {
    const void* stack = nullptr;  // lowest address, and bytes
    std::size_t stack_bytes = 0;
    const void* thread_stack = nullptr;
    std::size_t thread_stack_bytes = 0;
    void* fake_stack = nullptr;
    void* thread_fake_stack = nullptr;
    void* track = nullptr;
    void* thread_track = nullptr;
  };

  const std::function<void()> body_;
  boost::context::fiber inside_, outside_;  // where to go on in it, and in its thread
  bool began_ = false, ended_ = false;
  Exceptions exceptions_;
  Marks marks_;
};

}  // namespace switchyard
