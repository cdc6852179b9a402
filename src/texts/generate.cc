#include "texts/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.h"
#include "kernels/registry/row_independence.h"
#include "texts/loop.h"

namespace switchyard {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Prompts = std::vector<std::vector<std::int32_t>>;
using OnToken = std::function<void(std::size_t text, std::int32_t token)>;

texts::Limits limits_of(const Prompts& prompts, const GenerateOptions& options) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int32_t>::max();
  return {.slots = std::ssize(prompts),
          .prompt_chunk = options.prompt_chunk > 0 ? options.prompt_chunk : kAll,
          .shares_prefixes = false,
          .prompts_together = true,
          .deterministic = rows_are_independent(),
          .drafts = options.drafts,
          .ngram_drafts = options.ngram_drafts,
          .call_cost = options.call_cost,
          .vocab = options.vocab,
          .ends = options.ends};
}

texts::TextRequest request_of(const Prompts& prompts, std::size_t text, const GenerateOptions& options) {
  return {.prompt = prompts[text],
          .most_tokens = options.most_tokens,
          .sampling = options.sampling,
          .seed = options.seed,
          .choice = text,
          .draws_before = options.draws_before,
          .history = options.history,
          .stop = options.stop,
          .log_probs = options.log_probs ? std::optional(0) : std::nullopt,
          .least_tokens = options.least_tokens};
}

// How long the calls of one generate() took.
class CallTimes final : public texts::Observer {
 public:
  void called(const texts::CallReport& call) override {
    if (call.prompts)
      prompts_read_ = seconds_now();
    else
      ++times_.steps;
    times_.drafted += call.drafts;
    times_.accepted += call.accepted_drafts;
    times_.held += call.held_drafts;
  }
  GenerateTimes take() {
    times_.prefill_seconds = prompts_read_ - begin_;
    times_.decode_seconds = seconds_now() - prompts_read_;
    return times_;
  }

 private:
  GenerateTimes times_;
  double begin_ = seconds_now(), prompts_read_ = begin_;
};

// The texts of one call of make_texts() on rank 0. One that fails ends all.
class TextsTogether {
 public:
  TextsTogether(texts::Inbox& inbox, std::vector<texts::TextRequest> requests, const OnToken& on_token)
      : on_token_(on_token), made_(requests.size()) {
    std::vector<texts::WantedText> wanted;
    for (texts::TextRequest& request : requests) {
      pieces_.push_back(std::make_shared<texts::Pieces>());
      left_.push_back(pieces_.back().get());
      wanted.push_back({std::move(request), pieces_.back()});
    }
    CHECK(inbox.submit(std::move(wanted)) == texts::Inbox::Submitted::yes, "{} texts", made_.size());
    take();
  }

  // The texts that have not ended.
  const std::vector<const texts::Pieces*>& left() const { return left_; }
  // Takes what has come.
  void take() {
    for (std::size_t text = 0; text < pieces_.size(); ++text) {
      for (const texts::Piece& piece : pieces_[text]->take(0)) add(text, piece);
    }
  }
  // Nobody waits for them any more: one without a slot would never tell of its end.
  void end_all() {
    for (const std::shared_ptr<texts::Pieces>& text : pieces_) text->abandon();
    left_.clear();
  }
  std::vector<GeneratedText> made() { return std::move(made_); }

 private:
  void add(std::size_t text, const texts::Piece& piece) {
    GeneratedText& to = made_[text];
    for (const texts::TokenLogProb& of : piece.log_probs) {
      if (of.log_prob) (piece.of_prompt ? to.prompt_log_probs : to.log_probs).push_back(*of.log_prob);
      if (piece.of_prompt && of.log_prob) to.most_probable.push_back(of.most_probable_tokens.at(0));
    }
    to.text += piece.text;
    for (const chat::Delta& delta : piece.deltas) to.text += delta.text;
    for (const std::int32_t token : piece.made) {
      to.tokens.push_back(token);
      on_token_(text, token);
    }
    if (!piece.finish) return;
    std::erase(left_, pieces_[text].get());
    to.routing = piece.routing;
    to.ended = piece.finish == texts::Finish::stop;
    to.problem = piece.problem;
    to.not_finite = piece.not_finite;
    if (piece.finish == texts::Finish::failed) end_all();
  }

  const OnToken& on_token_;
  std::vector<std::shared_ptr<texts::Pieces>> pieces_;
  std::vector<const texts::Pieces*> left_;
  std::vector<GeneratedText> made_;
};

