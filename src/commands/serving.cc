#include "commands/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "chat/call_form.h"
#include "commands/sampling_words.h"
#include "convert/inspect_adapter.h"
#include "core/error.h"
#include "core/gpu.h"
#include "engine/command_config.h"
#include "engine/output_files.h"
#include "engine/stored_model.h"
#include "generate/generator.h"
#include "metrics/append_file.h"
#include "plan/memory_limit.h"
#include "routing/routing_keys.h"
#include "serve/chat_model.h"
#include "serve/longest_token.h"
#include "serve/protocol/sampling_fields.h"
#include "serve/routing_recorder.h"
#include "texts/loop.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostWaiting = 512;
constexpr double kChatTemperature = 0.7;
constexpr std::int64_t kCompletedTokens = 200;  // of a line at a terminal
constexpr double kIdleSeconds = 0.2;  // rank 0's longest wait: the other ranks wait for it in a collective

// The folder or file with the weights.
fs::path model_path(const Config& config, std::span<const std::string> settings) {
  fs::path path = config.get_string("load_parameters_path");
  if (!settings.empty() && fs::exists(settings[0])) path = settings[0];
  if (path.filename().empty()) path = path.parent_path();
  return path;
}

const std::string* option(const Options& options, const char* name) {
  const auto given = options.values.find(name);
  return given == options.values.end() ? nullptr : &given->second;
}

// A model without a template does not chat, so what says how it chats would be passed over.
void refuse_chat_settings(const Config& config, const Options& options) {
  const auto refuse = [](std::string_view setting) {
    fail_usage("[serve] {}: the model has no chat template: give chat_template_path=FILE", setting);
  };
  for (const char* const option : kChatOptions) {
    if (options.values.contains(option) || options.flags.contains(option)) refuse(option);
  }
  if (!config.get_string("chat_template_kwargs").empty()) refuse("chat_template_kwargs");
}

std::shared_ptr<const serve::ChatModel> chat_model(const Config& config, const Options& options,
                                                   const fs::path& weights) {
  auto chat = serve::chat_model_of(config, weights);
  if (chat == nullptr) {
    refuse_chat_settings(config, options);
    return nullptr;
  }
  if (const std::string* const name = option(options, "--tool-format"))
    chat->format = chat::format_named(*name);
  if (const std::string* const name = option(options, "--reasoning-format")) {
    chat->reads_reasoning = *name != "none";
    if (*name != "none" && *name != "auto") {
      const chat::Format wanted = chat::format_named(*name);
      if (chat->format == chat::Format::none) chat->format = wanted;
      // Formats with calls read reasoning in a form of their own.
      if (chat::reasoning_end(wanted) != chat::reasoning_end(chat->format))
        fail_usage("[serve] --reasoning-format {}: calls in the format {} have reasoning of another form",
                   *name, chat::name_of(chat->format));
    }
  }
  chat->takes_templates = options.flags.contains("--trust-request-template");
  return chat;
}

// Returns the model with other weights, as if the settings had named them.
ModelOnRanks open_instead(const std::string& command, Processes& processes, std::vector<std::string> settings,
                          const std::string& path) {
  std::erase_if(settings, [](const std::string& setting) {
    return setting.starts_with("adapter=") || setting.starts_with("adapter_scale=") ||
           setting.starts_with("load_parameters_path=");
  });
  if (!settings.empty() && is_stored_model(settings[0]))
    settings[0] = path;
  else
    settings.push_back("load_parameters_path=" + path);
  return ModelOnRanks(ModelOnMesh(config_to_run_fixed(command, processes.count(), settings), ModelUse::run),
                      &processes);
}

// Makes what a server knows of its weights and their changes.
std::shared_ptr<serve::ServedWeights> served_weights(const ModelOnRanks& run, const Options& options,
                                                     const std::string& name,
                                                     std::shared_ptr<ChangingWeights> changing,
                                                     std::shared_ptr<serve::TokenMemory> memory) {
  const Config& config = run.config;
  serve::ServedWeights::Model model;
  model.names = {name};
  if (const auto aliases = options.lists.find("--alias"); aliases != options.lists.end())
    model.names.insert(model.names.end(), aliases->second.begin(), aliases->second.end());
  model.path = config.get_string("load_parameters_path");
  for (const ParameterSpec& spec : run.specs) {
    if (!spec.of_adapter) model.shapes += fmt::format("{}{};", spec.name, to_string(spec.shape));
  }
  model.adapters = run.named;
  if (run.named.empty()) model.only_adapter = config.get_string("adapter");
  model.places = config.get_int("lora_slots");
  if (std::ssize(run.named) > model.places)
    fail_usage("[serve] adapter={}: expected at most lora_slots={} adapters", config.get_string("adapter"),
               model.places);
  for (const NamedAdapter& adapter : run.named) {
    if (std::ranges::count(model.names, adapter.name) > 0)
      fail_usage("[serve] adapter={}: the model itself is called {}", config.get_string("adapter"),
                 adapter.name);
  }
  const auto folders = [&](const char* option) {
    const auto given = options.lists.find(option);
    return given == options.lists.end() ? std::vector<std::string>() : given->second;
  };
  model.adapter_folders = folders("--adapter-folder");
  model.weight_folders = folders("--weights-folder");
  model.prepare = [changing = std::move(changing)](const WeightChange& change) { changing->prepare(change); };
  model.is_adapter = is_adapter;
  model.forget = [memory = std::move(memory)] {
    if (memory != nullptr) memory->clear();
  };
  return std::make_shared<serve::ServedWeights>(std::move(model));
}

