// What one row costs a rank as the expert axis grows: experts, tokens and slots of a rank stay the same, only
// the number of ranks changes. Ranks are threads, more of them than cores, so a rank's processor time is
// measured, not the clock. Prints nanoseconds and bytes a row; the figure of a line is the median over ranks
// of the best of several rounds.
//
//   cmake --build build/release --target bench_scaling && build/release/bench_scaling [MOST_RANKS]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include "config/config.h"
#include "core/rng.h"
#include "engine/session.h"
#include "moe/dispatch/dispatch.h"
#include "moe/expert_mlp.h"
#include "ops/reshard.h"
#include "parallel/comm/local.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTokens = 256, kSlots = 4, kWidth = 512, kHidden = 256, kExpertsPerRank = 4;
constexpr int kSamples = 128;   // of every figure, over ranks and rounds
constexpr int kBusyRanks = 16;  // at work at any time

double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Cost {
  std::vector<double> nanoseconds;  // a round each
  double bytes = 0;                 // live after the stage, all ranks
};

// Costs of one rank, by stage. All ranks enter and leave a stage together, so that what is live between two
// stages is that of all of them.
class Meter {
 public:
  Meter(Context& context, const Group& world) : context_(context), world_(world) {}
  template <typename Stage>
  auto stage(const std::string& name, Stage run) {
    context_.comm->barrier(world_, "expert");
    const std::size_t before = memory_in_use();
    std::fill(flush_.begin(), flush_.end(), std::byte{1});
    context_.comm->barrier(world_, "expert");
    const double begin = processor_seconds();
    auto result = run();
    const double nanoseconds = 1e9 * (processor_seconds() - begin);
    context_.comm->barrier(world_, "expert");
    Cost& cost = costs_[name];
    cost.nanoseconds.push_back(nanoseconds);
    cost.bytes = static_cast<double>(memory_in_use()) - static_cast<double>(before);
    context_.comm->barrier(world_, "expert");
    return result;
  }
  std::map<std::string, Cost> costs_a_row(std::int64_t rows) const {
    std::map<std::string, Cost> result = costs_;
    for (auto& item : result) {
      for (double& nanoseconds : item.second.nanoseconds) nanoseconds /= static_cast<double>(rows);
    }
    return result;
  }

 private:
  Context& context_;
  Group world_;
  std::map<std::string, Cost> costs_;
  // Written before every stage: with many ranks a core none finds its data in the core's cache, and with few
  // it would.
  std::vector<std::byte> flush_ = std::vector<std::byte>(std::size_t{4} << 20);
};

Tensor normals(const Shape& shape, std::uint32_t seed, float scale) {
  Tensor t(DType::f32, shape);
  rng_fill_normal(rng_key(seed), 0, t.span<float>());
  for (float& v : t.span<float>()) v *= scale;
  return t.cast(DType::bf16);
}

// Distinct experts for every token, uniform over all.
Tensor random_choices(std::int64_t experts, int rank) {
  Tensor ids(DType::i32, {1, kTokens, kSlots});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto order =
        rng_permutation(rng_fold_in(rng_key(5), static_cast<std::uint32_t>(rank * kTokens + t)), experts);
    std::copy_n(order.begin(), kSlots, ids.data<std::int32_t>() + t * kSlots);
  }
  return ids;
}

struct Inputs {
  MoeConfig config;
  Array x;
  Routing routing;
  MoeWeights weights;
};

Inputs make_inputs(const Context& context, int ranks) {
  Inputs in;
  in.config.experts = std::max<std::int64_t>(kExpertsPerRank * ranks, kSlots);
  in.config.slots = kSlots;
  const Axes split = ranks > 1 ? Axes{"expert"} : Axes{};
  const Sharding tokens{{split, {}, {}}, {}};
  const auto leaf = [&](const Tensor& local, Shape shape, bool gradient) {
    return make_leaf(local, std::move(shape), tokens, gradient);
  };
  in.x = leaf(normals({1, kTokens, kWidth}, 7, 1), {ranks, kTokens, kWidth}, true);
  in.routing.ids = leaf(random_choices(in.config.experts, context.rank), {ranks, kTokens, kSlots}, false);
  Tensor shares(DType::f32, {1, kTokens, kSlots});
  std::fill_n(shares.data<float>(), shares.size(), 1.0f / kSlots);
  in.routing.weights = leaf(shares, {ranks, kTokens, kSlots}, true);
  const std::int64_t here = in.config.experts / ranks;
  const auto weight = [&](std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
    return never_save(
        leaf(normals({here, rows, columns}, seed, 0.05f), {in.config.experts, rows, columns}, true));
  };
  in.weights.wi_0 = weight(kWidth, kHidden, 1);
  in.weights.wi_1 = weight(kWidth, kHidden, 2);
  in.weights.wo = weight(kHidden, kWidth, 3);
  return in;
}

