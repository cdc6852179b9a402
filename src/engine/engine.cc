#include "switchyard/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "config/declaration.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/command_config.h"
#include "engine/model.h"
#include "engine/rank_loop.h"
#include "engine/session.h"
#include "grammar/grammar.h"
#include "parallel/sharding.h"
#include "routing/routing_keys.h"
#include "texts/generate.h"
#include "train/step_cost.h"
#include "train/trainer.h"

namespace switchyard {

struct Settings::Checked {
  Config config;
};

namespace {

// The processes that hold the engine's ranks. MPI lets a program join them only once,
// so an engine owns them until it is destroyed.
std::shared_ptr<Processes> join_for_engine() {
  if (launch_from_environment().processes == 1) return one_process();
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  static const std::unique_ptr<Processes> joined = join_processes();
  static std::weak_ptr<Processes> taken;
  if (!taken.expired())
    fail_usage("[engine] open: expected one engine at a time in a program under mpirun, got another");
  std::shared_ptr<Processes> mine(joined.get(), [](Processes*) {});
  taken = mine;
  return mine;
}

ModelOnRanks with_tokenizer(ModelOnRanks model) {
  model.tokenizer = make_tokenizer_of(model.config);
  return model;
}

ModelOnMesh model_of_engine(const Config& config) {
  for (const char* key : {"routing_record", "routing_replay"})
    refuse_routing_key(config, key, "the program's commands");
  if (config.get_bool("mtp_draft"))
    fail_usage("[engine] mtp_draft=true: only `generate` and `serve` draft tokens; set mtp_draft=false");
  if (config.get_bool("deterministic_batches"))
    fail_usage("[engine] deterministic_batches=true: only `generate` and `serve` keep it; set it to false");
  ModelOnMesh model(config, ModelUse::train_or_run);
  const std::vector<std::string> notices = config.notices();
  model.notes.insert(model.notes.begin(), notices.begin(), notices.end());
  return model;
}

void require_whole(const char* what, const TokenBatch& batch, std::int64_t vocabulary) {
  if (batch.rows < 1 || batch.length < 1 || std::ssize(batch.tokens) != batch.rows * batch.length)
    fail_usage("[engine] {}: {} tokens, expected rows * length = {} * {}, both at least 1", what,
               batch.tokens.size(), batch.rows, batch.length);
  for (const std::int32_t token : batch.tokens) {
    if (token < 0 || token >= vocabulary)
      fail_usage("[engine] {}: token {} is outside the vocabulary of {}", what, token, vocabulary);
  }
}

Tensor ids(const TokenBatch& batch, const auto& value_at) {
  const Tensor tensor(DType::i32, {batch.rows, batch.length});
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    tensor.data<std::int32_t>()[i] = value_at(i / batch.length, i % batch.length);
  return tensor;
}

Batch batch_to_train(const TrainBatch& batch) {
  const TokenBatch& inputs = batch.inputs;
  const auto at = [&](const std::vector<std::int32_t>& values, std::int64_t row, std::int64_t column) {
    return values[static_cast<std::size_t>(row * inputs.length + column)];
  };
  const auto target = [&](std::int64_t row, std::int64_t column) -> std::int32_t {
    if (!batch.targets.empty()) return at(batch.targets, row, column);
    return column + 1 < inputs.length ? at(inputs.tokens, row, column + 1) : -1;
  };
  return {
      ids(inputs, [&](std::int64_t row, std::int64_t column) { return at(inputs.tokens, row, column); }),
      ids(inputs, [&](std::int64_t row, std::int64_t column) { return std::max(0, target(row, column)); }),
      ids(inputs, [](std::int64_t, std::int64_t column) { return static_cast<std::int32_t>(column); }),
      ids(inputs, [](std::int64_t, std::int64_t) { return 1; }),
      ids(inputs, [&](std::int64_t row, std::int64_t column) { return target(row, column) < 0 ? 0 : 1; })};
}

SamplingConfig sampling_of(const Sampling& sampling) {
  const auto require = [](bool holds, const char* name, double value, const char* expected) {
    if (!holds) fail_usage("[engine] {}={}: expected {}", name, value, expected);
  };
  require(sampling.most_tokens >= 0, "most_tokens", static_cast<double>(sampling.most_tokens), "0 or more");
  require(sampling.temperature >= 0, "temperature", sampling.temperature, "0 or more");
  require(sampling.top_k >= 0, "top_k", static_cast<double>(sampling.top_k), "0 or more");
  require(sampling.top_p > 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "more than 0, at most 1");
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", sampling.min_p, "0 to 1");
  require(sampling.repetition_penalty >= kLeastRepetitionPenalty &&
              sampling.repetition_penalty <= kMostRepetitionPenalty,
          "repetition_penalty", sampling.repetition_penalty, "0.01 to 100");
  require(std::abs(sampling.presence_penalty) <= kMostPenalty, "presence_penalty", sampling.presence_penalty,
          "-2 to 2");
  require(std::abs(sampling.frequency_penalty) <= kMostPenalty, "frequency_penalty",
          sampling.frequency_penalty, "-2 to 2");
  SamplingConfig config;
  config.temperature = sampling.temperature;
  config.top_k = sampling.top_k;
  config.nucleus_p = sampling.top_p;
  config.min_p = sampling.min_p;
  config.repetition_penalty = sampling.repetition_penalty;
  config.presence_penalty = sampling.presence_penalty;
  config.frequency_penalty = sampling.frequency_penalty;
  const bool nucleus = sampling.top_p<1, few = sampling.top_k> 0;
  config.strategy = sampling.temperature == 0 ? SamplingStrategy::greedy
                    : nucleus && few          ? SamplingStrategy::composite
                    : nucleus                 ? SamplingStrategy::nucleus
                    : few                     ? SamplingStrategy::topk
                                              : SamplingStrategy::weighted;
  return config;
}

std::vector<std::int64_t> numbers(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

}  // namespace

Settings Settings::parse(const std::vector<std::string>& arguments) {
  Settings settings;
  settings.checked_ = std::make_shared<const Checked>(
      Checked{config_to_run("settings", launch_from_environment().processes, arguments)});
  return settings;
}

std::string Settings::value(std::string_view key) const {
  const nlohmann::json all = checked_->config.resolved();
  const auto found = all.find(std::string(key));
  if (found == all.end()) {
    const std::string nearest = nearest_key(key);
    fail_usage("[engine] unknown key {}{}{}", key, nearest.empty() ? "" : "; the nearest known key is ",
               nearest);
  }
  return found->is_string() ? found->get<std::string>() : found->dump();
}

struct Engine::Impl {
  // A rank's own, from the first job on.
  struct RankState {
    explicit RankState(Parameters made) : parameters(std::move(made)) {}
    Parameters parameters;
    std::optional<Trainer> trainer;      // from the first step on
    std::int64_t steps = 0;              // that were trained
    std::optional<Generator> generator;  // from the first text on
    std::optional<texts::Loop> texts;    // on it
  };