// Sets what requests leave out. Where nobody says how a chat takes its tokens, it draws them: so a chat
// can give several answers.
void set_defaults(const std::string& command, const Config& config, nlohmann::json fields, std::int32_t vocab,
                  serve::ServedModel& served) {
  served.sampling = sampling_config(config, vocab);
  if (command == "chat" && served.sampling.strategy == SamplingStrategy::greedy &&
      !config.is_set_by_user("decode_sampling_strategy") && !fields.contains("temperature")) {
    const bool is_said = config.is_set_by_user("decode_sampling_temperature") ||
                         config.is_changed("decode_sampling_temperature");
    fields["temperature"] = is_said ? served.sampling.temperature : kChatTemperature;
  }
  serve::Fields given(fields);
  served.sampling = serve::sampling_of(given, served);
  if (fields.contains("max_tokens"))
    served.most_tokens = fields["max_tokens"].get<std::int64_t>();
  else if (command == "chat" && served.chat == nullptr)
    served.most_tokens = kCompletedTokens;
  if (fields.contains("seed")) served.seed = fields["seed"].get<std::int64_t>();
  served.stop = given.strings("stop");
}

Serving serving_of(const std::string& command, Processes& processes, ModelOnRanks run, const Options& options,
                   const SamplingWords& words, std::int64_t slots) {
  // Without a word from anyone, texts are no longer than the model was trained for.
  const std::int64_t usual = run.config.get_int("max_target_length");
  if (!run.config.is_set_by_user("max_target_length") && trained_context(run) < usual)
    run.config.set("max_target_length", trained_context(run), "serve: max_position_embeddings");
  note_context(run, command, run.config.get_int("max_target_length"));
  const Config& config = run.config;
  texts::Limits limits;
  limits.slots = config.is_set_by_user("per_device_batch_size") ? rows_to_generate(config, run.mesh) : slots;
  check_layout(config, run.mesh, run.model,
               {limits.slots, limits.slots, 1, run.model.moe_execution.token_chunks});
  serve::ServedModel served;
  const fs::path weights = model_path(config, words.settings);
  served.name = serve::name_of_model(config, weights);
  served.has_page = config.get_bool("page");
  if (const auto names = options.lists.find("--alias"); names != options.lists.end())
    served.aliases = names->second;
  served.chat = chat_model(config, options, weights);
  served.tokenizer = run.tokenizer.get();
  served.vocab = run.model.vocab;
  served.capacity = config.get_int("max_target_length");
  served.add_bos = config.get_bool("add_bos");
  served.add_eos = config.get_bool("add_eos");
  served.keys_share_prefixes = config.get_bool("share_prefixes_between_keys");
  served.records_routing = records_routing(config, run.model);
  served.longest_token = serve::longest_token_bytes(*run.tokenizer, run.model.vocab);
  const auto vocab =
      static_cast<std::int32_t>(std::min<std::int64_t>(run.tokenizer->vocab_size(), run.model.vocab));
  set_defaults(command, config, words.fields, vocab, served);
  limits.waiting = config.get_int("max_waiting") >= 0 ? config.get_int("max_waiting")
                                                      : std::min(16 * limits.slots, kMostWaiting);
  limits.texts_of_key = config.get_int("max_texts_of_key");
  limits.text_seconds = config.get_float("request_timeout");
  limits.counts_experts = true;
  limits.deterministic = config.get_bool("deterministic_batches");
  served.most_texts = limits.slots + limits.waiting;
  limits.vocab = vocab;
  limits.drafts = run.model.predictions > 0 ? config.get_int("mtp_draft_tokens") : 0;
  limits.ngram_drafts = run.config.get_int("ngram_draft");
  limits.call_cost = texts::call_cost(run.model);
  limits.ends = end_tokens(config, *run.tokenizer);
  const bool whole = config.is_set_by_user("use_chunked_prefill") && !config.get_bool("use_chunked_prefill");
  limits.shares_prefixes =
      config.get_bool("enable_prefix_caching") || !config.is_set_by_user("enable_prefix_caching");
  const bool evicts = !config.get_bool("enable_prefix_caching");
  const Prefixes prefixes = prefixes_of(run.model, evicts);
  if (limits.shares_prefixes && prefixes != Prefixes::any)
    limits.checkpoints = config.get_int("prompt_checkpoints");
  if (prefixes == Prefixes::whole && limits.checkpoints == 0) {
    if (limits.shares_prefixes && config.is_set_by_user("enable_prefix_caching"))
      fail_usage(
          "[serve] enable_prefix_caching=true: a model with gated delta nets caches whole texts only; set "
          "prompt_checkpoints=1");
    limits.shares_prefixes = false;
  }
  limits.prompt_chunk = whole ? served.capacity : config.get_int("prefill_chunk_size");
  limits.scored_chunk = texts::scored_chunk_of(served.vocab, limits.prompt_chunk);
  if (grammar::is_built_in() && served.chat != nullptr)
    served.vocabulary = std::make_shared<const grammar::Vocabulary>(*run.tokenizer, vocab, limits.ends);
  if (!limits.deterministic) served.memory = std::make_shared<serve::TokenMemory>(*run.tokenizer);
  const auto changing = std::make_shared<ChangingWeights>(
      run, [command, &processes, settings = words.settings](const std::string& path) {
        return open_instead(command, processes, settings, path);
      });
  served.weights = served_weights(run, options, served.name, changing, served.memory);
  return {std::move(run), limits, served, changing, evicts};
}

}  // namespace