// The ring's stages between its gather and its reduce-scatter. Returns the rows of this rank.
std::int64_t ring_stages(Context& c, const Inputs& in, Meter& meter) {
  const Sharding whole = replicated(3);
  const Array x = reshard(c, in.x, whole), ids = reshard(c, in.routing.ids, whole),
              shares = reshard(c, in.routing.weights, whole);
  const std::int64_t here = in.weights.wi_0.info().local[0];
  const RowPlan plan = meter.stage("1 ring: sort", [&] {
    return plan_rows(c, ids, here * c.rank, here, in.config.experts, -1, DropPolicy::fair);
  });
  const Array rows = meter.stage("2 ring: gather", [&] { return gather_rows(c, x, plan); });
  const Array done = meter.stage("3 ring: experts", [&] {
    RowPlan sorted;  // the rows are there
    sorted.sizes = plan.sizes;
    return expert_mlp(
        c, [&](std::int64_t) { return rows; }, 1, sorted, gather_row_weights(c, shares, plan),
        in.weights.wi_0, in.weights.wi_1, in.weights.wo);
  });
  meter.stage("4 ring: combine", [&] {
    Sharding partial = whole;
    if (c.mesh->size() > 1) partial.partial = {"expert"};
    return combine_rows(c, done, plan, x.info(), partial);
  });
  return plan.rows.tensor().size();
}

// All of a strategy, what it sends included.
void whole_dispatch(Context& c, const Inputs& in, bool ring, Meter& meter) {
  const DispatchCall call{in.config, in.x, in.routing, in.weights};
  const std::string name = ring ? "ring" : "all-to-all";
  const DispatchResult result = meter.stage("5 " + name + " forward", [&] {
    return (ring ? dispatch_ring(c, call) : dispatch_all_to_all(c, call))();
  });
  const Array y = reshard(c, result.y, in.x.sharding());
  const Tensor seed = normals(y.info().local, 9, 1);
  meter.stage("6 " + name + " backward", [&] {
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    return 0;
  });
  for (const Array& leaf : {in.x, in.routing.weights, in.weights.wi_0, in.weights.wi_1, in.weights.wo})
    leaf.value()->grad = Tensor();
}

struct Figures {
  double nanoseconds = 0, bytes = 0;  // a row
};
using Table = std::map<std::string, std::vector<Figures>>;  // stage -> one entry a number of ranks

using Costs = std::vector<std::map<std::string, Cost>>;  // of every rank

Costs run_world(int ranks, int rounds) {
  const Config config = Config::from_args(
      std::vector<std::string>{fmt::format("ranks={}", ranks),
                               fmt::format("ici_expert_parallelism={}", ranks), "ici_fsdp_parallelism=1"});
  const Mesh mesh = mesh_from_config(config);
  const AxisRules rules(config.axis_rules(), mesh);
  Costs of_rank(static_cast<std::size_t>(ranks));
  run_local_ranks(ranks, 600, [&](Communicator& comm) {
    ThreadPool pool(1);
    Context context;
    context.rank = comm.rank();
    context.mesh = &mesh;
    context.rules = &rules;
    context.comm = &comm;
    context.pool = &pool;
    const std::vector<std::string> axes{"expert"};
    Meter meter(context, context.group(axes));
    const Inputs in = make_inputs(context, ranks);
    for (int round = 0; round < rounds; ++round) {
      const std::int64_t rows = ring_stages(context, in, meter);
      whole_dispatch(context, in, false, meter);
      whole_dispatch(context, in, true, meter);
      if (round + 1 == rounds) of_rank[static_cast<std::size_t>(context.rank)] = meter.costs_a_row(rows);
    }
  });
  return of_rank;
}

// With few ranks several worlds work side by side, so that all cores are as busy as with many.
void measure(int ranks, Table& table) {
  const int worlds = std::max(1, kBusyRanks / ranks), rounds = std::max(1, kSamples / (ranks * worlds));
  std::vector<Costs> of_world(static_cast<std::size_t>(worlds));
  std::vector<std::thread> threads;
  for (Costs& costs : of_world)
    threads.emplace_back([&costs, ranks, rounds] { costs = run_world(ranks, rounds); });
  for (std::thread& thread : threads) thread.join();
  const Costs alone = run_world(ranks, 1);  // nothing else is live
  for (const auto& [name, cost] : alone[0]) {
    std::vector<double> all;
    for (const Costs& world : of_world) {
      for (const auto& costs : world)
        all.insert(all.end(), costs.at(name).nanoseconds.begin(), costs.at(name).nanoseconds.end());
    }
    // The tenth part: other work on the machine only ever adds.
    const auto tenth = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 10);
    std::nth_element(all.begin(), tenth, all.end());
    table[name].push_back({*tenth, cost.bytes / static_cast<double>(ranks * kTokens * kSlots)});
  }
}

void print(const Table& table, const std::vector<int>& ranks, const char* title, double Figures::*figure) {
  fmt::print("\n{:<26}", title);
  for (const int p : ranks) fmt::print("{:>9}", fmt::format("P={}", p));
  fmt::print("{:>11}\n", "last/first");
  for (const auto& [name, costs] : table) {
    fmt::print("{:<26}", name.substr(2));
    for (const Figures& cost : costs) fmt::print("{:>9.1f}", cost.*figure);
    fmt::print("{:>11.2f}\n", costs.back().*figure / costs.front().*figure);
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;
  const int most = argc > 1 ? std::atoi(argv[1]) : 64;
  Table table;
  std::vector<int> ranks;
  for (int p = 1; p <= most; p *= 4) {
    measure(p, table);
    ranks.push_back(p);
  }
  fmt::print("A rank has {} tokens of {} bf16 values, {} slots each, {} experts of width {}.\n", kTokens,
             kWidth, kSlots, kExpertsPerRank, kHidden);
  print(table, ranks, "processor ns a row", &Figures::nanoseconds);
  print(table, ranks, "bytes live a row after it", &Figures::bytes);
}
