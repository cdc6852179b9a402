// Measures collectives among local ranks, which read each other's memory.
#include <algorithm>
#include <atomic>

#include "bench/cases.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/tensor.h"
#include "parallel/comm/local.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kKinds{"all_gather", "reduce_scatter",    "all_reduce", "all_to_all",
                                      "broadcast",  "ragged_all_to_all", "barrier"};
constexpr double kTimeoutSeconds = 600;
constexpr std::int64_t kRowElements = 1024;

struct CommCall {
  std::string kind;
  std::int64_t ranks;
  std::int64_t part;  // bf16 elements that a rank has for another, or for all
};

// Bytes that all ranks together must read and write: every rank's input and output once.
double compulsory_bytes(const CommCall& call) {
  const auto p = static_cast<double>(call.ranks), part = 2 * static_cast<double>(call.part);
  if (call.kind == "barrier") return 0;
  if (call.kind == "broadcast") return p * part;
  if (call.kind == "all_reduce" || call.kind.ends_with("all_to_all")) return 2 * p * p * part;
  return p * part + p * p * part;
}

// One rank's buffers and its call.
class RankSide {
 public:
  RankSide(Communicator& comm, const CommCall& call, const Memory& memory) : comm_(comm), call_(call) {
    comm.use_device(memory.device());
    group_ = everyone(comm, "data");
    in_ = memory.zeros(DType::bf16, {call.ranks * call.part});
    out_ = memory.zeros(DType::bf16, {call.ranks * call.part});
    const std::int64_t rows = call.part / kRowElements;
    counts_.assign(group_.ranks.size(), rows);
    for (std::int64_t i = 0; i < call.ranks; ++i) offsets_.push_back(i * rows);
  }
  void run() {
    const TensorView part = in_.view().rows(0, call_.part);
    if (call_.kind == "all_gather")
      comm_.all_gather(group_, part, out_.view());
    else if (call_.kind == "reduce_scatter")
      comm_.reduce_scatter(group_, in_.view(), out_.view().rows(0, call_.part));
    else if (call_.kind == "all_reduce")
      comm_.all_reduce(group_, in_.view());
    else if (call_.kind == "all_to_all")
      comm_.all_to_all(group_, in_.view(), out_.view());
    else if (call_.kind == "broadcast")
      comm_.broadcast(group_, 0, part);
    else if (call_.kind == "ragged_all_to_all")
      comm_.ragged_all_to_all(group_, as_rows(in_), {offsets_, counts_}, as_rows(out_), {offsets_, counts_});
    else
      wait();
  }
  void wait() { comm_.barrier(group_); }

 private:
  static TensorView as_rows(const Tensor& x) {
    return x.view().reshaped({x.size() / kRowElements, kRowElements});
  }

  Communicator& comm_;
  CommCall call_;
  ProcessGroup group_;
  Tensor in_, out_;
  std::vector<std::int64_t> offsets_, counts_;
};

// Rank 0 measures from barrier to barrier and says when it is enough.
Measurement measure_comm(const Bench& bench, const CommCall& call) {
  Measurement m;
  m.name = "comm";
  m.shape = {{"kind", call.kind}, {"ranks", call.ranks}};
  if (call.kind != "barrier") m.shape["bytes_a_part"] = 2 * call.part;
  m.threads = std::min(usable_cores(), static_cast<int>(call.ranks));
  m.bytes = compulsory_bytes(call);
  std::atomic<bool> more{true};
  run_local_ranks(static_cast<int>(call.ranks), kTimeoutSeconds, [&](Communicator& comm) {
    RankSide side(comm, call, bench.memory);
    const auto round = [&] {
      side.wait();
      side.run();
      side.wait();
    };
    if (comm.rank() == 0) {
      m.time = time_rounds(bench, round);
      more = false;
      side.wait();
      return;
    }
    while (true) {
      side.wait();
      if (!more) return;
      side.run();
      side.wait();
    }
  });
  return m;
}

}  // namespace

std::vector<Key> comm_keys() {
  return {{"kind", "all", "all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, ...; or all"},
          {"ranks", "8", "ranks of one process; several"},
          {"kib", "1024", "what a rank has for one other rank (or for all alike), in KiB of bf16"}};
}

std::vector<Job> comm_jobs(const Keys& keys) {
  constexpr std::int64_t kMostRanks = 256, kMostKib = 1 << 20;
  std::vector<Job> jobs;
  const std::int64_t kib = keys.integer("kib", 2);
  if (kib > kMostKib || kib % 2 != 0)
    fail_usage("[bench] comm kib={}: expected an even number up to {}", kib, kMostKib);
  for (const std::int64_t ranks : keys.integers("ranks")) {
    if (ranks > kMostRanks) fail_usage("[bench] comm ranks={}: expected at most {}", ranks, kMostRanks);
    for (const auto& kind : keys.words("kind", kKinds)) {
      const CommCall call{kind, ranks, kib * 1024 / 2};
      jobs.push_back({"comm " + kind, 2.0 * static_cast<double>(ranks * ranks * kib) * 1024,
                      [call](Bench& bench) { return std::vector{measure_comm(bench, call)}; }});
    }
  }
  return jobs;
}

}  // namespace switchyard::bench
