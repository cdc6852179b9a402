#include "cli/serve_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/help_page.h"
#include "commands/options.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "cli/serving.h"
#include "core/error.h"
#include "engine/model_to_run.h"
#include "engine/session.h"
#include "metrics/append_file.h"
#include "metrics/atomic_file.h"
#include "parallel/comm/stop_signal.h"
#include "plan/memory_limit.h"
#include "routing/routing_keys.h"
#include "serve/http_server.h"
#include "texts/loop.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

constexpr const char* kServeHelp =
    R"(switchyard serve FOLDER|FILE.gguf [key=value ...] [--host ADDRESS] [--port N] [--api-key-file FILE]
switchyard serve [CONFIG.yml] load_parameters_path=FOLDER key=value ... [--host ADDRESS] [--port N]

Answers chats and requests for text over HTTP, as clients of OpenAI's and Anthropic's APIs make them. FOLDER holds a model's weights: the
folder of a run (its newest checkpoint), a checkpoint, a Hugging Face folder, or a GGUF file. Texts join and leave between two tokens;
long prompts are read in chunks between others' tokens.

  --host ADDRESS             where it listens; 127.0.0.1 without, which only this machine reaches
  --port N                   8000 without; 0: any free one
  --json FILE                host, port and model, written when it listens
  --api-key-file FILE        a key a line (# begins a comment): requests need one, as `Authorization: Bearer KEY` or
                             `x-api-key: KEY`; but for /health and /metrics. Also SWITCHYARD_API_KEY=KEY
  --api-key KEY              the same, and again for more; others on this machine see it in the list of processes
  --cors ORIGIN              lets pages of that site ask, such as http://localhost:5173, and again for more; *: all
  --host-name NAME           what requests may call this machine, beside its addresses and localhost, while only this
                             machine reaches the server; and again for more
  --alias NAME               another name of the model, and again for more
  --adapter-folder FOLDER    requests with a key may load adapters from below it, and again for more
  --weights-folder FOLDER    requests with a key may replace the weights by those below it, and again for more
  --tool-format NAME --reasoning-format NAME    how the model writes calls and reasoning; without, as its template says
  --trust-request-template   requests may bring a chat template of their own
  chat_template_path=FILE    makes prompts of a chat's messages; without, the template that the model's files have
  chat_template_kwargs={"enable_thinking": false}    what the template gets where a request does not say
  trust_messages=true strict_fields=true page=false protect_metrics=true max_waiting=N
  max_texts_of_key=N share_prefixes_between_keys=true max_body=MIB request_timeout=SECONDS
  tls_cert=FILE tls_key=FILE    `config --list serve` says what they do
  per_device_batch_size=4    so many texts a rank at once (8 in all without)
  max_target_length=2048     most tokens of a prompt and its text together; each text has memory for as many.
                             Without: 2048, or the context that the model was trained for where that is less
  weight_format=int4         weights in 4 or 8 bits, made on load: int4, int4a, mxfp4, int8
  adapter=FOLDER             an adapter beside the weights, of all texts: a folder of PEFT, or a run that trained one
  adapter=sql=FOLDER,poet=FOLDER2    several side by side: a request's "model" says which, the model's own name none.
                             At most lora_slots=8 at once
  quantize_kvcache=true      keys and values in 8 bits: half the memory of a text, and less to read for each token
  prefill_chunk_size=256     most tokens of prompts that are read at once; use_chunked_prefill=false: whole prompts
  enable_prefix_caching=false       reads all of every prompt; without, not the beginning that a slot has cached.
                                    true: layers with windows or chunks keep whole texts for that, too
  routing_record=FILE        the experts of every token of each text that ends, for `train routing_replay=FILE`
  return_routed_experts=true    requests may ask for those of their texts, by a field of this name
  ngram_draft=N, mtp_draft=true, mtp_draft_tokens=N   as for `generate`; how many drafts were right is among the metrics
  temperature=0.7 top_p= top_k= min_p= max_tokens= seed= stop= presence_penalty= frequency_penalty=
  repetition_penalty=        what a request leaves out; as in requests, in `generate` and in `chat`
  decode_sampling_strategy=greedy   and its keys, as for `generate`, where a request does not say; FOLDER's
                                    generation_config.json where the command line does not
  ranks=8 ici_expert_parallelism=8  any mesh and strategy, also under mpirun: process 0 listens

POST /v1/load_lora_adapter, /v1/unload_lora_adapter and /v1/weights change adapters and weights while it runs.
POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /tokenize, /detokenize, /apply-template; GET /v1/models,
/props, /health, /metrics (for Prometheus, with the load of each expert), and / is a page for chats. docs/http.md says all.
SIGTERM or Ctrl-C: the texts that are being made are finished, those that wait are not begun; once more ends it at once.

Exit status: 0 stopped by a signal, 1 failed, 2 wrong command line, config or file.

Examples:
  switchyard serve tests/golden/hf/deepseek3-tiny tokenizer_type=byte
  switchyard train configs/examples/small-moe.yml run_name=writer enable_checkpointing=true
  switchyard serve switchyard_output/writer
  switchyard serve model-Q4_K_M.gguf max_target_length=4096
  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "The ", "max_tokens": 50, "temperature": 0.7}'
)";

constexpr std::int64_t kTextsAtOnce = 8;

// An address that a browser on this machine reaches.
std::string host_to_open(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return http::host_in_url(host == "::" ? "::1" : host);
}