Serving make_serving(const std::string& command, Processes& processes, const Options& options,
                     std::span<const std::string> settings, std::int64_t slots) {
  const SamplingWords words = take_sampling_words(command, settings);
  Serving serving =
      serving_of(command, processes, model_to_run(command, processes, words.settings), options, words, slots);
  serving.independence = row_independence_of(serving.run.config, serving.run.mesh, serving.run.model);
  texts::Limits& limits = serving.limits;
  const std::int64_t capacity = serving.served.capacity;
  // Several processes would not all decide alike, each by its machine's memory.
  if (processes.count() == 1 && limits.checkpoints > 0 &&
      !serving.run.config.is_set_by_user("prompt_checkpoints") &&
      !has_memory_to_run(command, serving.run, limits.slots, capacity, serving.evicts, processes,
                         limits.checkpoints)) {
    limits.checkpoints = 0;
    limits.shares_prefixes =
        limits.shares_prefixes && prefixes_of(serving.run.model, serving.evicts) != Prefixes::whole;
  }
  require_memory_to_run(command, serving.run, limits.slots, capacity, serving.evicts, processes,
                        limits.checkpoints);
  return serving;
}

void run_serving(const Serving& serving, Processes& processes, texts::Inbox& inbox, texts::Observer& observer,
                 const ServingHooks& hooks) {
  const bool first = processes.index() == 0;
  const Config& config = serving.run.config;
  const std::string record = routing_files(config, serving.run.model).record;
  require_outputs_apart("serve", config, {{"routing_record", record}});
  AppendFile routing;
  if (first && !record.empty()) {
    routing = AppendFile("routing", record);
    routing.clear();
  }
  processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
  if (first && hooks.tell) std::ranges::for_each(serving.run.notes, hooks.tell);
  Startup startup = Startup::of_program();
  startup.mark("config");
  try {
    serving.run.run([&](Context& context) {
      const auto mark = [&](const char* part) {
        if (context.memory.device().kind() == DeviceKind::cuda) gpu::synchronize();
        if (context.comm->rank() == 0) startup.mark(part);
      };
      mark("device");
      Parameters parameters = serving.run.load(context, hooks.loading);
      mark("weights");
      Generator generator(context, serving.run.model, parameters, serving.limits.slots,
                          serving.served.capacity, serving.evicts, serving.limits.checkpoints,
                          std::max({std::int64_t{1}, serving.limits.drafts, serving.limits.ngram_drafts}));
      generator.keep_logits_there();
      mark("cache");
      if (serving.served.records_routing) generator.record_routing();
      if (hooks.before_texts) hooks.before_texts();
      std::optional<texts::Loop::Head> head;
      if (context.comm->rank() == 0) {
        head.emplace(texts::Loop::Head{inbox, serving.run.tokenizer.get(), observer});
        head->next_task = [&] { return serving.served.weights->next_task(inbox); };
        if (serving.served.records_routing)
          head->on_finished = serve::routing_recorder(routing.is_open() ? &routing : nullptr, generator);
      }
      texts::Loop loop(generator, serving.limits, head ? &*head : nullptr, [&](const std::string& task) {
        const std::string problem =
            serving.changing->apply(context, parameters, generator, change_of_text(task));
        if (head) serving.served.weights->done(task, problem, inbox);
      });
      if (head && hooks.ready) hooks.ready(startup);
      while (loop.step(kIdleSeconds)) {
        if (head && hooks.between) hooks.between();
      }
    });
    serving.served.weights->stop();
  } catch (...) {
    serving.served.weights->stop();
    inbox.close();
    throw;
  }
  routing.close();
}

}  // namespace switchyard