// Copies rank 0's texts to all ranks, as numbers of a double each. Collective.
void share(Generator& generator, std::vector<GeneratedText>& made) {
  std::vector<double> numbers;
  const auto put = [&](const auto& values) {
    numbers.push_back(static_cast<double>(values.size()));
    numbers.insert(numbers.end(), values.begin(), values.end());
  };
  for (const GeneratedText& text : made) {
    put(text.tokens), put(text.log_probs), put(text.text), put(text.problem);
    put(text.prompt_log_probs), put(text.most_probable), put(text.routing);
    const texts::NotFinite found = text.not_finite.value_or(texts::NotFinite{});
    put(std::vector<double>{static_cast<double>(text.ended), static_cast<double>(text.not_finite.has_value()),
                            static_cast<double>(found.tokens_before), static_cast<double>(found.token),
                            static_cast<double>(found.logit), static_cast<double>(found.slot)});
  }
  auto size = std::ssize(numbers);
  generator.broadcast(std::span(&size, 1));
  numbers.resize(static_cast<std::size_t>(size));
  generator.broadcast(std::span(numbers));
  if (generator.is_first_rank()) return;
  auto next = numbers.begin();
  const auto take = [&]<typename Values>(Values& values) {
    values.resize(static_cast<std::size_t>(*next++));
    for (auto& value : values) value = static_cast<typename Values::value_type>(*next++);
  };
  while (next != numbers.end()) {
    GeneratedText& text = made.emplace_back();
    std::vector<double> rest;
    take(text.tokens), take(text.log_probs), take(text.text), take(text.problem);
    take(text.prompt_log_probs), take(text.most_probable), take(text.routing), take(rest);
    text.ended = rest[0] != 0;
    if (rest[1] != 0)
      text.not_finite = {static_cast<std::int64_t>(rest[2]), static_cast<std::int32_t>(rest[3]),
                         static_cast<float>(rest[4]), static_cast<std::size_t>(rest[5])};
  }
}

// Returns the texts of generate() on a new loop, also where one has failed. Collective.
Generated made_together(Generator& generator, const Prompts& prompts, const GenerateOptions& options,
                        const OnToken& on_token) {
  const texts::Limits limits = limits_of(prompts, options);
  CallTimes times;
  texts::Inbox inbox(limits, times);
  const texts::Loop::Head head{.inbox = inbox, .tokenizer = options.tokenizer, .observer = times};
  texts::Loop loop(generator, limits, generator.is_first_rank() ? &head : nullptr);
  std::vector<texts::TextRequest> requests;
  for (std::size_t text = 0; text < prompts.size(); ++text)
    requests.push_back(request_of(prompts, text, options));
  std::vector<GeneratedText> made = make_texts(loop, generator, inbox, std::move(requests), on_token);
  GenerateTimes taken = times.take();
  generator.broadcast(std::span(&taken, 1));
  return {taken, std::move(made)};
}

// The first text that has failed, if one has.
std::optional<std::size_t> failed_among(const std::vector<GeneratedText>& texts) {
  const auto found =
      std::ranges::find_if(texts, [](const GeneratedText& text) { return !text.problem.empty(); });
  if (found == texts.end()) return std::nullopt;
  return static_cast<std::size_t>(found - texts.begin());
}

}  // namespace

std::string broken_layer_of(Generator& generator, const texts::NotFinite& found,
                            std::vector<std::int32_t> prompt, const GeneratedText& made) {
  prompt.insert(prompt.end(), made.tokens.begin(), made.tokens.end());
  return broken_layer_text(generator.first_broken_layer({found.slot, std::move(prompt)}), generator.layers());
}

std::vector<GeneratedText> make_texts(texts::Loop& loop, Generator& generator, texts::Inbox& inbox,
                                      std::vector<texts::TextRequest> requests,
                                      const std::function<void(std::size_t, std::int32_t)>& on_token,
                                      const std::stop_token& stop) {
  std::vector<GeneratedText> made;
  if (generator.is_first_rank()) {
    TextsTogether together(inbox, std::move(requests), on_token);
    while (loop.step(0, &together.left())) {
      together.take();
      if (stop.stop_requested()) together.end_all();
    }
    made = together.made();
  } else {
    while (loop.step()) {
    }
  }
  share(generator, made);
  return made;
}

Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t, std::int32_t)>& on_token) {
  Generated made = made_together(generator, prompts, options, on_token);
  const std::optional<std::size_t> text = failed_among(made.texts);
  if (!text) return made;
  const texts::NotFinite found = made.texts[*text].not_finite.value();
  fail_runtime(
      "[generate] text {}: the model's logits after {} tokens are no numbers (that of token {} is {}); {}",
      *text, found.tokens_before, found.token, found.logit,
      broken_layer_of(generator, found, prompts[*text], made.texts[*text]));
}

std::string sample_text(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const Tokenizer& tokenizer, const std::string& prompt, std::int64_t count,
                        std::int64_t window, const SamplingConfig& sampling, std::uint32_t seed) {
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  const auto is_lacking = [&](std::int32_t id) { return id >= model.vocab; };
  if (tokens.empty() || std::ranges::any_of(tokens, is_lacking)) return "";
  const auto history = std::make_shared<TokenHistory>();
  history->add_prompt(tokens);
  GenerateOptions options{.sampling = sampling,
                          .vocab = std::min<std::int64_t>(tokenizer.vocab_size(), model.vocab),
                          .seed = seed,
                          .history = history};
  if (tokenizer.eos()) options.ends = {*tokenizer.eos()};
  std::int64_t seen = window;  // tokens at the end that the model reads first
  while (options.draws_before < count) {
    seen = std::min(seen, std::ssize(tokens));
    options.most_tokens = options.least_tokens = std::min(count - options.draws_before, window - seen + 1);
    Generator generator(context, model, parameters, 1, window);
    const Generated made = made_together(generator, {{tokens.end() - seen, tokens.end()}}, options,
                                         [](std::size_t, std::int32_t) {});
    const std::vector<std::int32_t>& next = made.texts[0].tokens;
    for (const std::int32_t token : next) history->add_made(token);
    tokens.insert(tokens.end(), next.begin(), next.end());
    if (failed_among(made.texts)) break;
    options.draws_before += options.most_tokens;
    seen = std::max<std::int64_t>(1, window / 2);
  }
  return tokenizer.decode(tokens);
}

}  // namespace switchyard