  const std::shared_ptr<Processes> processes;
  ModelOnRanks on_ranks;
  const Config& config = on_ranks.config;
  const Mesh& mesh = on_ranks.mesh;
  const ModelConfig &model = on_ranks.model, without;  // with prediction layers, and without them
  const std::int64_t text_rows;
  const texts::Limits limits;
  texts::Inbox inbox{limits};  // rank 0 takes from it: other processes leave theirs empty

  std::mutex texts_mutex;
  std::int64_t streams = 0;                               // guarded by texts_mutex; at most text_rows
  std::shared_ptr<const grammar::Vocabulary> vocabulary;  // from the first schema on; guarded by texts_mutex

  std::vector<std::optional<RankState>> ranks;
  std::optional<RankLoop> loop;  // ends first

  Impl(const Config& of, std::shared_ptr<Processes> with)
      : processes(std::move(with)),
        on_ranks(with_tokenizer(ModelOnRanks(model_of_engine(of), processes.get()))),
        without(without_predictions(model)),
        text_rows(rows_to_generate(config, mesh)),
        limits{.slots = text_rows,
               .waiting = std::numeric_limits<std::int32_t>::max(),
               .prompt_chunk = config.get_int("max_target_length"),
               .shares_prefixes = false,
               .vocab = ids_to_pick()},
        ranks(static_cast<std::size_t>(mesh.size())) {
    if (!on_ranks.fill) on_ranks.notes.push_back("random weights: load_parameters_path is not set");
  }

  // Starts the ranks and makes the weights.
  void start() {
    loop.emplace(on_ranks, [this](Context& context) { state(context).reset(); });
    loop->run([this](Context& context) { state(context).emplace(on_ranks.load(context)); });
  }

