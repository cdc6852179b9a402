// Ragged all-to-all.
//
// Steps over P ranks: all-gather E counts, sort the local rows by expert (no dropped ones), send each rank
// its experts' rows with their weights (R·M bytes in all, less what stays on its rank), regroup rows from
// (source, expert) to (expert, source) order, run the experts, go the same way back. No padding.
#include <numeric>
#include <utility>

#include "autograd/ahead.h"
#include "kernels/moe/plan_rows.h"
#include "kernels/pointwise/strided_copy.h"
#include "moe/assumed_load.h"
#include "moe/dispatch/common.h"
#include "moe/dispatch/passes.h"
#include "moe/expert_mlp.h"
#include "ops/reshard.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

// Rows per expert of every source rank, before dropping: i32 [P,E].
class ExchangeCountsOp : public Op {
 public:
  ExchangeCountsOp(Axes axes, std::int64_t experts) : axes_(std::move(axes)), experts_(experts) {}
  std::string_view name() const override { return "exchange_counts"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {ragged_info(DType::i32, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor mine = c.empty(DType::i32, {experts_}),
                 all = c.empty(DType::i32, {c.mesh->product(axes_), experts_});
    count_ids(*c.pool, in[0].view(), 0, mine.view());
    c.comm->all_gather(c.group(axes_), mine.view(), all.view());
    return {all};
  }
  bool differentiable() const override { return false; }

 private:
  Axes axes_;
  std::int64_t experts_;
};

// Who sends how many rows to whom, from the kept counts [P][E].
struct Routes {
  RowCounts kept;
  std::int64_t per_rank;  // experts a rank
  std::size_t me;

  std::int64_t rows(std::size_t source, std::size_t destination) const {
    const auto begin = kept[source].begin() + static_cast<std::ptrdiff_t>(destination) * per_rank;
    return std::accumulate(begin, begin + per_rank, std::int64_t{0});
  }
  std::vector<std::int64_t> sent() const {
    std::vector<std::int64_t> n;
    for (std::size_t j = 0; j < kept.size(); ++j) n.push_back(rows(me, j));
    return n;
  }
  std::vector<std::int64_t> received() const {
    std::vector<std::int64_t> n;
    for (std::size_t i = 0; i < kept.size(); ++i) n.push_back(rows(i, me));
    return n;
  }
};

std::vector<std::int64_t> offsets(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> result(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), result.begin(), std::int64_t{0});
  return result;
}

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Rows [from_row, from_row + count) of `from` to row `to_row` on of `to`.
void copy_rows(Context& c, const TensorView& from, std::int64_t from_row, const TensorView& to,
               std::int64_t to_row, std::int64_t count) {
  if (count == 0) return;
  Shape shape = to.shape();
  shape[0] = count;
  // `from` may have more rows than its shape says: it is another rank's (SharedMemory::Take).
  strided_copy(*c.pool, from.block(from_row * from.stride(0), shape, from.strides()),
               to.rows(to_row, to_row + count));
}

// Rows in (source, expert) order to (expert, source) order, or back.
void regroup(Context& c, const Routes& routes, const TensorView& from, const TensorView& to, bool back) {
  std::int64_t by_expert = 0;
  for (std::int64_t e = 0; e < routes.per_rank; ++e) {
    std::int64_t source_begin = 0;
    for (std::size_t i = 0; i < routes.kept.size(); ++i) {
      const auto begin = routes.kept[i].begin() + static_cast<std::ptrdiff_t>(routes.me) * routes.per_rank;
      const std::int64_t n = *(begin + e);
      const std::int64_t by_source = source_begin + std::accumulate(begin, begin + e, std::int64_t{0});
      copy_rows(c, from, back ? by_expert : by_source, to, back ? by_source : by_expert, n);
      by_expert += n;
      source_begin += routes.rows(i, routes.me);
    }
  }
}

// Moves rows to their experts' ranks (or, `back`, home again). Its gradient is the move the other way.
class ExchangeRowsOp : public Op {
 public:
  ExchangeRowsOp(Axes axes, Routes routes, bool back)
      : axes_(std::move(axes)), routes_(std::move(routes)), back_(back) {}
  std::string_view name() const override { return back_ ? "return_rows" : "send_rows"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, in[0].local.size())};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {move(c, in[0], back_)};
  }
  std::unique_ptr<StartedOp> start(Context& c, std::span<const Tensor> in) const override {
    return std::make_unique<StartedMove>(c, *this, in[0]);
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {move(c, call.grad(0), !back_)};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  // Rows on their way: `from` and `to` are [rows] in (source, expert) order away, in the order
  // of the plan at home.
  struct Move {
    Tensor from, to;
    std::vector<std::int64_t> send_offsets, sent, receive_offsets, received;
  };
  Move prepare(Context& c, const Tensor& x, bool back) const {
    Move m;
    m.sent = back ? routes_.received() : routes_.sent();
    m.received = back ? routes_.sent() : routes_.received();
    CHECK(x.dim(0) == total(m.sent), "{} rows, planned {}", x.dim(0), total(m.sent));
    m.send_offsets = offsets(m.sent);
    m.receive_offsets = offsets(m.received);
    m.from = x;
    if (back) {
      m.from = c.empty(x.dtype(), x.shape());
      regroup(c, routes_, x.view(), m.from.view(), true);
    }
    Shape shape = x.shape();
    shape[0] = total(m.received);
    m.to = c.empty(x.dtype(), shape);
    return m;
  }
  Tensor arrived(Context& c, const Move& m, bool back) const {
    if (back) return m.to;
    const Tensor out = c.empty(m.to.dtype(), m.to.shape());
    regroup(c, routes_, m.to.view(), out.view(), false);
    return out;
  }
  Tensor move(Context& c, const Tensor& x, bool back) const {
    if (shares_memory(c)) return move_shared(c, x, back);
    const Move m = prepare(c, x, back);
    c.comm->ragged_all_to_all(c.group(axes_), m.from.view(), {m.send_offsets, m.sent}, m.to.view(),
                              {m.receive_offsets, m.received});
    return arrived(c, m, back);
  }

  // Among ranks of one process: each expert's rows from each source straight from where they lie to where
  // they belong. It is charged for regrouped rows, as if it were alone.
  Tensor move_shared(Context& c, const Tensor& x, bool back) const {
    const auto sent = back ? routes_.received() : routes_.sent(),
               received = back ? routes_.sent() : routes_.received();
    CHECK(x.dim(0) == total(sent), "{} rows, planned {}", x.dim(0), total(sent));
    Shape shape = x.shape();
    shape[0] = total(received);
    const Tensor out = c.empty(x.dtype(), shape);
    charge_for_a_moment(c, back ? x.bytes() : out.bytes());
    const auto take = [&](std::size_t index, const TensorView& theirs) {
      const std::size_t source = back ? routes_.me : index, owner = back ? index : routes_.me;
      const auto& kept = routes_.kept[source];
      const auto first = static_cast<std::int64_t>(owner) * routes_.per_rank;
      const auto rows_of = [&](std::int64_t expert, std::size_t sources) {
        std::int64_t rows = 0;
        for (std::size_t i = 0; i < sources; ++i) rows += routes_.kept[i][static_cast<std::size_t>(expert)];
        return rows;
      };
      // At home rows are in the order of all experts, on the experts' rank in (expert, source) order.
      std::int64_t home = std::accumulate(kept.begin(), kept.begin() + first, std::int64_t{0}), away = 0;
      for (std::int64_t e = first; e < first + routes_.per_rank; ++e) {
        const std::int64_t n = kept[static_cast<std::size_t>(e)], there = away + rows_of(e, source);
        copy_rows(c, theirs, back ? there : home, out.view(), back ? home : there, n);
        home += n;
        away += rows_of(e, routes_.kept.size());
      }
    };
    c.comm->shared_memory()->ragged_all_to_all(c.group(axes_), x.view(), sent, received, take);
    return out;
  }

  class StartedMove : public StartedOp {
   public:
    StartedMove(Context& c, const ExchangeRowsOp& op, const Tensor& x)
        : op_(op), move_(op.prepare(c, x, op.back_)) {
      started_ = c.comm->start_ragged_all_to_all(
          c.group(op.axes_), move_.from.view(), {move_.send_offsets, move_.sent}, move_.to.view(),
          {move_.receive_offsets, move_.received}, {move_.from.buffer(), move_.to.buffer()});
    }
    std::vector<Tensor> finish(Context& c) override {
      c.comm->finish(*started_);
      return {op_.arrived(c, move_, op_.back_)};
    }

   private:
    const ExchangeRowsOp& op_;
    Move move_;
    std::shared_ptr<StartedCollective> started_;
  };

  Axes axes_;
  Routes routes_;
  bool back_;
};

