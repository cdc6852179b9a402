// Measures generation: reading a prompt, and generating token by token.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>

#include "bench/cases.h"
#include "bench/gpu_work.h"
#include "bench/model_run.h"
#include "core/cores.h"
#include "core/resident_memory.h"
#include "core/rng.h"
#include "engine/model.h"
#include "generate/generator.h"
#include "train/step_cost.h"

namespace switchyard::bench {
namespace {

struct Lengths {
  std::int64_t rows, prompt, tokens;
};

// Random tokens for every row.
std::vector<SlotTokens> random_rows(std::int64_t rows, std::int64_t length, std::int64_t vocab) {
  std::vector<SlotTokens> all(static_cast<std::size_t>(rows));
  std::uint64_t at = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    all[r].slot = r;
    for (std::int64_t i = 0; i < length; ++i)
      all[r].tokens.push_back(rng_randint(rng_key(5), at++, 0, static_cast<std::int32_t>(vocab)));
  }
  return all;
}

// Feeds tokens and, where logits stay on a GPU, picks the next ones there, as texts do.
void feed_and_pick(Generator& generator, std::span<const SlotTokens> fed) {
  const Tensor logits = generator.feed(fed);
  if (!logits.defined() || !logits.view().on_gpu()) return;
  const SamplingConfig greedy;
  std::vector<TokenPick> picks(fed.size());
  for (std::size_t i = 0; i < picks.size(); ++i) {
    picks[i].row = static_cast<std::int64_t>(i);
    picks[i].vocab = logits.dim(1);
    picks[i].config = &greedy;
  }
  generator.pick(logits, picks);
}

struct Rounds {
  std::vector<double> prefill, decode;  // seconds of a prompt, and of each token's step
  GpuWork prefill_gpu, decode_gpu;
  std::atomic<std::int64_t> cache_bytes{0};  // of all ranks, for texts of full length
};

// Rank 0 says after each text whether another follows: at least two after the first, which warms up.
void run_texts(Context& context, const ModelConfig& model, const Parameters& parameters,
               const Lengths& lengths, double budget, std::atomic<bool>& more, Rounds& rounds) {
  const bool first = context.comm->rank() == 0;
  const ProcessGroup world = everyone(*context.comm, "world");
  const auto prompts = random_rows(lengths.rows, lengths.prompt, model.vocab);
  const auto next = random_rows(lengths.rows, 1, model.vocab);
  const double begin = now();
  for (int text = 0;; ++text) {
    const std::int64_t before = context.memory.in_use();
    Generator generator(context, model, parameters, lengths.rows, lengths.prompt + lengths.tokens);
    generator.keep_logits_there();
    std::vector<double> times{now()};
    feed_and_pick(generator, prompts);
    times.push_back(now());
    // Later, a graph of a GPU has memory of its own.
    if (text == 0) rounds.cache_bytes += context.memory.in_use() - before;
    for (std::int64_t i = 0; i < lengths.tokens; ++i) {
      feed_and_pick(generator, next);
      times.push_back(now());
    }
    if (first) {
      if (text > 0) {
        rounds.prefill.push_back(times[1] - times[0]);
        for (std::size_t i = 2; i < times.size(); ++i) rounds.decode.push_back(times[i] - times[i - 1]);
      }
      more = text < 2 || now() - begin < budget;
    }
    context.comm->barrier(world);
    const bool go_on = more;
    context.comm->barrier(world);
    if (!go_on) return;
  }
}

// Counts what the GPU gets for a prompt, and for a token after it, in a text that is not timed.
void count_work(Context& context, const ModelConfig& model, const Parameters& parameters,
                const Lengths& lengths, Rounds& rounds) {
  const bool first = context.comm->rank() == 0;
  const auto prompts = random_rows(lengths.rows, lengths.prompt, model.vocab);
  const auto next = random_rows(lengths.rows, 1, model.vocab);
  // One token is fed while kernels are timed.
  const auto counted = static_cast<int>(std::max<std::int64_t>(1, lengths.tokens - 1));
  Generator generator(context, model, parameters, lengths.rows, lengths.prompt + counted + 1);
  generator.keep_logits_there();
  GpuWork prefill = count_gpu_work(context, 1, [&] {
    for (std::size_t slot = 0; slot < prompts.size(); ++slot) generator.clear(slot);
    feed_and_pick(generator, prompts);
  });
  GpuWork decode = count_gpu_work(context, counted, [&] { feed_and_pick(generator, next); });
  if (!first) return;
  rounds.prefill_gpu = std::move(prefill);
  rounds.decode_gpu = std::move(decode);
}

// Bytes of the weights that a step of `tokens` tokens must read: all but the embedding's, of experts as many
// as tokens choose that choose evenly and independently of each other.
double bytes_read(const ModelConfig& model, const std::vector<ParameterSpec>& specs, std::int64_t tokens) {
  const double chosen = static_cast<double>(model.moe().slots) / static_cast<double>(model.moe().experts);
  const double used = tokens == 1 ? chosen : 1 - std::pow(1 - chosen, static_cast<double>(tokens));
  double bytes = 0;
  for (const ParameterSpec& spec : specs) {
    const double size =
        static_cast<double>(num_elements(spec.shape)) * static_cast<double>(size_of(spec.dtype));
    const bool expert = spec.name.find(".moe.w") != std::string::npos;
    if (spec.name == "embedding" && !model.tied) continue;
    bytes += expert ? size * used : size;
  }
  return bytes;
}

// For people: the shares of the peaks. None where these were not measured.
std::vector<std::string> generating_shares(const Measurement& m, double weights, double cache,
                                           const Peaks& peaks) {
  if (!peaks.measured()) return {};
  const double bandwidth = m.bytes / m.time.seconds;
  return {fmt::format(
      "{:.3f} GB of weights and {:.3f} GB of cache a step: {:.1f} GB/s, {:.1f}% of a copy's {:.1f}",
      weights * 1e-9, cache * 1e-9, bandwidth * 1e-9, 100 * bandwidth / peaks.stream_bytes,
      peaks.stream_bytes * 1e-9)};
}

std::vector<Measurement> measure_generate(const Bench& bench, const Config& config, const Lengths& lengths,
                                          const std::vector<std::string>& whats) {
  const ModelOnRanks ranks(ModelOnMesh(config, ModelUse::run));
  const ModelConfig& model = ranks.model;
  Rounds rounds;
  std::atomic<bool> more{true};
  reset_peak_resident();
  ranks.run([&](Context& context) {
    const Parameters parameters = ranks.load(context);
    run_texts(context, model, parameters, lengths, bench.budget, more, rounds);
    if (context.memory.device().is_gpu()) count_work(context, model, parameters, lengths, rounds);
  });
  std::vector<Measurement> measured;
  for (const std::string& what : whats) {
    const bool decode = what == "decode";
    const std::int64_t tokens = lengths.rows * (decode ? 1 : lengths.prompt);
    const std::int64_t seen = lengths.prompt + (decode ? lengths.tokens / 2 : 0);
    Measurement m;
    m.name = "generate";
    m.shape = {{"what", what},
               {"model", model_label(config)},
               {"parameters", parameter_count(parameter_specs(model))},
               {"batch", lengths.rows},
               {"prompt", lengths.prompt},
               {"tokens", lengths.tokens},
               {"ranks", ranks.mesh.size()},
               {"weight_format", config.get_string("weight_format")}};
    m.dtype = model.dtype;
    m.threads = usable_cores();
    m.time = timing_of(decode ? rounds.decode : rounds.prefill);
    // Logits are made for the last token of a row only.
    const double logits = 2.0 * static_cast<double>(model.emb * model.vocab);
    m.flops = (train_flops_per_token(model, seen) / 3 - logits) * static_cast<double>(tokens) +
              logits * static_cast<double>(lengths.rows);
    // A prompt is written to the cache; a token's step reads what the tokens before it left there.
    const double weights = bytes_read(model, ranks.specs, tokens),
                 cache = static_cast<double>(rounds.cache_bytes) * static_cast<double>(seen) /
                         static_cast<double>(lengths.prompt + lengths.tokens);
    m.bytes = weights + cache;
    m.more = {{"tokens_per_s", static_cast<double>(tokens) / m.time.seconds},
              {"weight_bytes", weights},
              {"cache_bytes", cache},
              {"bytes_over_stream", share(m.bytes / m.time.seconds, bench.peaks.stream_bytes)},
              {"peak_resident_bytes", peak_resident_bytes()}};
    const GpuWork& gpu = decode ? rounds.decode_gpu : rounds.prefill_gpu;
    m.more.update(json_of(gpu));
    m.lines = generating_shares(m, weights, cache, bench.peaks);
    std::ranges::move(lines_of(gpu), std::back_inserter(m.lines));
    measured.push_back(std::move(m));
  }
  return measured;
}

}  // namespace

std::vector<Key> generate_keys() {
  return {{"what", "all", "prefill, decode; or all"},
          {"prompt_tokens", "512", "length of the prompt"},
          {"tokens", "64", "tokens after it, of each row"}};
}

std::vector<Job> generate_jobs(const Keys& keys) {
  const auto& settings = keys.config_settings();
  const bool own_rows = std::any_of(settings.begin(), settings.end(), [](const std::string& setting) {
    return setting.starts_with("per_device_batch_size=");
  });
  const Config config = model_run_config("generate", settings);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const Lengths lengths{own_rows ? rows_to_generate(config, mesh) : 1, keys.integer("prompt_tokens"),
                        keys.integer("tokens")};
  const std::vector<std::string> whats = keys.words("what", {"prefill", "decode"});
  check_layout(config, mesh, model, {lengths.rows, lengths.rows, 1, model.moe_execution.token_chunks});
  const double bytes = static_cast<double>(parameter_count(parameter_specs(model))) *
                       static_cast<double>(size_of(model.weight_dtype));
  return {{"generate", bytes,
           [config, lengths, whats](Bench& bench) { return measure_generate(bench, config, lengths, whats); },
           config.notices()}};
}

}  // namespace switchyard::bench
