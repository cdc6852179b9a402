#include "commands/text_server.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTextsAtOnce = 8;

// An address that a browser on this machine reaches.
std::string host_to_open(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return http::host_in_url(host == "::" ? "::1" : host);
}

const char* scheme_of(const http::Options& listening) {
  return listening.tls_key.empty() ? "http" : "https";
}

void tell_where(const Serving& serving, const http::Options& listening, int port, const Startup& startup,
                const std::string& json_file, const Tell& tell) {
  const auto say = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    if (tell) tell(fmt::format(format, std::forward<Args>(args)...));
  };
  say("{} on {}://{}:{}: {} texts at once, each of at most {} tokens with its prompt", serving.served.name,
      scheme_of(listening), http::host_in_url(listening.host), port, serving.limits.slots,
      serving.served.capacity);
  if (serving.served.has_page)
    say("open {}://{}:{}/ in a browser", scheme_of(listening), host_to_open(listening.host), port);
  if (serving.served.chat == nullptr) say("this model only completes: it has no chat template");
  if (const auto& chat = serving.served.chat; chat != nullptr)
    say("chats by {}: calls and reasoning in the format {}", chat->prompts.source().origin,
        chat::name_of(chat->format));
  if (listening.keys.empty() && !http::is_loopback(listening.host))
    say("warning: everybody who reaches {} may ask: --api-key-file gives keys", listening.host);
  if (json_file.empty()) return;
  const nlohmann::json json{{"version", SWITCHYARD_VERSION},
                            {"host", listening.host},
                            {"port", port},
                            {"model", serving.served.name},
                            {"startup_seconds", to_json(startup)}};
  write_file_atomic(json_file, json.dump(1) + "\n");
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

}  // namespace

Options serve_options(std::span<const std::string> args) {
  return parse_options("serve", args);
}

TextServer::TextServer(const Options& options, Processes& processes)
    : processes_(processes),
      json_file_(options.json_file),
      listening_(listening_of(options)),
      serving_(make_serving("serve", processes, options, options.settings, kTextsAtOnce)) {
  add_keys_of_config(serving_.run.config, options, listening_);
  statistics_.emplace(serving_.served.name);
  inbox_.emplace(serving_.limits, *statistics_);
  if (processes.index() == 0) http_.emplace(listening_, serving_.served, *inbox_, *statistics_);
}

void TextServer::run(const ServingHooks& hooks) {
  ServingHooks with = hooks;
  with.ready = [&](const Startup& startup) {
    http_->start();
    tell_where(serving_, listening_, http_->port(), startup, json_file_, hooks.tell);
    if (hooks.ready) hooks.ready(startup);
  };
  run_serving(serving_, processes_, *inbox_, *statistics_, with);
}

std::string TextServer::url() const {
  return fmt::format("{}://{}:{}", scheme_of(listening_), host_to_open(listening_.host), http_->port());
}

nlohmann::ordered_json TextServer::stats() const {
  const serve::Counts counts = statistics_->counts();
  const serve::CacheUse cache = statistics_->cache_use();
  return {{"running", inbox_->running()},
          {"waiting", inbox_->waiting()},
          {"finished", counts.stopped + counts.length},
          {"abandoned", counts.abandoned},
          {"refused", counts.refused},
          {"failed", counts.failed},
          {"prompt_tokens", counts.prompt_tokens},
          {"shared_tokens", counts.shared_tokens},
          {"new_tokens", counts.new_tokens},
          {"prompt_seconds", counts.prompt_seconds},
          {"token_seconds", counts.token_seconds},
          {"cache_tokens", cache.tokens},
          {"cache_capacity", cache.capacity}};
}

std::string TextServer::farewell() const {
  const serve::Counts counts = statistics_->counts();
  return fmt::format("stopped: {} texts finished, {} abandoned; {} tokens read, {} made",
                     counts.stopped + counts.length, counts.abandoned, counts.prompt_tokens,
                     counts.new_tokens);
}

}  // namespace switchyard