// The exchanged counts; `plan` assumes that every source sends alike.
RowCounts counts_of(Context& c, const Tensor& table, const Array& ids, std::size_t me) {
  const std::int64_t ranks = table.dim(0), experts = table.dim(1);
  const Tensor host = read_back(c, table, "rows per expert", [&] {
    const std::int64_t slots = ids.shape().back(), here = experts / ranks;
    const auto rows = assumed_rows(c, ids.tensor().size() / slots, slots, experts,
                                   static_cast<std::int64_t>(me) * here, here);
    Tensor assumed(Memory(), DType::i32, table.shape());
    for (std::int64_t i = 0; i < ranks; ++i)
      std::copy(rows.begin(), rows.end(), assumed.span<std::int32_t>().begin() + i * experts);
    return assumed;
  });
  RowCounts counts;
  for (std::int64_t i = 0; i < ranks; ++i) {
    const std::int32_t* at = host.data<std::int32_t>() + i * experts;
    counts.emplace_back(at, at + experts);
  }
  return counts;
}

// The rows for the experts of rank r.
RowCounts arriving_at(const RowCounts& counts, std::size_t r) {
  const std::size_t per_rank = counts[0].size() / counts.size();
  RowCounts arriving;
  for (const auto& source : counts) {
    const auto at = source.begin() + static_cast<std::ptrdiff_t>(r * per_rank);
    arriving.emplace_back(at, at + static_cast<std::ptrdiff_t>(per_rank));
  }
  return arriving;
}