  // One rank of each process speaks for it.
  bool speaks(const Context& context) const {
    return context.comm->rank() % (mesh.size() / processes->count()) == 0;
  }

  std::optional<RankState>& state(Context& context) {
    return ranks[static_cast<std::size_t>(context.comm->rank())];
  }

  // Ids from here on have no text.
  std::int64_t ids_to_pick() const {
    return on_ranks.tokenizer == nullptr
               ? model.vocab
               : std::min<std::int64_t>(on_ranks.tokenizer->vocab_size(), model.vocab);
  }

  void require_layout(std::int64_t rows) const {
    check_layout(config, mesh, without, {rows, rows, 1, without.moe_execution.token_chunks});
  }

  const ParameterSpec& spec(std::string_view name) const {
    std::vector<std::string> names;
    for (const ParameterSpec& s : on_ranks.specs) {
      if (s.name == name) return s;
      names.push_back(s.name);
    }
    fail_usage("[engine] parameter {}: the model has none of that name{}", name, nearest_hint(name, names));
  }

  // Adds the blocks that ranks of other processes placed in their tensors, zeros elsewhere: sums of bits,
  // which are exact.
  void add_of_other_processes(Context& context, const Tensor& whole) const {
    if (processes->count() == 1) return;
    context.comm->barrier(everyone(*context.comm, "parameter"));
    if (!speaks(context)) return;
    ProcessGroup speakers{{}, processes->index(), "processes"};
    for (int p = 0; p < processes->count(); ++p)
      speakers.ranks.push_back(p * (mesh.size() / processes->count()));
    context.comm->all_reduce(speakers, TensorView::of_host(DType::i32, whole.raw(), {whole.size()}));
  }

  ParameterInfo info(const ParameterSpec& of) const {
    const Mesh own = stage_mesh(mesh);
    const AxisRules rules(config.axis_rules(), own);
    const Sharding sharding = rules.resolve(of.dims, of.shape).sharding;
    ParameterInfo info{.name = of.name,
                       .shape = numbers(of.shape),
                       .dtype = std::string(name_of(of.dtype)),
                       .axes = {},
                       .block = numbers(local_shape(own, of.shape, sharding)),
                       .trained = of.trained};
    for (const Axes& axes : sharding.dims) info.axes.push_back(joined(axes));
    return info;
  }

  // The loop of all texts that the engine makes.
  texts::Loop& loop_of_texts(Context& context) {
    RankState& own = *state(context);
    if (!own.generator) {
      own.generator.emplace(context, without, own.parameters, text_rows, config.get_int("max_target_length"));
      own.generator->keep_logits_there();
      const texts::Loop::Head head{.inbox = inbox, .tokenizer = on_ranks.tokenizer.get()};
      own.texts.emplace(*own.generator, limits, context.comm->rank() == 0 ? &head : nullptr);
    }
    return *own.texts;
  }

