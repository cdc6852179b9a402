#include "plan/machine_topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "core/cores.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "engine/model.h"
#include "generate/generator.h"
#include "kernels/machine/machine.h"
#include "kernels/product/gemm.h"
#include "plan/generation_plan.h"

namespace switchyard {
namespace {

struct Rates {
  double bf16_flops, f32_flops, copied_bytes, kernel_start_seconds;
  std::map<DType, double> weight_bytes;
  double compute_efficiency = 1, memory_efficiency = 1;
};

double seconds_of(const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> seconds) {
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

// The median of rounds for a fifth of a second, after one that does not count.
double seconds_of_round(const std::function<void()>& round) {
  constexpr double kBudget = 0.2;
  constexpr std::size_t kLeastRounds = 5;
  round();
  std::vector<double> seconds;
  double all = 0;
  while (seconds.size() < kLeastRounds || all < kBudget) {
    seconds.push_back(seconds_of(round));
    all += seconds.back();
  }
  return median(std::move(seconds));
}

// A tensor whose every byte is 0x11: small numbers in each type, and memory of its own for each page.
Tensor filled(ThreadPool& pool, DType dtype, const Shape& shape) {
  const Tensor tensor(dtype, shape);
  auto* bytes = static_cast<std::byte*>(tensor.raw());
  pool.for_range(static_cast<std::int64_t>(tensor.bytes()), 1 << 20,
                 [&](std::int64_t begin, std::int64_t end) {
                   std::memset(bytes + begin, 0x11, static_cast<std::size_t>(end - begin));
                 });
  return tensor;
}

double product_flops(ThreadPool& pool, DType dtype) {
  constexpr std::int64_t kSize = 1024;
  const Tensor a = filled(pool, dtype, {kSize, kSize}), b = filled(pool, dtype, {kSize, kSize}),
               c(dtype, {kSize, kSize});
  return 2.0 * kSize * kSize * kSize /
         seconds_of_round([&] { gemm(pool, {.a = a.view(), .b = b.view(), .c = c.view()}); });
}

// Bytes of arrays that no cache holds.
std::int64_t large_bytes() {
  const std::int64_t wanted = std::max(2 * last_level_cache_bytes(), std::int64_t{256} << 20),
                     free = available_memory_bytes();
  return free > 0 ? std::min(wanted, free / 8) : wanted;
}

// The rate at which a product of one row reads weights.
double weight_bytes_per_second(ThreadPool& pool, DType weights) {
  constexpr std::int64_t kSize = 4096;
  const std::int64_t high = is_packed(weights) ? kSize / block_inputs(weights) : kSize,
                     wide = is_packed(weights) ? kSize / kBlockOutputs : kSize;
  const std::int64_t matrix = high * wide * static_cast<std::int64_t>(size_of(weights)),
                     batch = std::max<std::int64_t>(1, large_bytes() / matrix);
  const DType rows = weights == DType::f32 ? DType::f32 : DType::bf16;
  const Tensor a = filled(pool, rows, {batch, 1, kSize}), b = filled(pool, weights, {batch, high, wide}),
               c(rows, {batch, 1, kSize});
  return static_cast<double>(batch * matrix) /
         seconds_of_round([&] { gemm(pool, {.a = a.view(), .b = b.view(), .c = c.view()}); });
}

double copied_bytes_per_second(ThreadPool& pool) {
  const std::int64_t bytes = large_bytes() / 2;
  const Tensor from = filled(pool, DType::u8, {bytes}), to = filled(pool, DType::u8, {bytes});
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.raw());
  return static_cast<double>(bytes) / seconds_of_round([&] {
           pool.for_range(bytes, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
             std::memcpy(target + begin, source + begin, static_cast<std::size_t>(end - begin));
           });
         });
}

// The time of a product that is too small for anything but its start.
double start_seconds(ThreadPool& pool) {
  constexpr std::int64_t kSize = 64;
  constexpr int kCalls = 100;
  const Tensor a = filled(pool, DType::bf16, {1, kSize}), b = filled(pool, DType::bf16, {kSize, kSize}),
               c(DType::bf16, {1, kSize});
  return seconds_of_round([&] {
           for (int i = 0; i < kCalls; ++i) gemm(pool, {.a = a.view(), .b = b.view(), .c = c.view()});
         }) /
         kCalls;
}

Rates measure() {
  ThreadPool pool(usable_cores());
  Rates rates{product_flops(pool, DType::bf16),
              product_flops(pool, DType::f32),
              copied_bytes_per_second(pool),
              start_seconds(pool),
              {}};
  for (const DType dense : {DType::f32, DType::bf16})
    rates.weight_bytes[dense] = weight_bytes_per_second(pool, dense);
  for (const PackedFormat& format : kPackedFormats)
    rates.weight_bytes[format.dtype] = weight_bytes_per_second(pool, format.dtype);
  return rates;
}

Topology topology_of(const Rates& rates, int ranks) {
  Topology t = Topology::read("cpu", ranks);
  t.name = "machine";
  t.compute_efficiency = rates.compute_efficiency;
  t.memory_efficiency = rates.memory_efficiency;
  t.network_efficiency = 1;
  t.bf16_flops = rates.bf16_flops / ranks;
  t.f32_flops = rates.f32_flops / ranks;
  t.inside.bytes_per_second = t.between.bytes_per_second = rates.copied_bytes / ranks;
  t.kernel_start_seconds = rates.kernel_start_seconds;
  for (const auto& [weights, bytes] : rates.weight_bytes) t.weight_bytes_per_second[weights] = bytes / ranks;
  t.memory_bytes_per_second = t.weight_bytes_per_second.at(DType::f32);
  return t;
}

// A model whose weights no cache holds, for a second or two of work.
Config model_to_measure() {
  return Config::from_args(std::vector<std::string>{
      "decoder_block=mixtral", "base_emb_dim=1024", "base_num_decoder_layers=4", "base_num_query_heads=16",
      "base_num_kv_heads=4", "head_dim=64", "num_experts=32", "num_experts_per_tok=4", "base_mlp_dim=512",
      "base_moe_mlp_dim=512", "vocab_size=2048", "dtype=bfloat16", "weight_dtype=bfloat16",
      "per_device_batch_size=1", "max_prefill_predict_length=128", "max_target_length=192"});
}

struct TextSeconds {
  double read = 0, make = 0;  // of a prompt, and of a token after it
};

TextSeconds measure_text(const ModelOnRanks& of, std::int64_t prompt, std::int64_t capacity) {
  TextSeconds seconds;
  of.run([&](Context& context) {
    const Parameters parameters = of.load(context);
    auto tokens = [&, drawn = std::uint64_t{0}](std::int64_t count) mutable {
      SlotTokens fed{0, {}};
      for (std::int64_t i = 0; i < count; ++i)
        fed.tokens.push_back(rng_randint(rng_key(1), drawn++, 0, static_cast<std::int32_t>(of.model.vocab)));
      return fed;
    };
    Generator generator(context, of.model, parameters, 1, capacity);
    std::vector<double> read, make;
    for (int round = 0; round < 3; ++round) {
      generator.clear(0);
      read.push_back(seconds_of([&] { generator.feed(std::vector{tokens(prompt)}); }));
      for (std::int64_t i = prompt; i < capacity; ++i)
        make.push_back(seconds_of([&] { generator.feed(std::vector{tokens(1)}); }));
    }
    seconds = {median(std::move(read)), median(std::move(make))};
  });
  return seconds;
}

// The shares of the rates that a whole model reaches: its time over that of its plan with all of them.
void measure_shares(Rates& rates) {
  const Config config = model_to_measure();
  const Mesh mesh = mesh_from_config(config);
  const GenerationPlan plan = plan_generation(config, mesh, topology_of(rates, 1)).front();
  const TextSeconds took =
      measure_text(ModelOnRanks(ModelOnMesh(config, mesh, ModelUse::run)), plan.prompt, plan.capacity);
  const auto share = [](double planned, double left) { return left > planned ? planned / left : 1.0; };
  rates.memory_efficiency =
      share(plan.make.memory_seconds, took.make - plan.make.compute_seconds - plan.make.start_seconds);
  rates.compute_efficiency =
      share(plan.read.compute_seconds,
            took.read - plan.read.memory_seconds / rates.memory_efficiency - plan.read.start_seconds);
}

}  // namespace

Topology machine_topology(int ranks) {
  static const Rates rates = [] {
    Rates measured = measure();
    measure_shares(measured);
    return measured;
  }();
  return topology_of(rates, ranks);
}

std::string machine_text(const Topology& machine, int ranks) {
  const auto giga = [ranks](double rate) { return rate * ranks * 1e-9; };
  std::string text = fmt::format(
      "this machine, measured: a model reaches {:.0f}% of the rates of products and {:.0f}% of those of "
      "memory: products {:.0f} Gflop/s in bfloat16 and {:.0f} in float32, copies {:.1f} "
      "GB/s; products "
      "of one row read weights at",
      100 * machine.compute_efficiency, 100 * machine.memory_efficiency, giga(machine.bf16_flops),
      giga(machine.f32_flops), giga(machine.inside.bytes_per_second));
  for (const auto& [weights, rate] : machine.weight_bytes_per_second)
    text += fmt::format(" {} {:.1f}", name_of(weights), giga(rate));
  return text + " GB/s";
}

}  // namespace switchyard
