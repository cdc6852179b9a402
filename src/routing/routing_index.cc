#include "routing/routing_index.h"

#include <algorithm>
#include <numeric>

namespace switchyard {
namespace {

using TokenSpan = std::span<const std::int32_t>;

std::size_t common_prefix(TokenSpan a, TokenSpan b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first - a.begin());
}

}  // namespace

RoutingIndex::RoutingIndex(RoutingFile file) : file_(std::move(file)), order_(file_.records().size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
    return std::ranges::lexicographical_compare(file_.records()[a].tokens, file_.records()[b].tokens);
  });
}

std::optional<RoutingIndex::Found> RoutingIndex::find(TokenSpan text, const RoutingSource& source) const {
  const auto tokens = [&](std::size_t place) { return file_.records()[place].tokens; };
  const auto first_from = [&](TokenSpan wanted) {
    return std::partition_point(order_.begin(), order_.end(), [&](std::size_t place) {
      return std::ranges::lexicographical_compare(tokens(place), wanted);
    });
  };
  // Records that share most leading tokens with the text are next to the text's own place in the order.
  const auto near = first_from(text);
  std::size_t common = 0;
  if (near != order_.end()) common = common_prefix(tokens(*near), text);
  if (near != order_.begin()) common = std::max(common, common_prefix(tokens(*std::prev(near)), text));
  if (common == 0 || common + 2 < text.size()) return std::nullopt;
  const TokenSpan shared = text.first(common);
  std::optional<std::size_t> best;
  for (auto at = first_from(shared); at != order_.end() && common_prefix(tokens(*at), shared) == common;
       ++at) {
    if (file_.records()[*at].source == source) {
      best = *at;
      break;
    }
    best = std::max(best.value_or(*at), *at);
  }
  return Found{&file_.records()[*best], static_cast<std::int64_t>(common)};
}

}  // namespace switchyard
