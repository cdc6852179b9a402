// Locks mutexes that are held for less time than it takes to sleep and wake: a thread that finds the mutex
// taken retries for about a microsecond before it sleeps.
#pragma once

#include <mutex>

namespace switchyard {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void lock_short(std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < 40; ++i) {
    if (lock.try_lock()) return;
    pause_briefly();
  }
  lock.lock();
}

inline std::unique_lock<std::mutex> lock_short(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::defer_lock);
  lock_short(lock);
  return lock;
}

}  // namespace switchyard
