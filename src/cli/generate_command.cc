#include "cli/generate_command.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/help_page.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "cli/terminal_text.h"
#include "commands/options.h"
#include "commands/sampling_words.h"
#include "core/error.h"
#include "core/gpu.h"
#include "core/resident_memory.h"
#include "core/startup.h"
#include "engine/model_to_run.h"
#include "engine/output_files.h"
#include "engine/session.h"
#include "generate/deterministic_batches.h"
#include "generate/token_text.h"
#include "metrics/append_file.h"
#include "metrics/atomic_file.h"
#include "plan/memory_limit.h"
#include "routing/routing_keys.h"
#include "serve/protocol/sampling_fields.h"
#include "texts/generate.h"
#include "texts/stop_text.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

constexpr const char* kGenerateHelp = R"(switchyard generate FOLDER|FILE.gguf [key=value ...] [--json FILE]
switchyard generate [CONFIG.yml] load_parameters_path=FOLDER key=value ... [--json FILE]

Goes on from a text. FOLDER holds a model's weights: the folder of a run (its newest checkpoint), a checkpoint, a Hugging
Face folder, or a GGUF file; given first, it says what the model and its tokenizer are. Keys are the reference's, as for `train`:

  prompt="The "                     the text, "I love to" without
  max_tokens=200                    most new tokens; without, as many as max_target_length leaves room for
  temperature=0.7 top_p=0.9 top_k=40 min_p=0.05
                                    draws tokens; without any, the most probable one. The words are those of
                                    requests, as in `chat` and `serve`
  seed=7                            other draws
  stop="\n"                         the text ends before this text, or the first of a JSON list of texts
  presence_penalty=0.5 frequency_penalty=0.5 repetition_penalty=1.1
                                    against words that come again
  max_target_length=512             prompt and new tokens together, of which max_prefill_predict_length are the prompt's
  max_prefill_predict_length=64     (longer only when the prompt is)
  ngram_draft=N    so many tokens at most are guessed from what the text has said before; the same texts
  mtp_draft=true   a model's prediction layer guesses mtp_draft_tokens=1 tokens at most, which the model then reads at once; the same texts
  decode_sampling_strategy=greedy   or weighted, nucleus, topk, composite, with decode_sampling_temperature, _nucleus_p, _top_k
  decode_sampling_min_p=0.05        and decode_repetition_penalty, _presence_penalty, _frequency_penalty, _logit_bias=[[5,-100]]
  decode_end_tokens=[5,7]           tokens that end a text, beside the tokenizer's own
  use_chunked_prefill=true          reads the prompt prefill_chunk_size tokens at a time
  per_device_batch_size=4           so many texts a rank at once (one in all without)
  quantize_kvcache=true             keys and values in 8 bits: half the memory, and less to read for each token
  deterministic_batches=true        a text has the same bits however many are made at once; slower
  weight_format=int4                weights in 4 or 8 bits, made on load: int4, int4a, mxfp4, int8
  adapter=FOLDER adapter_scale=1    an adapter beside the weights: a folder of PEFT, or a run that trained one
  init_weights_seed=1               draws, too, where seed= is not given
  routing_record=FILE               the experts of every token, for `train routing_replay=FILE`
  ranks=8 ici_expert_parallelism=8  any mesh and strategy, also under mpirun: the same text, up to rounding

A generation_config.json in FOLDER (temperature, top_k, top_p, min_p, repetition_penalty, do_sample, eos_token_id) says what
these keys are where the command line does not.

The text goes to standard output as it comes, how fast to standard error. It ends where the model ends it, or with the
last token that max_target_length leaves room for.

  --json FILE   tokens, texts, times and memory; with return_log_prob=true also the log probability of every token

Exit status: 0 done, 1 failed, such as at logits that are NaN or infinite (the line names the token and the first layer
whose output is not finite), 2 wrong command line, config or file, 3 the text is not autoregressive_decode_assert.

Examples:
  switchyard generate tests/golden/hf/deepseek3-tiny tokenizer_type=byte prompt="ab" max_target_length=80
  switchyard train configs/examples/small-moe.yml run_name=writer enable_checkpointing=true
  switchyard generate switchyard_output/writer prompt="The " temperature=0.7 max_tokens=100
  switchyard generate model-Q4_K_M.gguf prompt="The " max_target_length=200
)";