// Appends those for the experts of a further rank.
void append(RowCounts& counts, const RowCounts& arriving) {
  for (std::size_t i = 0; i < counts.size(); ++i)
    counts[i].insert(counts[i].end(), arriving[i].begin(), arriving[i].end());
}

// Kept counts of all sources and experts: every destination rank drops by itself.
RowCounts kept_counts(DropPolicy policy, const RowCounts& counts, std::int64_t capacity) {
  if (capacity < 0) return counts;
  RowCounts kept(counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r)
    append(kept, keep_rows(arriving_at(counts, r), capacity, policy));
  return kept;
}

// The rows of all sources and experts that one pass takes.
RowsOfPass rows_of_all(const RowCounts& counts, std::int64_t pass, std::int64_t passes) {
  RowsOfPass all{RowCounts(counts.size()), RowCounts(counts.size())};
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const RowsOfPass here = rows_of_pass(arriving_at(counts, r), pass, passes);
    append(all.skipped, here.skipped);
    append(all.kept, here.kept);
  }
  return all;
}

std::int64_t rows_for(const RowCounts& counts, std::size_t r) {
  std::int64_t rows = 0;
  for (const auto& source : arriving_at(counts, r)) rows += total(source);
  return rows;
}

Array local_sizes(Context& context, const Routes& routes) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(routes.per_rank), 0);
  for (const auto& source : routes.kept) {
    for (std::size_t e = 0; e < sizes.size(); ++e) sizes[e] += source[routes.me * sizes.size() + e];
  }
  return host_indices(context, sizes);
}

// The rows of each chunk of M, gathered into one buffer and sent. Where gathers are started ahead, a chunk's
// rows leave before the one before is asked for.
class RowsToSend {
 public:
  RowsToSend(Context& context, const Axes& axes, const Routes& routes, const RowPlan& plan,
             std::vector<Array> x)
      : context_(context),
        send_(std::make_shared<ExchangeRowsOp>(axes, routes, false)),
        plan_(plan),
        x_(std::move(x)) {
    if (context_.ahead != nullptr) start(0);
  }
  // Asked for in order.
  Array arrived(std::int64_t chunk) {
    const auto i = static_cast<std::size_t>(chunk);
    const Array rows = next_.defined() ? std::exchange(next_, Array()) : gather_rows(context_, x_[i], plan_);
    if (context_.ahead != nullptr && i + 1 < x_.size()) start(i + 1);
    return checkpoint_name(apply_one(context_, send_, {rows}), "moe_x_sorted");
  }

 private:
  void start(std::size_t chunk) {
    next_ = gather_rows(context_, x_[chunk], plan_);
    context_.ahead->start(context_, send_, next_.tensor());
  }

  Context& context_;
  std::shared_ptr<const Op> send_;
  RowPlan plan_;
  std::vector<Array> x_;
  Array next_;
};

