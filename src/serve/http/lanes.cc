#include "serve/http/lanes.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace switchyard::http {
namespace {

// A chat of 64 KB takes some milliseconds until it is in the queue, a body of 16 MB more than a second.
constexpr std::pair<std::size_t, std::size_t> kCostsAndThreads[] = {
    {Lanes::kLeastOfSlow - 1, 2},
    {std::size_t{1} << 20, 3},
    {std::size_t{4} << 20, 2},
    {std::numeric_limits<std::size_t>::max(), 1},
};

}  // namespace

Lanes::Lanes() {
  for (const auto& [most_cost, threads] : kCostsAndThreads) lanes_.emplace_back(most_cost, threads);
}

boost::asio::thread_pool::executor_type Lanes::executor_of(std::size_t cost) {
  const auto lane = std::ranges::find_if(lanes_, [&](const Lane& one) { return cost <= one.most_cost; });
  return lane->threads.get_executor();
}

void Lanes::join() {
  for (Lane& lane : lanes_) lane.threads.join();
}

}  // namespace switchyard::http