struct Prompt {
  std::string text;
  std::vector<std::int32_t> tokens;
};

// State that all ranks share.
struct Generation {
  ModelOnRanks run;
  Prompt prompt;
  std::size_t rows = 1;
  GenerateOptions options;
};

Prompt read_prompt(const Config& config, const Tokenizer& tokenizer) {
  Prompt prompt{config.get_string("prompt"), {}};
  prompt.tokens =
      encode_prompt(tokenizer, prompt.text, config.get_bool("add_bos"), config.get_bool("add_eos"));
  if (prompt.tokens.empty()) fail_usage("[generate] prompt: expected some text, got none");
  return prompt;
}

// Most new tokens: max_tokens, or as many as max_target_length leaves room for.
std::int64_t tokens_after(const Config& config, const Prompt& prompt, const SamplingWords& words) {
  const auto length = static_cast<std::int64_t>(prompt.tokens.size());
  std::int64_t longest = config.get_int("max_prefill_predict_length");
  if (length > longest && config.is_set_by_user("max_prefill_predict_length")) {
    fail_usage("[generate] prompt: {} tokens, expected at most max_prefill_predict_length={}", length,
               longest);
  }
  if (words.fields.contains("max_tokens")) {
    const std::int64_t wanted = words.fields["max_tokens"];
    const std::int64_t all = config.get_int("max_target_length");
    if (given_value(words.settings, "max_target_length") && length + wanted > all)
      fail_usage(
          "[generate] max_tokens={}: expected at most max_target_length={} with the {} tokens of the prompt",
          wanted, all, length);
    return wanted;
  }
  // The prompt's length replaces a default that is shorter than the prompt or that fills the whole length.
  const std::int64_t all = config.get_int("max_target_length");
  if (!config.is_set_by_user("max_prefill_predict_length") && (length > longest || all <= longest))
    longest = length;
  if (all <= longest) {
    fail_usage("[generate] max_target_length={}: expected more than the {} tokens of the prompt", all,
               longest);
  }
  return all - longest;
}

// The config's keys with the words on top, which mean what they do in requests.
SamplingConfig sampling_of_words(const SamplingWords& words, const ModelOnRanks& run, std::int32_t vocab) {
  serve::ServedModel model{.name = "", .tokenizer = run.tokenizer.get()};
  model.sampling = sampling_config(run.config, vocab);
  serve::Fields fields(words.fields);
  return serve::sampling_of(fields, model);
}

Generation make_generation(ModelOnRanks run, const SamplingWords& words) {
  const Config& config = run.config;
  const ModelConfig& model = run.model;
  const std::int64_t rows = rows_to_generate(config, run.mesh);
  check_layout(config, run.mesh, model, {rows, rows, 1, model.moe_execution.token_chunks});
  const Prompt prompt = read_prompt(config, *run.tokenizer);
  for (const std::int32_t id : prompt.tokens) {
    if (id >= model.vocab)
      fail_usage("[generate] tokenizer_path={}: token {} of the prompt is outside vocab_size={}",
                 config.get_string("tokenizer_path"), id, model.vocab);
  }
  const auto vocab =
      static_cast<std::int32_t>(std::min<std::int64_t>(run.tokenizer->vocab_size(), model.vocab));
  const SamplingConfig sampling = sampling_of_words(words, run, vocab);
  const std::int64_t most = tokens_after(config, prompt, words);
  note_context(run, "generate", std::ssize(prompt.tokens) + most);
  const auto stop = words.fields.value("stop", std::vector<std::string>());
  const GenerateOptions options{
      .sampling = sampling,
      .most_tokens = most,
      .log_probs = config.get_bool("return_log_prob"),
      .vocab = vocab,
      .ends = end_tokens(config, *run.tokenizer),
      .prompt_chunk = config.get_bool("use_chunked_prefill") ? config.get_int("prefill_chunk_size") : 0,
      .drafts = config.get_bool("mtp_draft") ? config.get_int("mtp_draft_tokens") : 0,
      .ngram_drafts = config.get_int("ngram_draft"),
      .call_cost = texts::call_cost(model),
      .seed = words.fields.contains("seed")
                  ? static_cast<std::uint32_t>(words.fields["seed"].get<std::int64_t>())
                  : model.init_seed,
      .stop = stop,
      .tokenizer = stop.empty() ? nullptr : run.tokenizer.get()};
  return {std::move(run), prompt, static_cast<std::size_t>(rows), options};
}

