#include "bench/peak.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>

#include "core/error.h"
#include "kernels/machine/machine.h"
#include "kernels/machine/machine_loops.h"
#include "kernels/registry/isa.h"

namespace switchyard::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20, kPiece = 8192, kWindow = 32 * kMiB;
constexpr int kLeastPeakRounds = 3;

// Memory on large pages where the system has them, so that address translation does not limit bandwidth.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* got = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED)
      fail_runtime("[bench] no memory for {} MiB to measure bandwidth with; try copy_mib=64", bytes / kMiB);
    data_ = static_cast<std::byte*>(got);
    ::madvise(got, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

// Each thread stays on a core of its own: two that wait for each other would be put on one where other work
// keeps the next core busy.
void stay_on_core(int index) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  if (cores.empty()) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<std::size_t>(index) % cores.size()], &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

void on_threads(int threads, const std::function<void(int)>& body) {
  const Isa isa = active_isa();
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&body, isa, i] {
      stay_on_core(i);
      const ScopedIsa same(isa);
      body(i);
    });
  }
  for (auto& thread : all) thread.join();
}

// Rounds of body(thread) on all threads at once, timed from the common start to the last end;
// the first does not count.
Timing side_by_side(int threads, double budget, const std::function<void(int)>& body) {
  std::vector<double> rounds;
  bool more = true, warm = false;
  double begin = 0;
  const double first = now();
  const auto at_start = [&]() noexcept { begin = now(); };
  const auto at_end = [&]() noexcept {
    if (warm) rounds.push_back(now() - begin);
    warm = true;
    more = now() - first < budget || static_cast<int>(rounds.size()) < kLeastPeakRounds;
  };
  std::barrier start(threads, at_start);
  std::barrier end(threads, at_end);
  on_threads(threads, [&](int thread) {
    while (true) {
      start.arrive_and_wait();
      body(thread);
      end.arrive_and_wait();
      if (!more) return;
    }
  });
  Timing timing = timing_of(std::move(rounds));
  timing.seconds = timing.best;
  return timing;
}

Measurement products(int threads, double budget, DType dtype) {
  Measurement best;
  for (const ProductLoop& loop : product_loops(dtype)) {
    const std::int64_t steps = millisecond_of(loop);
    Measurement m;
    m.name = "peak";
    m.dtype = dtype;
    m.threads = threads;
    m.time = side_by_side(threads, budget, [&](int) { loop.run(steps); });
    m.flops = loop.flops * static_cast<double>(steps) * threads;
    m.shape = {{"what", loop.instruction}};
    if (best.flops == 0 || m.flops / m.time.seconds > best.flops / best.time.seconds) best = std::move(m);
  }
  return best;
}

// Every thread calls part(begin, bytes) on windows of its share of the array, round after round a window on:
// by the time the first comes again, the caches hold others.
Measurement bandwidth(int threads, double budget, const char* what, std::size_t bytes, double moved,
                      const std::function<void(std::size_t, std::size_t)>& part) {
  const std::size_t share = bytes / static_cast<std::size_t>(threads) / kPiece * kPiece;
  const std::size_t window = std::min(share, kWindow), windows = share / window;
  std::vector<std::size_t> round(static_cast<std::size_t>(threads));
  Measurement m;
  m.name = "peak";
  m.threads = threads;
  m.time = side_by_side(threads, budget, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    part(share * t + window * (round[t]++ % windows), window);
  });
  m.bytes = moved * static_cast<double>(window) * threads;
  m.shape = {{"what", what}, {"array_mib", bytes / kMiB}};
  return m;
}

// Nanoseconds a KiB (a tile) of loop(begin, window, passes), the best of many: passes over the same bytes, or
// one each further and further on in `all` bytes.
template <typename Loop>
double nanoseconds_a_tile(std::size_t window, std::size_t all, const Loop& loop) {
  const std::size_t windows = all / window;
  const int passes = windows > 1 ? 1 : static_cast<int>(8 * kMiB / window);
  double best = 1e9;
  for (std::size_t round = 0; round < 32; ++round) {
    const double begin = now();
    loop(window * (round % windows), window, passes);
    best = std::min(best, (now() - begin) / passes);
  }
  return best * 1e9 / (static_cast<double>(window) / 1024);
}