void tell_where(const Serving& serving, const http::Options& listening, int port, const Startup& startup,
                const std::string& json_file) {
  fmt::print(stderr, "{} on {}://{}:{}: {} texts at once, each of at most {} tokens with its prompt\n",
             serving.served.name, listening.tls_key.empty() ? "http" : "https",
             http::host_in_url(listening.host), port, serving.limits.slots, serving.served.capacity);
  if (serving.served.has_page)
    fmt::print(stderr, "open {}://{}:{}/ in a browser\n", listening.tls_key.empty() ? "http" : "https",
               host_to_open(listening.host), port);
  if (serving.served.chat == nullptr)
    fmt::print(stderr, "this model only completes: it has no chat template\n");
  if (const auto& chat = serving.served.chat; chat != nullptr)
    fmt::print(stderr, "chats by {}: calls and reasoning in the format {}\n", chat->prompts.source().origin,
               chat::name_of(chat->format));
  if (listening.keys.empty() && !http::is_loopback(listening.host))
    fmt::print(stderr, "warning: everybody who reaches {} may ask: --api-key-file gives keys\n",
               listening.host);
  if (json_file.empty()) return;
  const nlohmann::json json{{"version", SWITCHYARD_VERSION},
                            {"host", listening.host},
                            {"port", port},
                            {"model", serving.served.name},
                            {"startup_seconds", to_json(startup)}};
  write_file_atomic(json_file, json.dump(1) + "\n");
}

// The options of `serve`, and those of how it chats.
std::set<std::string> option_names(bool with_value) {
  std::set<std::string> names;
  if (with_value)
    names = {"--host", "--port",      "--alias",          "--api-key",       "--api-key-file",
             "--cors", "--host-name", "--adapter-folder", "--weights-folder"};
  for (const ChatOption& option : kChatOptions) {
    if (option.takes_value == with_value) names.insert(option.name);
  }
  return names;
}

// Keys of the options and of the environment. Their text is kept nowhere.
http::Keys keys_of(const Options& options) {
  http::Keys keys;
  const auto add = [&](const std::string& key) {
    if (key.empty()) fail_usage("[serve] --api-key, SWITCHYARD_API_KEY: expected a key, got an empty text");
    keys.add(key);
  };
  if (const auto given = options.lists.find("--api-key"); given != options.lists.end())
    std::ranges::for_each(given->second, add);
  if (const auto files = options.lists.find("--api-key-file"); files != options.lists.end()) {
    for (const std::string& file : files->second) http::add_keys_of_file(file, keys);
  }
  if (const char* const key = std::getenv("SWITCHYARD_API_KEY")) add(key);
  return keys;
}

// Reads the options, which are checked before a model is opened.
http::Options listening_of(const Options& options) {
  const auto value = [&](const char* name, const char* otherwise = "") {
    const auto given = options.values.find(name);
    return given == options.values.end() ? std::string(otherwise) : given->second;
  };
  const auto list = [&](const char* name) {
    const auto given = options.lists.find(name);
    return given == options.lists.end() ? std::vector<std::string>() : given->second;
  };
  http::Options listening;
  listening.host = value("--host", "127.0.0.1");
  listening.port = static_cast<int>(number_option("serve", options, "--port", 8000, 0, 65535));
  listening.keys = keys_of(options);
  listening.origins = list("--cors");
  listening.host_names = list("--host-name");
  return listening;
}

// Reads the config's keys.
void add_keys_of_config(const Config& config, const Options& options, http::Options& listening) {
  listening.most_body = static_cast<std::size_t>(config.get_int("max_body")) << 20;
  listening.protect_metrics = config.get_bool("protect_metrics");
  listening.tls_certificate = config.get_string("tls_cert");
  listening.tls_key = config.get_string("tls_key");
  if (!listening.keys.empty()) return;
  for (const char* const option : {"--adapter-folder", "--weights-folder"}) {
    if (options.lists.contains(option)) fail_usage("[serve] {}: expected an API key, got none", option);
  }
  if (listening.protect_metrics) fail_usage("[serve] protect_metrics=true: expected an API key, got none");
  if (config.get_int("max_texts_of_key") >= 0)
    fail_usage("[serve] max_texts_of_key: expected API keys, got none");
  if (config.get_bool("share_prefixes_between_keys"))
    fail_usage("[serve] share_prefixes_between_keys=true: expected API keys, got none");
}

int serve_texts(const Options& options, Processes& processes) {
  const bool first = processes.index() == 0;
  http::Options listening = listening_of(options);
  const Serving serving = make_serving("serve", processes, options, options.settings, kTextsAtOnce);
  add_keys_of_config(serving.run.config, options, listening);
  serve::Statistics statistics(serving.served.name);
  texts::Inbox inbox(serving.limits, statistics);
  std::optional<serve::HttpServer> server;
  if (first) server.emplace(listening, serving.served, inbox, statistics);
  run_serving(
      serving, processes, inbox, statistics,
      [&](const Startup& startup) {
        server->start();
        tell_where(serving, listening, server->port(), startup, options.json_file);
      },
      [&] {
        if (stop_signal() != 0) inbox.close();
      });
  if (first) {
    const serve::Counts counts = statistics.counts();
    fmt::print(stderr, "stopped: {} texts finished, {} abandoned; {} tokens read, {} made\n",
               counts.stopped + counts.length, counts.abandoned, counts.prompt_tokens, counts.new_tokens);
  }
  return 0;
}

}  // namespace

int serve_command(std::span<const std::string> args) {
  const Options options = parse_options("serve", option_names(false), args, option_names(true));
  if (options.help) {
    print_help_page(kServeHelp);
    return 0;
  }
  return run_in_processes([&](Processes& processes) { return serve_texts(options, processes); });
}

}  // namespace switchyard