// Rows of tokens as texts; one row is written as it grows.
class TextWriter {
 public:
  TextWriter(const Generation& generation)
      : generation_(generation),
        tokens_(generation.rows, generation.prompt.tokens),
        first_(*generation.run.tokenizer, generation.prompt.tokens),
        stop_(generation.options.stop) {
    before_ = generation.run.tokenizer->decode(generation.prompt.tokens).size();
    if (generation.rows == 1) put(generation.prompt.text);
  }
  void add(std::size_t row, std::int32_t token) {
    tokens_[row].push_back(token);
    if (generation_.rows == 1) put(stop_.add(first_.add(token)));
  }
  void finish() {
    if (generation_.rows == 1) {
      put(stop_.add(first_.finish()) + stop_.finish() + "\n");
      return;
    }
    for (std::size_t r = 0; r < generation_.rows; ++r)
      put(fmt::format("[{}] {}{}\n", r, generation_.prompt.text, text_of(r)));
  }
  // Returns the text after the prompt.
  std::string text_of(std::size_t row) const {
    const std::string all = generation_.run.tokenizer->decode(tokens_[row]);
    texts::StopText stop(generation_.options.stop);
    const std::string text = stop.add(all.substr(std::min(before_, all.size())));
    return text + stop.finish();
  }

 private:
  // Exactly the text, but for what would change a terminal's state.
  static void put(const std::string& text) {
    const std::string shown = ::isatty(STDOUT_FILENO) == 1 ? terminal_text(text) : text;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }

  const Generation& generation_;
  std::vector<std::vector<std::int32_t>> tokens_;
  TokenText first_;         // of a single row
  texts::StopText stop_;    // likewise
  std::size_t before_ = 0;  // bytes of the prompt's own text
};