  texts::TextRequest request(const char* what, const std::vector<std::int32_t>& prompt,
                             const Sampling& sampling);
  void take_stream(const char* what);
  void end_stream() {
    const std::scoped_lock lock(texts_mutex);
    --streams;
  }
  [[noreturn]] void fail_of(const GeneratedText& made, const std::string& broken_layer) const {
    if (!made.not_finite) fail_runtime("[engine] {}", made.problem);
    fail_runtime("[engine] the model's logits after {} tokens are no numbers; {}",
                 made.not_finite->tokens_before, broken_layer);
  }
};

// Checks a prompt and how it is continued, on the caller's thread.
texts::TextRequest Engine::Impl::request(const char* what, const std::vector<std::int32_t>& prompt,
                                         const Sampling& sampling) {
  require_whole(what, {1, std::ssize(prompt), prompt}, model.vocab);
  const std::int64_t capacity = config.get_int("max_target_length");
  if (std::ssize(prompt) > capacity)
    fail_usage("[engine] {}: a prompt of {} tokens, expected at most max_target_length={}", what,
               prompt.size(), capacity);
  texts::TextRequest text{.prompt = prompt,
                          .sampling = sampling_of(sampling),
                          .seed = sampling.seed,
                          .log_probs = sampling.log_probs ? std::optional(0) : std::nullopt,
                          .ends = sampling.ends};
  text.most_tokens = std::min(capacity - std::ssize(prompt), sampling.most_tokens);
  const Tokenizer* const tokenizer = on_ranks.tokenizer.get();
  if (sampling.ends_by_model && tokenizer != nullptr) {
    const std::vector<std::int32_t> more = end_tokens(config, *tokenizer);
    text.ends.insert(text.ends.end(), more.begin(), more.end());
  }
  if (std::ranges::count(sampling.stop, "") > 0)
    fail_usage("[engine] stop: expected texts that are not empty, got an empty one");
  for (const auto& [name, is_given] :
       {std::pair("stop", !sampling.stop.empty()), std::pair("json_schema", !sampling.json_schema.empty())}) {
    if (is_given && tokenizer == nullptr)
      fail_usage("[engine] {}: tokenizer_path: expected the model's tokenizer, got none", name);
  }
  if (sampling.json_schema.empty()) {
    text.stop = sampling.stop;
    return text;
  }
  auto form = std::make_shared<texts::AnswerForm>();
  form->stop = sampling.stop;
  text.answer = std::move(form);
  const std::scoped_lock lock(texts_mutex);
  try {
    if (vocabulary == nullptr)
      vocabulary = std::make_shared<const grammar::Vocabulary>(*tokenizer, ids_to_pick(),
                                                               end_tokens(config, *tokenizer));
    text.grammar = grammar::Grammar::of_json_schema(*vocabulary, grammar::Json::parse(sampling.json_schema));
  } catch (const grammar::Json::exception& error) {
    fail_usage("[engine] json_schema: expected JSON, got {}", sampling.json_schema);
  } catch (const grammar::GrammarError& error) {
    fail_usage("[engine] json_schema: {}", error.what());
  }
  return text;
}

// Takes the room of a text that may be made beside others.
void Engine::Impl::take_stream(const char* what) {
  require_layout(text_rows);
  const std::scoped_lock lock(texts_mutex);
  if (streams == text_rows)
    fail_usage(
        "[engine] {}: {} texts are being made, which is all there is room for; set per_device_batch_size",
        what, text_rows);
  ++streams;
}

struct TokenStream::State {
  std::shared_ptr<Engine::Impl> engine;
  std::vector<std::int32_t> prompt;
  std::shared_ptr<texts::Pieces> pieces = std::make_shared<texts::Pieces>();  // rank 0's process gets them
  GeneratedText made = {};
  bool is_over = false;

