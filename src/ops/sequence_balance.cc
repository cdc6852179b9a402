#include "ops/sequence_balance.h"

#include <algorithm>

#include "kernels/pointwise/strided_copy.h"

namespace switchyard {
namespace {

enum class ChunkOrder { contiguous, balanced };

// The index among 2P chunks over P ranks, two chunks per rank.
std::int64_t chunk_of(ChunkOrder layout, std::int64_t ranks, std::int64_t rank, std::int64_t half) {
  if (layout == ChunkOrder::contiguous) return 2 * rank + half;
  return half == 0 ? rank : 2 * ranks - 1 - rank;
}
std::int64_t rank_of(ChunkOrder layout, std::int64_t ranks, std::int64_t chunk) {
  if (layout == ChunkOrder::contiguous) return chunk / 2;
  return chunk < ranks ? chunk : 2 * ranks - 1 - chunk;
}

// One of this rank's two halves, and the rank it goes to or comes from.
struct Transfer {
  std::int64_t peer, chunk, half;
};

std::vector<Transfer> transfers(ChunkOrder mine, ChunkOrder theirs, std::int64_t ranks, std::int64_t rank) {
  std::vector<Transfer> result;
  for (std::int64_t half = 0; half < 2; ++half) {
    const std::int64_t chunk = chunk_of(mine, ranks, rank, half);
    result.push_back({rank_of(theirs, ranks, chunk), chunk, half});
  }
  if (std::pair(result[1].peer, result[1].chunk) < std::pair(result[0].peer, result[0].chunk))
    std::swap(result[0], result[1]);
  return result;
}

// Rows per peer, and where those of each begin.
struct Counts {
  std::vector<std::int64_t> count, offset;
};

Counts counts_of(const std::vector<Transfer>& transfers, std::int64_t ranks) {
  Counts c{std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 0),
           std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 0)};
  for (const Transfer& t : transfers) ++c.count[static_cast<std::size_t>(t.peer)];
  for (std::size_t r = 1; r < c.count.size(); ++r) c.offset[r] = c.offset[r - 1] + c.count[r - 1];
  return c;
}

class MoveChunksOp : public Op {
 public:
  MoveChunksOp(ChunkOrder from, ChunkOrder to) : from_(from), to_(to) {}
  std::string_view name() const override {
    return to_ == ChunkOrder::balanced ? "balance_sequence" : "unbalance_sequence";
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    return {move(c, in[0], infos[0].sharding.dims[1], from_, to_)};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {move(c, call.grad(0), call.input_info(0).sharding.dims[1], to_, from_)};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  static Tensor move(Context& c, const Tensor& x, const Axes& axes, ChunkOrder from, ChunkOrder to) {
    const ProcessGroup& group = c.group(axes);
    const auto ranks = group.size();
    const auto sent = transfers(from, to, ranks, group.index),
               received = transfers(to, from, ranks, group.index);
    Shape half = x.shape();
    half[1] /= 2;
    Shape packed = half;
    packed.insert(packed.begin(), 2);  // the rows that move are halves of all sequences
    const Tensor outgoing = c.empty(x.dtype(), packed), incoming = c.empty(x.dtype(), packed),
                 result = c.empty(x.dtype(), x.shape());
    const auto half_of = [&](const Tensor& whole, std::int64_t i) {
      return whole.view().slice(1, i * half[1], half[1]);
    };
    const auto row_of = [&](const Tensor& rows, std::int64_t i) {
      return rows.view().slice(0, i, 1).reshaped(half);
    };
    for (std::int64_t i = 0; i < 2; ++i)
      strided_copy(*c.pool, half_of(x, sent[static_cast<std::size_t>(i)].half), row_of(outgoing, i));
    const Counts out = counts_of(sent, ranks), in = counts_of(received, ranks);
    c.comm->ragged_all_to_all(group, outgoing.view(), {out.offset, out.count}, incoming.view(),
                              {in.offset, in.count});
    for (std::int64_t i = 0; i < 2; ++i)
      strided_copy(*c.pool, row_of(incoming, i), half_of(result, received[static_cast<std::size_t>(i)].half));
    return result;
  }

  ChunkOrder from_, to_;
};

}  // namespace

bool can_balance_sequence(const Context& context, const Array& x) {
  const std::int64_t ranks = context.mesh->product(x.sharding().dims[1]);
  return ranks > 1 && x.shape()[1] % (2 * ranks) == 0;
}

Array balance_sequence(Context& context, const Array& x) {
  return apply_one(context, std::make_shared<MoveChunksOp>(ChunkOrder::contiguous, ChunkOrder::balanced),
                   {x});
}

Array unbalance_sequence(Context& context, const Array& x) {
  return apply_one(context, std::make_shared<MoveChunksOp>(ChunkOrder::balanced, ChunkOrder::contiguous),
                   {x});
}

std::pair<std::int64_t, std::int64_t> balanced_halves(const Context& context, const ArrayInfo& x) {
  const Axes& axes = x.sharding.dims[1];
  const std::int64_t ranks = context.mesh->product(axes),
                     rank = context.mesh->index_along(context.rank, axes);
  const std::int64_t chunk = x.shape[1] / (2 * ranks);
  return {chunk * chunk_of(ChunkOrder::balanced, ranks, rank, 0),
          chunk * chunk_of(ChunkOrder::balanced, ranks, rank, 1)};
}

}  // namespace switchyard
