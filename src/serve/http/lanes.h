// Lanes: the threads that run the handlers of POST. Requests that cost little do not wait for those that cost
// much: each lane has threads of its own. The last lane has one, which bounds what
// such requests hold at once.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <list>

namespace switchyard::http {

class Lanes {
 public:
  // Costs from here on never hold up requests that are known to cost little.
  static constexpr std::size_t kLeastOfSlow = (std::size_t{64} << 10) + 1;
  Lanes();
  // `cost`: bytes of a plain body, or as many as make so much work (Route::cost).
  boost::asio::thread_pool::executor_type executor_of(std::size_t cost);
  // Waits for the handlers that run.
  void join();

 private:
  struct Lane {
    std::size_t most_cost;
    boost::asio::thread_pool threads;
  };
  std::list<Lane> lanes_;  // by cost
};

}  // namespace switchyard::http