  ~State() {
    pieces->abandon();
    engine->end_stream();
  }
};

TokenStream::TokenStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream::~TokenStream() = default;

std::optional<std::int32_t> TokenStream::next() {
  if (state_ == nullptr || state_->is_over) {
    state_.reset();  // its room is free
    return {};
  }
  State& own = *state_;
  // Rank 0 tells the others these plain bytes by a broadcast.
  struct Told {
    bool has_token = false, is_over = false, has_failed = false;
    std::int32_t token = 0;
    texts::NotFinite found = {};
  };
  Told told;
  std::string broken_layer;
  own.engine->loop->run([&](Context& context) {
    texts::Loop& loop = own.engine->loop_of_texts(context);
    Generator& generator = *own.engine->state(context)->generator;
    const std::vector<const texts::Pieces*> only{own.pieces.get()};
    Told now;
    while (!now.has_token && !now.is_over) {
      loop.step(0, &only);
      if (generator.is_first_rank()) {
        for (const texts::Piece& piece : own.pieces->take(0)) {
          if (!piece.made.empty()) now.token = piece.made[0];
          now.has_token = now.has_token || !piece.made.empty();
          now.is_over = now.is_over || piece.finish.has_value();
          now.has_failed = piece.not_finite.has_value();
          if (now.has_failed) now.found = *piece.not_finite;
        }
      }
      generator.broadcast(std::span(&now, 1));
    }
    const std::string layer =
        now.has_failed ? broken_layer_of(generator, now.found, own.prompt, own.made) : "";
    if (!own.engine->speaks(context)) return;
    told = now;
    broken_layer = layer;
  });
  own.is_over = told.is_over;
  if (told.has_failed) own.made.not_finite = told.found;
  if (told.has_failed) own.engine->fail_of(own.made, broken_layer);
  if (!told.has_token) return next();
  own.made.tokens.push_back(told.token);
  return told.token;
}

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::open(const Settings& settings) {
  const Config& config = settings.checked().config;
  const std::shared_ptr<Processes> processes = join_for_engine();
  const double timeout = config.get_float("collective_timeout_seconds");
  std::shared_ptr<Impl> impl;
  try {
    impl = std::make_shared<Impl>(config, processes);
  } catch (const Error& error) {
    processes->agree(&error, timeout);  // throws
  } catch (const std::exception& error) {
    const Error told(Error::Kind::runtime, error.what());
    processes->agree(&told, timeout);
  }
  processes->agree(nullptr, timeout);
  impl->start();
  return Engine(std::move(impl));
}

const std::vector<std::string>& Engine::notes() const {
  return impl_->on_ranks.notes;
}
std::int64_t Engine::vocabulary() const {
  return impl_->model.vocab;
}
int Engine::ranks() const {
  return impl_->mesh.size();
}

Logits Engine::forward(const TokenBatch& batch, Positions positions) {
  Impl& own = *impl_;
  require_whole("forward", batch, vocabulary());
  own.require_layout(batch.rows);
  std::vector<SlotTokens> fed;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const auto begin = batch.tokens.begin() + row * batch.length;
    fed.push_back({static_cast<std::size_t>(row), {begin, begin + batch.length}});
  }
  Logits logits{batch.rows, positions == Positions::all ? batch.length : 1, vocabulary(), {}};
  own.loop->run([&](Context& context) {
    Generator generator(context, own.without, own.state(context)->parameters, batch.rows, batch.length);
    const Tensor all = positions == Positions::all ? generator.feed_each(fed) : generator.feed(fed);
    std::vector<float> values;
    if (all.defined()) values.assign(all.span<float>().begin(), all.span<float>().end());
    if (own.processes->count() > 1) {  // each has a caller that waits for them
      values.resize(static_cast<std::size_t>(logits.rows * logits.positions * logits.vocabulary));
      generator.broadcast(std::span<float>(values));
    }
    if (own.speaks(context)) logits.values = std::move(values);
  });
  return logits;
}

TrainStep Engine::train_step(const TrainBatch& batch) {
  Impl& own = *impl_;
  if (own.on_ranks.is_packed())
    fail_usage("[engine] train_step: the weights are packed ({}); open the engine with weight_format=dense",
               own.config.get_string("weight_format"));
  require_whole("train_step", batch.inputs, vocabulary());
  if (!batch.targets.empty()) {
    if (batch.targets.size() != batch.inputs.tokens.size())
      fail_usage("[engine] train_step: {} targets, expected one for each of {} tokens", batch.targets.size(),
                 batch.inputs.tokens.size());
    const auto last = std::ranges::max(batch.targets);
    if (last >= vocabulary())
      fail_usage("[engine] train_step: target {} is outside the vocabulary of {}", last, vocabulary());
  }
  BatchSizes sizes = batch_sizes(own.config, own.mesh);
  if (batch.inputs.rows != sizes.step)
    fail_usage(
        "[engine] train_step: {} sequences, expected {} (per_device_batch_size={} on {} ranks, "
        "gradient_accumulation_steps={})",
        batch.inputs.rows, sizes.step, own.config.get_float("per_device_batch_size"), ranks(),
        own.config.get_int("gradient_accumulation_steps"));
  sizes.sequence = batch.inputs.length;
  check_layout(own.config, own.mesh, own.model, sizes);
  const TrainConfig training = train_config(own.config, own.model, own.mesh.axis_size("stage"));
  const Batch rows = batch_to_train(batch);
  TrainStep told;
  own.loop->run([&](Context& context) {
    Impl::RankState& state = *own.state(context);
    if (!state.trainer) state.trainer.emplace(context, own.model, training, state.parameters);
    const std::int64_t step = state.steps;
    const StepResult result = state.trainer->step(step, rows);
    ++state.steps;
    if (!own.speaks(context)) return;
    told = {.step = step,
            .loss = result.loss,
            .cross_entropy = result.lm_loss,
            .balance_loss = result.balance_loss,
            .gradient_norm = result.raw_grad_norm,
            .learning_rate = result.learning_rate,
            .targets = result.total_weights,
            .skipped = result.bad};
  });
  return told;
}

TokenStream Engine::generate(const std::vector<std::int32_t>& prompt, const Sampling& sampling) {
  texts::TextRequest text = impl_->request("generate", prompt, sampling);
  impl_->take_stream("generate");
  std::unique_ptr<TokenStream::State> state(
      new TokenStream::State{.engine = impl_, .prompt = prompt, .is_over = text.most_tokens == 0});
  if (impl_->processes->index() == 0) impl_->inbox.submit({{std::move(text), state->pieces}});
  return TokenStream(std::move(state));
}

std::vector<Text> Engine::complete(const std::vector<std::vector<std::int32_t>>& prompts,
                                   const Sampling& sampling) {
  Impl& own = *impl_;
  std::vector<texts::TextRequest> requests;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    requests.push_back(own.request("complete", prompt, sampling));
    requests.back().choice = requests.size() - 1;
  }
  own.take_stream("complete");
  std::vector<GeneratedText> made;
  std::string broken_layer;
  const auto failed = [](const GeneratedText& text) { return !text.problem.empty(); };
  try {
    own.loop->run([&](Context& context) {
      texts::Loop& loop = own.loop_of_texts(context);
      Generator& generator = *own.state(context)->generator;
      std::vector<GeneratedText> all =
          make_texts(loop, generator, own.inbox, requests, [](std::size_t, std::int32_t) {});
      const auto broken = std::ranges::find_if(all, failed);
      const std::string layer =
          broken == all.end() || !broken->not_finite
              ? ""
              : broken_layer_of(generator, *broken->not_finite,
                                prompts[static_cast<std::size_t>(broken - all.begin())], *broken);
      if (!own.speaks(context)) return;
      made = std::move(all);
      broken_layer = layer;
    });
  } catch (...) {
    own.end_stream();
    throw;
  }
  own.end_stream();
  if (const auto broken = std::ranges::find_if(made, failed); broken != made.end())
    own.fail_of(*broken, broken_layer);
  std::vector<Text> texts;
  for (GeneratedText& text : made)
    texts.push_back({std::move(text.tokens), std::move(text.text), std::move(text.log_probs), text.ended});
  return texts;
}

