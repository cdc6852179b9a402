// The engine's texts: requests, streams, and the tokenizer.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "core/error.h"
#include "engine/engine_impl.h"
#include "generate/token_text.h"
#include "grammar/grammar.h"
#include "routing/routing_file.h"
#include "serve/routing_recorder.h"
#include "texts/generate.h"

namespace switchyard {
namespace {

SamplingConfig sampling_of(const Sampling& sampling) {
  const auto require = [](bool holds, const char* name, double value, const char* expected) {
    if (holds) return;
    const std::string given = fmt::format("{}", value);
    throw SettingError(fmt::format("[engine] {}={}: expected {}", name, given, expected), name, given,
                       expected);
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
  // top_p counts with the temperature applied, as in `serve`; `nucleus` alone applies no temperature.
  const bool cuts = sampling.top_p < 1 || sampling.top_k > 0;
  config.strategy = sampling.temperature == 0 ? SamplingStrategy::greedy
                    : cuts                    ? SamplingStrategy::composite
                                              : SamplingStrategy::weighted;
  if (sampling.top_k == 0) config.top_k = std::numeric_limits<std::int32_t>::max();
  return config;
}

std::optional<RoutedText> routing_in(const GeneratedText& text) {
  if (text.routing.empty()) return std::nullopt;
  const RoutingFile record = RoutingFile::of_bytes(text.routing, "a text's experts");
  return record.text(record.records().front());
}

}  // namespace

std::int64_t Engine::Impl::ids_to_pick() const {
  return on_ranks.tokenizer == nullptr
             ? model.vocab
             : std::min<std::int64_t>(on_ranks.tokenizer->vocab_size(), model.vocab);
}

const Tokenizer& Engine::Impl::tokenizer_for(const char* what) const {
  if (on_ranks.tokenizer == nullptr)
    fail_usage("[engine] {}: tokenizer_path: expected the model's tokenizer, got none", what);
  return *on_ranks.tokenizer;
}

texts::Loop& Engine::Impl::loop_of_texts(Context& context) {
  RankState& own = *state(context);
  if (!own.generator) {
    own.of_texts.emplace(own.parameters);
    own.generator.emplace(context, without, *own.of_texts, text_rows, config.get_int("max_target_length"));
    own.generator->keep_logits_there();
    texts::Loop::Head head{.inbox = inbox, .tokenizer = on_ranks.tokenizer.get()};
    if (returns_experts) {
      own.generator->record_routing();
      head.on_finished = serve::routing_recorder(nullptr, *own.generator);
    }
    own.texts.emplace(*own.generator, limits, context.comm->rank() == 0 ? &head : nullptr);
  }
  return *own.texts;
}

void Engine::Impl::end_stream() {
  const std::scoped_lock lock(texts_mutex);
  --streams;
}

void Engine::Impl::fail_of(const GeneratedText& made, const std::string& broken_layer) const {
  if (!made.not_finite) fail_runtime("[engine] {}", made.problem);
  fail_runtime("[engine] the model's logits after {} tokens are no numbers; {}",
               made.not_finite->tokens_before, broken_layer);
}

std::shared_ptr<const grammar::Vocabulary> Engine::Impl::vocabulary_of_grammars() {
  const std::scoped_lock lock(texts_mutex);
  if (vocabulary == nullptr)
    vocabulary = std::make_shared<const grammar::Vocabulary>(*on_ranks.tokenizer, ids_to_pick(),
                                                             end_tokens(config, *on_ranks.tokenizer));
  return vocabulary;
}

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
                          .ends = sampling.ends,
                          .adapter = adapter_of(what, sampling.adapter),
                          .returns_routing = sampling.experts};
  if (sampling.experts && !returns_experts)
    fail_usage("[engine] {}: experts: open the engine with return_routed_experts=true", what);
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
  try {
    text.grammar = grammar::Grammar::of_json_schema(*vocabulary_of_grammars(),
                                                    grammar::Json::parse(sampling.json_schema));
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
  std::string text = {};  // of the last token
  std::optional<double> log_prob = {};
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
    bool has_token = false, is_over = false, has_failed = false, has_log_prob = false;
    std::int32_t token = 0;
    double log_prob = 0;
    std::size_t text_bytes = 0;
    texts::NotFinite found = {};
  };
  Told told;
  std::string text, broken_layer;
  own.engine->loop->run([&](Context& context) {
    texts::Loop& loop = own.engine->loop_of_texts(context);
    Generator& generator = *own.engine->state(context)->generator;
    const std::vector<const texts::Pieces*> only{own.pieces.get()};
    Told now;
    std::string certain;
    while (!now.has_token && !now.is_over) {
      loop.step(0, &only);
      if (generator.is_first_rank()) {
        for (const texts::Piece& piece : own.pieces->take(0)) {
          if (!piece.made.empty()) now.token = piece.made[0];
          certain += piece.text;
          for (const chat::Delta& delta : piece.deltas) certain += delta.text;
          for (const texts::TokenLogProb& of : piece.log_probs) {
            now.has_log_prob = true;
            now.log_prob = *of.log_prob;
          }
          now.has_token = now.has_token || !piece.made.empty();
          now.is_over = now.is_over || piece.finish.has_value();
          now.has_failed = piece.not_finite.has_value();
          if (now.has_failed) now.found = *piece.not_finite;
        }
      }
      now.text_bytes = certain.size();
      generator.broadcast(std::span(&now, 1));
    }
    const std::string layer =
        now.has_failed ? broken_layer_of(generator, now.found, own.prompt, own.made) : "";
    if (own.engine->processes->count() > 1) {
      certain.resize(now.text_bytes);
      generator.broadcast(std::span(certain));
    }
    if (!own.engine->speaks(context)) return;
    told = now;
    text = std::move(certain);
    broken_layer = layer;
  });
  own.is_over = told.is_over;
  own.text = std::move(text);
  own.log_prob = told.has_log_prob ? std::optional(told.log_prob) : std::nullopt;
  if (told.has_failed) own.made.not_finite = told.found;
  if (told.has_failed) own.engine->fail_of(own.made, broken_layer);
  if (!told.has_token) return next();
  own.made.tokens.push_back(told.token);
  return told.token;
}

