#include "data/best_fit.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "core/error.h"

namespace switchyard {

std::vector<std::vector<std::int64_t>> best_fit(std::span<const std::int64_t> lengths, std::int64_t room,
                                                std::int64_t most) {
  const auto length = [&](std::int64_t d) { return lengths[static_cast<std::size_t>(d)]; };
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
  std::vector<std::vector<std::int64_t>> rows;
  std::map<std::int64_t, std::deque<std::size_t>> open;  // rows by the room they have, those that came first
  for (const std::int64_t d : order) {
    CHECK(length(d) >= 1 && length(d) <= room, "a document of {} in rows of {}", length(d), room);
    std::size_t row = rows.size();
    std::int64_t left = room;
    if (const auto best = open.lower_bound(length(d)); best != open.end()) {
      left = best->first;
      row = best->second.front();
      best->second.pop_front();
      if (best->second.empty()) open.erase(best);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(d);
    const bool full = most > 0 && static_cast<std::int64_t>(rows[row].size()) >= most;
    if (left > length(d) && !full) open[left - length(d)].push_back(row);
  }
  return rows;
}

}  // namespace switchyard