std::vector<std::int32_t> Engine::encode(std::string_view text) const {
  if (impl_->on_ranks.tokenizer == nullptr)
    fail_usage("[engine] encode: tokenizer_path: expected the model's tokenizer, got none");
  return encode_prompt(*impl_->on_ranks.tokenizer, text, impl_->config.get_bool("add_bos"),
                       impl_->config.get_bool("add_eos"));
}

std::string Engine::decode(const std::vector<std::int32_t>& tokens) const {
  if (impl_->on_ranks.tokenizer == nullptr)
    fail_usage("[engine] decode: tokenizer_path: expected the model's tokenizer, got none");
  return impl_->on_ranks.tokenizer->decode(tokens);
}

ParameterView Engine::parameter(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  std::vector<std::optional<Shard>> found(own.ranks.size());
  own.loop->run([&](Context& context) {
    const Parameters& parameters = own.state(context)->parameters;
    if (!parameters.contains(spec.name)) return;  // it is another stage's
    const Array& array = parameters[spec.name];
    const Tensor& block = array.tensor();
    found[static_cast<std::size_t>(context.comm->rank())] =
        Shard{.rank = context.comm->rank(),
              .offset = numbers(local_offset(*context.mesh, context.rank, spec.shape, array.sharding())),
              .shape = numbers(block.shape()),
              .data = block.view().device().is_host() ? block.raw() : nullptr,
              .bytes = block.bytes()};
  });
  ParameterView view{own.info(spec), {}};
  for (const std::optional<Shard>& shard : found) {
    if (shard) view.shards.push_back(*shard);
  }
  return view;
}

std::vector<ParameterInfo> Engine::parameters() {
  std::vector<ParameterInfo> all;
  for (const ParameterSpec& spec : impl_->on_ranks.specs) all.push_back(impl_->info(spec));
  return all;
}

std::vector<float> Engine::read_parameter(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  if (is_packed(spec.dtype))
    fail_usage("[engine] parameter {}: is packed ({}), which has no float32 values here", name,
               name_of(spec.dtype));
  const Tensor whole = Tensor::zeros(DType::f32, spec.shape);
  own.loop->run([&](Context& context) {
    for (const Parameter& p : own.state(context)->parameters.all()) {
      // One of the ranks that hold the same block.
      if (p.spec.name != spec.name || holders_of(context, p).index != 0) continue;
      place_block(to_host(p.array.tensor()).cast(DType::f32),
                  local_offset(*context.mesh, context.rank, spec.shape, p.array.sharding()), whole);
    }
    own.add_of_other_processes(context, whole);
  });
  return {whole.span<float>().begin(), whole.span<float>().end()};
}

}  // namespace switchyard