void write_generated(const std::string& file, const Generation& generation, const Generated& made,
                     double load_seconds, const Startup& startup, const TextWriter& writer) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t r = 0; r < made.texts.size(); ++r) {
    const GeneratedText& row = made.texts[r];
    rows.push_back({{"text", writer.text_of(r)}, {"tokens", row.tokens}, {"ended", row.ended}});
    if (generation.options.log_probs) rows.back()["log_probs"] = row.log_probs;
  }
  const nlohmann::json json{{"version", SWITCHYARD_VERSION},
                            {"startup_seconds", to_json(startup)},
                            {"prompt", generation.prompt.text},
                            {"prompt_tokens", generation.prompt.tokens},
                            {"results", rows},
                            {"prefill_seconds", made.prefill_seconds},
                            {"decode_seconds", made.decode_seconds},
                            {"decode_steps", made.steps},
                            {"drafted_tokens", made.drafted},
                            {"accepted_drafts", made.accepted},
                            {"held_drafts", made.held},
                            {"weight_format", generation.run.config.get_string("weight_format")},
                            {"load_seconds", load_seconds},
                            {"peak_resident_bytes", peak_resident_bytes()}};
  write_file_atomic(file, json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// A record of each row: of the tokens that were fed, which the last one that was made is not.
void record_routing(AppendFile& file, const Generation& generation, const Generator& generator,
                    const Generated& made) {
  file.clear();
  for (std::size_t row = 0; row < made.texts.size(); ++row) {
    std::vector<std::int32_t> tokens = generation.prompt.tokens;
    tokens.insert(tokens.end(), made.texts[row].tokens.begin(), made.texts[row].tokens.end());
    tokens.resize(static_cast<std::size_t>(generator.length(row)));
    file.append(routing_record(routed_layers(generation.run.model),
                               {RoutingSource::Kind::generate, static_cast<std::int64_t>(row)}, tokens,
                               generator.routing(row, std::ssize(tokens))));
  }
  file.close();
}

void tell_times(const Generation& generation, const Generated& made) {
  std::size_t tokens = 0;
  for (const GeneratedText& row : made.texts) tokens += row.tokens.size();
  const double after = static_cast<double>(tokens - made.texts.size());
  fmt::print(stderr, "prompt: {} tokens in {:.3f} s", generation.prompt.tokens.size() * generation.rows,
             made.prefill_seconds);
  if (made.steps > 0 && made.decode_seconds > 0) {
    fmt::print(stderr, " · {} new tokens, {:.1f} tokens/s, {:.2f} ms a step", tokens,
               after / made.decode_seconds, made.decode_seconds / static_cast<double>(made.steps) * 1e3);
  }
  if (made.drafted > 0) fmt::print(stderr, " · {} of {} drafts accepted", made.accepted, made.drafted);
  if (made.held > 0) fmt::print(stderr, " · {} held back: they cost more than they save", made.held);
  fmt::print(stderr, "\n");
}

int generate_text(const Options& options, Processes& processes) {
  const bool first = processes.index() == 0;
  const SamplingWords words = take_sampling_words("generate", options.settings);
  const Generation generation = make_generation(model_to_run("generate", processes, words.settings), words);
  const Config& config = generation.run.config;
  const auto room =
      static_cast<std::int64_t>(generation.prompt.tokens.size()) + generation.options.most_tokens;
  require_memory_to_run("generate", generation.run, static_cast<std::int64_t>(generation.rows), room, true,
                        processes);
  const std::string record = routing_files(config, generation.run.model).record;
  require_outputs_apart("generate", config, {{"routing_record", record}, {"--json", options.json_file}});
  AppendFile routing;
  if (first && !record.empty()) routing = AppendFile("routing", record);
  processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
  if (first) {
    for (const std::string& note : generation.run.notes) fmt::print(stderr, "{}\n", note);
  }
  int status = 0;
  const auto independence = row_independence_of(config, generation.run.mesh, generation.run.model);
  Startup startup = Startup::of_program();
  startup.mark("config");
  generation.run.run([&](Context& context) {
    const bool on_gpu = context.memory.device().kind() == DeviceKind::cuda;
    const auto mark = [&](const char* part) {
      if (on_gpu) gpu::synchronize();  // its context is made by the first work
      if (context.comm->rank() == 0) startup.mark(part);
    };
    mark("device");
    const auto begin = std::chrono::steady_clock::now();
    const Parameters parameters = generation.run.load(context, load_bar());
    mark("weights");
    const std::chrono::duration<double> load = std::chrono::steady_clock::now() - begin;
    Generator generator(
        context, generation.run.model, parameters, static_cast<std::int64_t>(generation.rows), room, true, 0,
        std::max({std::int64_t{1}, generation.options.drafts, generation.options.ngram_drafts}));
    generator.keep_logits_there();
    mark("cache");
    if (!record.empty()) generator.record_routing();
    std::optional<TextWriter> writer;
    if (context.comm->rank() == 0) writer.emplace(generation);
    const std::vector<std::vector<std::int32_t>> prompts(generation.rows, generation.prompt.tokens);
    const Generated made = generate(generator, prompts, generation.options,
                                    [&](std::size_t row, std::int32_t token) { writer->add(row, token); });
    if (!writer) return;
    writer->finish();
    if (routing.is_open()) record_routing(routing, generation, generator, made);
    tell_times(generation, made);
    if (!options.json_file.empty())
      write_generated(options.json_file, generation, made, load.count(), startup, *writer);
    const std::string& wanted = config.get_string("autoregressive_decode_assert");
    for (std::size_t r = 0; r < generation.rows && !wanted.empty(); ++r) {
      if (writer->text_of(r) == wanted) continue;
      fmt::print(stderr, "[generate] autoregressive_decode_assert: the text is another\n");
      status = 3;
      break;
    }
  });
  return status;
}

}  // namespace

int generate_command(std::span<const std::string> args) {
  const Options options = parse_options("generate", args);
  if (options.help) {
    print_help_page(kGenerateHelp);
    return 0;
  }
  return run_in_processes([&](Processes& processes) { return generate_text(options, processes); });
}

}  // namespace switchyard