std::string TokenStream::text() const {
  return state_ == nullptr ? "" : state_->text;
}

std::optional<double> TokenStream::log_prob() const {
  return state_ == nullptr ? std::nullopt : state_->log_prob;
}

TokenStream Engine::generate(const std::vector<std::int32_t>& prompt, const Sampling& sampling) {
  texts::TextRequest text = impl_->request("generate", prompt, sampling);
  impl_->take_stream("generate");
  std::unique_ptr<TokenStream::State> state(
      new TokenStream::State{.engine = impl_, .prompt = prompt, .is_over = text.most_tokens == 0});
  if (impl_->processes->index() == 0) impl_->inbox.submit({{std::move(text), state->pieces}});
  return TokenStream(std::move(state));
}

std::vector<GeneratedText> Engine::Impl::make_all(const char* what,
                                                  const std::vector<texts::TextRequest>& requests,
                                                  const std::stop_token& stop) {
  take_stream(what);
  std::vector<GeneratedText> made;
  std::string broken_layer;
  const auto failed = [](const GeneratedText& text) { return !text.problem.empty(); };
  try {
    loop->run([&](Context& context) {
      texts::Loop& texts_loop = loop_of_texts(context);
      Generator& generator = *state(context)->generator;
      std::vector<GeneratedText> all = make_texts(
          texts_loop, generator, inbox, requests, [](std::size_t, std::int32_t) {}, stop);
      const auto broken = std::ranges::find_if(all, failed);
      const std::string layer =
          broken == all.end() || !broken->not_finite
              ? ""
              : broken_layer_of(generator, *broken->not_finite,
                                requests[static_cast<std::size_t>(broken - all.begin())].prompt, *broken);
      if (!speaks(context)) return;
      made = std::move(all);
      broken_layer = layer;
    });
  } catch (...) {
    end_stream();
    throw;
  }
  end_stream();
  if (const auto broken = std::ranges::find_if(made, failed); broken != made.end())
    fail_of(*broken, broken_layer);
  return made;
}

std::vector<Text> Engine::complete(const std::vector<std::vector<std::int32_t>>& prompts,
                                   const Sampling& sampling, const std::stop_token& stop) {
  std::vector<texts::TextRequest> requests;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    requests.push_back(impl_->request("complete", prompt, sampling));
    requests.back().choice = requests.size() - 1;
  }
  std::vector<Text> texts;
  for (GeneratedText& text : impl_->make_all("complete", requests, stop))
    texts.push_back({.tokens = std::move(text.tokens),
                     .text = std::move(text.text),
                     .log_probs = std::move(text.log_probs),
                     .ended = text.ended,
                     .routing = routing_in(text)});
  return texts;
}

std::vector<Score> Engine::score(const std::vector<std::vector<std::int32_t>>& texts,
                                 const std::vector<std::int64_t>& from, const std::stop_token& stop) {
  if (!from.empty() && from.size() != texts.size())
    fail_usage("[engine] score: expected a first token for each of {} texts, got {}", texts.size(),
               from.size());
  std::vector<texts::TextRequest> requests;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::int64_t size = std::ssize(texts[i]), first = from.empty() ? 1 : from[i];
    if (size < 2) fail_usage("[engine] score: a text of {} tokens, expected 2 or more", size);
    if (first < 1 || first >= size)
      fail_usage("[engine] score: token {} of a text of {}, expected one from 1 to {}", first, size,
                 size - 1);
    requests.push_back(impl_->request("score", texts[i], {.most_tokens = 0}));
    requests.back().log_probs = 1;
    requests.back().scores_prompt = true;
    requests.back().scores_from = static_cast<std::size_t>(first);
  }
  std::vector<Score> scores;
  for (GeneratedText& text : impl_->make_all("score", requests, stop))
    scores.push_back({std::move(text.prompt_log_probs), std::move(text.most_probable)});
  return scores;
}

std::vector<std::int32_t> Engine::encode(std::string_view text) const {
  return encode_prompt(impl_->tokenizer_for("encode"), text, impl_->config.get_bool("add_bos"),
                       impl_->config.get_bool("add_eos"));
}

std::string Engine::decode(const std::vector<std::int32_t>& tokens) const {
  return impl_->tokenizer_for("decode").decode(tokens);
}

struct TextDecoder::State {
  std::shared_ptr<const Engine::Impl> engine;  // has the tokenizer
  TokenText text;
};

TextDecoder::TextDecoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
TextDecoder::TextDecoder(TextDecoder&&) noexcept = default;
TextDecoder::~TextDecoder() = default;

std::string TextDecoder::add(std::int32_t token) {
  return state_->text.add(token);
}

std::string TextDecoder::rest() const {
  return state_->text.finish();
}

TextDecoder Engine::text_decoder(const std::vector<std::int32_t>& before) const {
  return TextDecoder(std::unique_ptr<TextDecoder::State>(
      new TextDecoder::State{impl_, TokenText(impl_->tokenizer_for("text_decoder"), before)}));
}

}  // namespace switchyard
