#include "cli/serve_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/options.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "core/error.h"
#include "engine/model_to_run.h"
#include "engine/session.h"
#include "generate/deterministic_batches.h"
#include "generate/generate.h"
#include "metrics/append_file.h"
#include "metrics/atomic_file.h"
#include "parallel/comm/stop_signal.h"
#include "plan/memory_limit.h"
#include "routing/routing_keys.h"
#include "serve/http_server.h"
#include "serve/serve_loop.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

constexpr const char* kServeHelp =
    R"(switchyard serve FOLDER [key=value ...] [--host ADDRESS] [--port N] [--json FILE]
switchyard serve [CONFIG.yml] load_parameters_path=FOLDER key=value ... [--host ADDRESS] [--port N]

Answers requests for text over HTTP, as clients of OpenAI's completions make them. FOLDER holds a model's weights: the
folder of a run (its newest checkpoint), a checkpoint, or a Hugging Face folder. Texts join and leave between two tokens;
long prompts are read in chunks between others' tokens.

  --host ADDRESS             where it listens; 127.0.0.1 without, which only this machine reaches
  --port N                   8000 without; 0: any free one
  --json FILE                host, port and model, written when it listens
  per_device_batch_size=4    so many texts a rank at once (8 in all without)
  max_target_length=2048     most tokens of a prompt and its text together; each text has memory for as many.
                             Without: 2048, or the context that the model was trained for where that is less
  weight_format=int4         weights in 4 or 8 bits, made on load: int4, int4a, mxfp4, int8
  quantize_kvcache=true      keys and values in 8 bits: half the memory of a text, and less to read for each token
  prefill_chunk_size=256     most tokens of prompts that are read at once; use_chunked_prefill=false: whole prompts
  enable_prefix_caching=false       reads all of every prompt; without, not the beginning that a slot has cached.
                                    true: layers with windows or chunks keep whole texts for that, too
  deterministic_batches=true        a text has the same bits whoever shares the batch; slower (docs/serving.md)
  routing_record=FILE        the experts of every token of each text that ends, for `train routing_replay=FILE`
  mtp_draft=true   as for `generate`; how many drafts were right is among the metrics
  decode_sampling_strategy=greedy   and its keys, as for `generate`, where a request does not say; FOLDER's
                                    generation_config.json where the command line does not
  ranks=8 ici_expert_parallelism=8  any mesh and strategy, also under mpirun: process 0 listens

GET /health, GET /v1/models, GET /metrics (for Prometheus, with the load of each expert), POST /v1/completions.
SIGTERM or Ctrl-C: the texts that are being made are finished, those that wait are not begun; once more ends it at once.

Exit status: 0 stopped by a signal, 1 failed, 2 wrong command line, config or file.

Examples:
  switchyard serve tests/golden/hf/deepseek3-tiny tokenizer_type=byte
  switchyard train configs/examples/small-moe.yml run_name=writer enable_checkpointing=true
  switchyard serve switchyard_output/writer
  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "The ", "max_tokens": 50, "temperature": 0.7}'
)";

constexpr std::int64_t kTextsAtOnce = 8, kMostWaiting = 512, kMostConnections = 1024;

struct Serving {
  ModelOnRanks run;
  serve::Limits limits;
  serve::ServedModel served;
  bool evicts;  // Generator
};

// The folder's name, or else the model's name.
std::string name_of_model(const Config& config, std::span<const std::string> settings) {
  std::filesystem::path path = config.get_string("load_parameters_path");
  if (!settings.empty() && std::filesystem::is_directory(settings[0])) path = settings[0];
  if (path.filename().empty()) path = path.parent_path();
  const std::string folder = path.filename().string();
  return folder.empty() || folder == "." || folder == ".." ? config.get_string("model_name") : folder;
}