DispatchResult run_all_to_all(Context& context, const DispatchCall& call, RowsToSend& rows, const Axes& axes,
                              const Routes& routes, const RowPlan& plan, const std::vector<double>& dropped) {
  const MoeExecution& execution = call.execution;
  Array weights;  // travel with the rows, unless they are applied when the rows are home again
  if (!call.weighs_at_combine()) {
    weights = always_keep(apply_one(context, std::make_shared<ExchangeRowsOp>(axes, routes, false),
                                    {gather_row_weights(context, call.routing.weights, plan)}));
  }
  const MoeWeights local = gather_expert_weights(context, call);
  RowPlan here;  // rows that arrived are sorted by expert already
  here.sizes = local_sizes(context, routes);
  const Array done = expert_mlp(
      context, call.config, [&](std::int64_t chunk) { return rows.arrived(chunk); }, execution.emb_chunks,
      here, weights, local);
  const Array home = apply_one(context, std::make_shared<ExchangeRowsOp>(axes, routes, true), {done});
  const Array y =
      combine_rows(context, home, plan, call.x.info(), partial_output(call.x.sharding(), local, {}),
                   call.weighs_at_combine() ? call.routing.weights : Array());
  DispatchResult result{y, dropped, {}};
  for (std::size_t d = 0; d < 2; ++d) {
    const Axes& split = call.x.sharding().dims[d];
    result.drop_axes.insert(result.drop_axes.end(), split.begin(), split.end());
  }
  return result;
}

DispatchResult run_pass(Context& context, const DispatchCall& call, const Axes& axes, const RowCounts& counts,
                        std::size_t me, std::int64_t pass, std::int64_t passes) {
  const RowsOfPass taken = rows_of_all(counts, pass, passes);
  const Routes routes{taken.kept, call.config.experts / std::ssize(counts), me};
  const auto &skipped = taken.skipped[me], &mine = taken.kept[me];
  const RowPlan plan = plan_kept_rows(context, call.routing.ids, 0, host_indices(context, mine), total(mine),
                                      host_indices(context, skipped));
  RowsToSend rows(context, axes, routes, plan, chunks_of(context, call));
  return run_all_to_all(context, call, rows, axes, routes, plan, std::vector<double>(mine.size(), 0.0));
}

}  // namespace

RunExperts dispatch_all_to_all(Context& context, const DispatchCall& call) {
  const MoeConfig& config = call.config;
  const MoeExecution& execution = call.execution;
  const Axes axes = expert_axes(context, config.experts);
  CHECK(shared_axes(call.x.sharding(), axes) == axes, "all-to-all of tokens in {}",
        to_string(call.x.sharding()));
  const Array table = always_keep(
      apply_one(context, std::make_shared<ExchangeCountsOp>(axes, config.experts), {call.routing.ids}));
  const int ranks = context.mesh->product(axes);
  const auto me = static_cast<std::size_t>(context.mesh->index_along(context.rank, axes));
  const RowCounts counts = counts_of(context, table.tensor(), call.routing.ids, me);
  std::int64_t assigned = 0, most = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    assigned += rows_for(counts, r);
    most = std::max(most, rows_for(counts, r));
  }
  const double shard_load = over_balanced_share(rows_for(counts, me), assigned, ranks);
  if (may_need_passes(execution, ranks)) {
    const std::int64_t passes =
        agree_on_passes(context, most, cap_of_passes(execution, assigned, ranks), call.x.sharding(), axes);
    if (passes > 1) {
      return [=, &context] {
        DispatchResult result = run_passes(context, passes, call.layout, [&](std::int64_t pass) {
          return run_pass(context, call, axes, counts, me, pass, passes);
        });
        result.shard_load = shard_load;
        return result;
      };
    }
  }
  const std::int64_t capacity =
      execution.further_passes ? -1 : buffer_rows(execution.ragged_buffer_factor, assigned, ranks);
  const Routes routes{kept_counts(execution.drop_policy, counts, capacity), config.experts / ranks, me};

  const auto& mine = routes.kept[me];
  const RowPlan plan = plan_kept_rows(context, call.routing.ids, 0, host_indices(context, mine), total(mine));
  RowsToSend rows(context, axes, routes, plan, chunks_of(context, call));
  std::vector<double> dropped;
  for (std::size_t e = 0; e < counts[me].size(); ++e)
    dropped.push_back(static_cast<double>(counts[me][e] - routes.kept[me][e]));
  return [=, &context]() mutable {
    DispatchResult result = run_all_to_all(context, call, rows, axes, routes, plan, dropped);
    result.shard_load = shard_load;
    return result;
  };
}

}  // namespace switchyard
