#include "core/fiber.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace switchyard {
namespace {

TEST(Fiber, RunsOnWhereItLeftOffOnAnyThread) {
  std::vector<int> log;
  Fiber* self = nullptr;
  Fiber fiber([&] {
    std::string kept = "what is on its stack stays";
    for (int i = 0; i < 3; ++i) {
      log.push_back(i);
      self->suspend();
    }
    EXPECT_EQ(kept, "what is on its stack stays");
    log.push_back(3);
  });
  self = &fiber;
  fiber.resume();
  EXPECT_EQ(log, std::vector<int>({0}));
  while (!fiber.ended()) std::thread([&] { fiber.resume(); }).join();
  EXPECT_EQ(log, std::vector<int>({0, 1, 2, 3}));
}

// Two fibers take turns on separate threads while each is inside a catch block and inside a destructor that
// an exception runs: each fiber must find its own exception again.
TEST(Fiber, ExceptionsInFlightGoAlong) {
  struct Suspends {
    Fiber*& fiber;
    ~Suspends() {
      EXPECT_EQ(std::uncaught_exceptions(), 1);
      fiber->suspend();
      EXPECT_EQ(std::uncaught_exceptions(), 1);
    }
  };
  std::vector<Fiber*> selves(2);
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (std::size_t i = 0; i < 2; ++i) {
    fibers.push_back(std::make_unique<Fiber>([&selves, i] {
      const std::string own = "of fiber " + std::to_string(i);
      try {
        const Suspends suspends{selves[i]};
        throw std::runtime_error(own);
      } catch (const std::runtime_error&) {
        selves[i]->suspend();
        try {
          std::rethrow_exception(std::current_exception());
        } catch (const std::runtime_error& again) {
          EXPECT_EQ(again.what(), own);
          selves[i]->suspend();
        }
        try {
          throw;
        } catch (const std::runtime_error& again) {
          EXPECT_EQ(again.what(), own);
        }
      }
      EXPECT_EQ(std::uncaught_exceptions(), 0);
      EXPECT_EQ(std::current_exception(), nullptr);
    }));
    selves[i] = fibers[i].get();
  }
  while (!fibers[0]->ended() || !fibers[1]->ended()) {
    for (const auto& fiber : fibers) {
      if (!fiber->ended()) std::thread([&] { fiber->resume(); }).join();
    }
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  }
}

TEST(Fiber, MayGoAwayBeforeItBegins) {
  bool ran = false;
  {
    const Fiber fiber([&] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(Fiber, LeavesItsStackUnmarked) {
  // From the body's frame to the end of the page, and of the stack: what lies above are the outermost frames.
  constexpr std::uintptr_t kPage = 4096;
  char* on_stack = nullptr;
  const auto marked = [&] {
    return __asan_region_is_poisoned(on_stack, kPage - reinterpret_cast<std::uintptr_t>(on_stack) % kPage);
  };
  {
    Fiber fiber([&] {
      char local[64] = {};
      on_stack = local;
      EXPECT_NE(marked(), nullptr);
    });
    fiber.resume();
  }
  EXPECT_EQ(marked(), nullptr);
}
#endif

TEST(Fiber, HasRoomForDeepCalls) {
  struct Deep {
    static int call(int depth) {
      volatile char room[4096] = {};
      room[0] = static_cast<char>(depth);
      return depth == 0 ? room[0] : 1 + call(depth - 1) + room[0] * 0;
    }
  };
  int depth = 0;
  Fiber fiber([&] { depth = Deep::call(1000); });
  fiber.resume();
  EXPECT_EQ(depth, 1000);
}

// A limit of the address space is told in the words of one.
TEST(Fiber, SaysThatItsStackHasNoRoom) {
  try {
    const Fiber fiber([] {}, std::size_t{1} << 50);
    FAIL() << "a stack of a PiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find("ulimit -v"), std::string::npos);
  }
}

}  // namespace
}  // namespace switchyard