Serving make_serving(ModelOnRanks run, std::span<const std::string> settings) {
  // Without a word from anyone, texts are no longer than the model was trained for.
  const std::int64_t usual = run.config.get_int("max_target_length");
  if (!run.config.is_set_by_user("max_target_length") && trained_context(run) < usual)
    run.config.set("max_target_length", trained_context(run), "serve: max_position_embeddings");
  note_context(run, "serve", run.config.get_int("max_target_length"));
  const Config& config = run.config;
  serve::Limits limits;
  limits.slots =
      config.is_set_by_user("per_device_batch_size") ? rows_to_generate(config, run.mesh) : kTextsAtOnce;
  check_layout(config, run.mesh, run.model,
               {limits.slots, limits.slots, 1, run.model.moe_execution.token_chunks});
  serve::ServedModel served;
  served.name = name_of_model(config, settings);
  served.tokenizer = run.tokenizer.get();
  served.vocab = run.model.vocab;
  served.capacity = config.get_int("max_target_length");
  served.add_bos = config.get_bool("add_bos");
  served.add_eos = config.get_bool("add_eos");
  const auto vocab =
      static_cast<std::int32_t>(std::min<std::int64_t>(run.tokenizer->vocab_size(), run.model.vocab));
  served.sampling = sampling_config(config, vocab);
  limits.waiting = std::min(16 * limits.slots, kMostWaiting);
  served.most_texts = limits.slots + limits.waiting;
  limits.vocab = vocab;
  limits.deterministic = config.get_bool("deterministic_batches");
  limits.drafts = run.model.predictions > 0;
  limits.ends = end_tokens(config, *run.tokenizer);
  const bool whole = config.is_set_by_user("use_chunked_prefill") && !config.get_bool("use_chunked_prefill");
  limits.shares_prefixes =
      config.get_bool("enable_prefix_caching") || !config.is_set_by_user("enable_prefix_caching");
  if (run.model.has_delta()) {
    if (limits.shares_prefixes && config.is_set_by_user("enable_prefix_caching"))
      fail_usage("[serve] enable_prefix_caching=true: a model with gated delta nets caches whole texts only");
    limits.shares_prefixes = false;
  }
  limits.prompt_chunk = whole ? served.capacity : config.get_int("prefill_chunk_size");
  constexpr std::int64_t kScoredBytes = std::int64_t{64} << 20;  // of logits at once
  limits.scored_chunk = std::clamp<std::int64_t>(kScoredBytes / (4 * served.vocab), 1, limits.prompt_chunk);
  const bool evicts = !config.get_bool("enable_prefix_caching");
  return {std::move(run), limits, served, evicts};
}

void tell_where(const Serving& serving, const std::string& host, int port, const std::string& json_file) {
  fmt::print(stderr, "{} on http://{}:{}: {} texts at once, each of at most {} tokens with its prompt\n",
             serving.served.name, host, port, serving.limits.slots, serving.served.capacity);
  if (json_file.empty()) return;
  const nlohmann::json json{
      {"version", SWITCHYARD_VERSION}, {"host", host}, {"port", port}, {"model", serving.served.name}};
  write_file_atomic(json_file, json.dump(1) + "\n");
}

int serve_texts(const Options& options, Processes& processes) {
  const bool first = processes.index() == 0;
  const auto port = static_cast<int>(number_option("serve", options, "--port", 8000, 0, 65535));
  const auto host = options.values.find("--host");
  const serve::HttpServer::Address address{host == options.values.end() ? "127.0.0.1" : host->second, port};
  const Serving serving = make_serving(model_to_run("serve", processes, options.settings), options.settings);
  require_memory_to_run("serve", serving.run, serving.limits.slots, serving.served.capacity, serving.evicts,
                        processes);
  const auto independence = row_independence_of(serving.run.config, serving.run.mesh, serving.run.model);
  serve::Statistics statistics(serving.served.name);
  serve::RequestQueue queue(serving.limits, statistics);
  serve::Batcher batcher(*serving.run.tokenizer, serving.limits, queue, statistics);
  std::optional<serve::HttpServer> server;
  if (first) {
    const std::int64_t connections =
        std::min(serving.limits.slots + serving.limits.waiting + 16, kMostConnections);
    server.emplace(address, serving.served, queue, statistics, static_cast<int>(connections));
  }
  const Config& config = serving.run.config;
  const std::string record = routing_files(config, serving.run.model).record;
  AppendFile routing;
  if (first && !record.empty()) {
    routing = AppendFile("routing", record);
    routing.clear();
  }
  processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
  if (first) {
    for (const std::string& note : serving.run.notes) fmt::print(stderr, "{}\n", note);
  }
  try {
    serving.run.run([&](Context& context) {
      const Parameters parameters = serving.run.load(context, load_bar());
      Generator generator(context, serving.run.model, parameters, serving.limits.slots,
                          serving.served.capacity, serving.evicts);
      if (!record.empty()) generator.record_routing();
      catch_stop_signals();  // until here one ends the process at once
      if (context.comm->rank() != 0) {
        serve::run_serve_loop(context, serving.run.model, generator, nullptr);
        return;
      }
      server->start();
      tell_where(serving, address.host, server->port(), options.json_file);
      serve::ServeHead head{batcher, queue, statistics, [&] {
                              if (stop_signal() != 0) queue.close();
                            }};
      if (routing.is_open()) head.routing_record = &routing;
      serve::run_serve_loop(context, serving.run.model, generator, &head);
    });
  } catch (...) {
    batcher.give_up();
    throw;
  }
  if (first) {
    const serve::Counts counts = statistics.counts();
    fmt::print(stderr, "stopped: {} texts finished, {} abandoned; {} tokens read, {} made\n",
               counts.stopped + counts.length, counts.abandoned, counts.prompt_tokens, counts.new_tokens);
  }
  routing.close();
  return 0;
}

}  // namespace

int serve_command(std::span<const std::string> args) {
  const Options options = parse_options("serve", {}, args, {"--host", "--port"});
  if (options.help) {
    std::fputs(kServeHelp, stdout);
    return 0;
  }
  return run_in_processes([&](Processes& processes) { return serve_texts(options, processes); });
}

}  // namespace switchyard
