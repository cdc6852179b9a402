#include "tokenizer/bpe.h"

#include <queue>
#include <tuple>

namespace switchyard {
namespace {

struct Node {
  BpeSymbol symbol;
  std::int32_t begin;           // first byte in the piece
  std::int32_t previous, next;  // -1 at the ends
  bool joined = false;          // into its left neighbour
};

struct Candidate {
  BpeMerge merge;
  std::int32_t left;               // index of the left node
  std::int32_t left_id, right_id;  // as they were; a candidate whose symbols have changed since is stale
};

struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.merge.rank, a.left) > std::tie(b.merge.rank, b.left);
  }
};

}  // namespace

void bpe_merge_long(const std::vector<BpeSymbol>& symbols, const BpePairLookup& pair,
                    std::vector<std::int32_t>& ids) {
  std::vector<Node> nodes;
  nodes.reserve(symbols.size());
  std::int32_t begin = 0;
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const BpeSymbol& symbol = symbols[static_cast<std::size_t>(i)];
    nodes.push_back({symbol, begin, i - 1, i + 1 < count ? i + 1 : -1});
    begin += symbol.length;
  }
  const auto at = [&](std::int32_t i) -> Node& { return nodes[static_cast<std::size_t>(i)]; };
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue;
  const auto consider = [&](std::int32_t left) {
    if (left < 0 || at(left).next < 0) return;
    const BpeSymbol &a = at(left).symbol, &b = at(at(left).next).symbol;
    if (const auto merge = pair(a, b, at(left).begin)) queue.push({*merge, left, a.id, b.id});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& left = at(best.left);
    if (left.joined || left.symbol.id != best.left_id || left.next < 0 ||
        at(left.next).symbol.id != best.right_id)
      continue;
    Node& right = at(left.next);
    left.symbol = {best.merge.id, left.symbol.length + right.symbol.length};
    right.joined = true;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (const Node& node : nodes) {
    if (!node.joined) ids.push_back(node.symbol.id);
  }
}

}  // namespace switchyard
