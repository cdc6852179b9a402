#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include "core/error.h"
#include "generate/growing_texts.h"

namespace switchyard {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<std::int32_t> end_tokens(const Config& config, const Tokenizer& tokenizer) {
  std::set<std::int32_t> ends;
  if (tokenizer.eos()) ends.insert(*tokenizer.eos());
  for (const std::int64_t id : config.get_ints("decode_end_tokens")) {
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
      fail_usage("[generate] decode_end_tokens: expected ids of 0 or more, got {}", id);
    ends.insert(static_cast<std::int32_t>(id));
  }
  return {ends.begin(), ends.end()};
}

std::string broken_layer_text(std::int64_t layer, std::int64_t layers) {
  if (layer < 0) return "the embedding's output is not finite";
  if (layer == layers) return "the outputs of all layers are finite";
  return fmt::format("the first output that is not finite is that of layer {}", layer);
}

Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t, std::int32_t)>& on_token) {
  Generated result;
  GrowingTexts texts(generator, prompts, options, on_token);
  const double begin = seconds_now();
  double first = begin;
  std::vector<std::size_t> going;
  const auto append_next = [&](const Tensor& logits, const std::vector<GrowingTexts::Wanted>& wanted) {
    texts.append_next(logits, wanted);
    for (const auto& of : wanted) {
      if (texts.goes_on(of.text)) going.push_back(of.text);
    }
  };
  if (options.most_tokens > 0) {
    for_each_chunk(
        prompts, options.prompt_chunk,
        [&](const std::vector<SlotTokens>& fed, std::vector<SlotTokens>&, const std::vector<bool>& ends) {
          const Tensor logits = generator.feed(fed);
          std::vector<GrowingTexts::Wanted> wanted;
          for (std::size_t i = 0; i < fed.size(); ++i) {
            if (ends[i]) wanted.push_back({fed[i].slot, i});
          }
          if (!wanted.empty()) append_next(logits, wanted);
        });
    std::ranges::sort(going);
    first = seconds_now();
  }
  while (!going.empty()) {
    std::vector<SlotTokens> next;
    std::vector<GrowingTexts::Wanted> wanted;
    for (const std::size_t text : going) {
      wanted.push_back({text, next.size()});
      next.push_back({text, {texts.tokens(text).back()}});
    }
    going.clear();
    append_next(generator.feed(next), wanted);
    ++result.steps;
  }
  result.prefill_seconds = first - begin;
  result.decode_seconds = seconds_now() - first;
  result.texts = texts.take();
  return result;
}

std::string sample_text(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const Tokenizer& tokenizer, const std::string& prompt, std::int64_t count,
                        std::int64_t window, const SamplingConfig& sampling, std::uint32_t seed) {
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  const auto is_lacking = [&](std::int32_t id) { return id >= model.vocab; };
  if (tokens.empty() || std::ranges::any_of(tokens, is_lacking)) return "";
  std::optional<Generator> generator;
  TokenHistory history;
  history.add_prompt(tokens);
  std::size_t seen = 0;  // tokens that the generator has read
  const std::int64_t ids = std::min<std::int64_t>(tokenizer.vocab_size(), model.vocab);
  std::vector<std::uint32_t> goes_on(static_cast<std::size_t>((ids + 31) / 32), ~std::uint32_t{0});
  if (const auto end = tokenizer.eos(); end && *end < ids)
    goes_on[static_cast<std::size_t>(*end / 32)] &= ~(std::uint32_t{1} << (*end % 32));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto after = static_cast<std::ptrdiff_t>(tokens.size());
    if (!generator || generator->length(0) == window) {
      const std::int64_t most = generator ? std::max<std::int64_t>(1, window / 2) : window;
      seen = tokens.size() - std::min(tokens.size(), static_cast<std::size_t>(most));
      generator.emplace(context, model, parameters, 1, window);
    }
    const SlotTokens fed{0, {tokens.begin() + static_cast<std::ptrdiff_t>(seen), tokens.begin() + after}};
    const Tensor logits = generator->feed(std::span(&fed, 1));
    seen = tokens.size();
    std::int32_t token = 0;
    if (logits.defined()) {
      const TokenPick pick{.vocab = ids,
                           .config = &sampling,
                           .seen = history.seen(),
                           .bits = goes_on,
                           .uniform = draw_of(seed, 0, static_cast<std::size_t>(i))};
      token = generator->pick(logits, std::span(&pick, 1))[0].token;
    }
    generator->broadcast(std::span(&token, 1));
    tokens.push_back(token);
    history.add_made(token);
  }
  return tokenizer.decode(tokens);
}

}  // namespace switchyard