// One core alone.
nlohmann::ordered_json core_details(const Pages& pages) {
  constexpr std::size_t kL1 = 24 << 10, kL2 = 768 << 10;
  const std::size_t memory = std::min(pages.bytes() / 2, kWindow);
  std::uint64_t sink = 0;
  const auto read = [&](std::size_t begin, std::size_t bytes, int passes) {
    for (int i = 0; i < passes; ++i) sink += read_loop(pages.data() + begin, bytes);
  };
  const auto gb_per_s = [](double nanoseconds) { return 1024 / nanoseconds; };
  nlohmann::ordered_json json{
      {"read_l1_gb_per_s", gb_per_s(nanoseconds_a_tile(kL1, kL1, read))},
      {"read_l2_gb_per_s", gb_per_s(nanoseconds_a_tile(kL2, kL2, read))},
      {"read_memory_gb_per_s", gb_per_s(nanoseconds_a_tile(memory, pages.bytes(), read))}};
  if (active_isa() == Isa::amx) {
    const Measurement product = products(1, 0.02, DType::bf16);
    const auto load = [&](std::size_t begin, std::size_t bytes, int passes) {
      tile_load_loop(pages.data() + begin, bytes, passes);
    };
    const auto store = [&](std::size_t begin, std::size_t bytes, int passes) {
      tile_store_loop(pages.data() + begin, bytes, passes);
    };
    json["tile_product_ns"] = product.time.seconds * 1e9 / (product.flops / (2 * 16 * 16 * 32));
    json["tile_load_l1_ns"] = nanoseconds_a_tile(kL1, kL1, load);
    json["tile_load_l2_ns"] = nanoseconds_a_tile(kL2, kL2, load);
    json["tile_load_memory_ns"] = nanoseconds_a_tile(memory, pages.bytes(), load);
    json["tile_store_l1_ns"] = nanoseconds_a_tile(kL1, kL1, store);
    json["tile_store_l2_ns"] = nanoseconds_a_tile(kL2, kL2, store);
  }
  CHECK(sink != 1, "the reads are not to be left out");
  return json;
}

}  // namespace

std::size_t default_copy_bytes() {
  const auto wanted = std::max<std::int64_t>(2 * last_level_cache_bytes(), std::int64_t{256} << 20);
  const std::int64_t free = available_memory_bytes();
  const std::int64_t bytes = free > 0 ? std::min(wanted, free / 8) : wanted;
  return static_cast<std::size_t>(bytes) / kMiB * kMiB;
}

PeakReport measure_peaks(int threads, double budget, std::size_t copy_bytes, bool details) {
  PeakReport report;
  report.results.push_back(products(threads, budget, DType::bf16));
  report.results.push_back(products(threads, budget, DType::f32));
  const Pages from(copy_bytes), to(copy_bytes);
  const auto share = copy_bytes / static_cast<std::size_t>(threads);
  on_threads(threads, [&](int thread) {
    // Else reading would find one page of zeros; and pages lie with the thread that touches them first.
    const std::size_t begin = share * static_cast<std::size_t>(thread);
    std::memset(from.data() + begin, 1, share);
    std::memset(to.data() + begin, 1, share);
  });
  report.results.push_back(
      bandwidth(threads, budget, "copy", copy_bytes, 2, [&](std::size_t begin, std::size_t bytes) {
        copy_loop(from.data() + begin, to.data() + begin, bytes);
      }));
  report.results.push_back(
      bandwidth(threads, budget, "update in place", copy_bytes, 2,
                [&](std::size_t begin, std::size_t bytes) { update_loop(to.data() + begin, bytes); }));
  std::atomic<std::uint64_t> sink{0};
  report.results.push_back(
      bandwidth(threads, budget, "read", copy_bytes, 1,
                [&](std::size_t begin, std::size_t bytes) { sink += read_loop(to.data() + begin, bytes); }));
  const auto rate = [&](std::size_t i, double Measurement::*what) {
    return report.results[i].*what / report.results[i].time.seconds;
  };
  report.peaks = {rate(0, &Measurement::flops), rate(1, &Measurement::flops), rate(2, &Measurement::bytes),
                  rate(4, &Measurement::bytes), rate(3, &Measurement::bytes)};
  if (details) report.results[0].more["core"] = core_details(to);
  return report;
}

}  // namespace switchyard::bench
