#include "serve/protocol/completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "generate/token_text.h"
#include "serve/protocol/sampling_fields.h"
#include "tokenizer/base64.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostTexts = 128, kMostStops = 16, kMostEnds = 128, kMostLogProbs = 20,
                       kDefaultTokens = 16;

std::int64_t most_texts_of(const ServedModel& model) {
  return std::min(kMostTexts, model.most_texts);
}

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::string text;
};

Prompt prompt_of_text(const std::string& text, const ServedModel& model) {
  if (model.cannot_hold(text.size()))
    throw BadRequest(
        "prompt",
        fmt::format("This model's maximum context length is {} tokens. However, your prompt has {} "
                    "bytes, and a token stands for at most {}.",
                    model.capacity, text.size(), model.longest_token),
        "context_length_exceeded");
  return {encode_prompt(*model.tokenizer, text, model.add_bos, model.add_eos), text};
}

bool are_numbers(const json& list) {
  return std::all_of(list.begin(), list.end(), [](const json& x) { return x.is_number_integer(); });
}

Prompt prompt_of_ids(const json& ids, const ServedModel& model) {
  Prompt prompt;
  for (const json& id : ids) {
    // The model's embedding may have more rows than the tokenizer has ids.
    if (id < 0 || id >= model.vocab)
      throw BadRequest("prompt", fmt::format("prompt: token {} is outside the model's vocabulary of {}",
                                             id.dump(), model.vocab));
    prompt.tokens.push_back(id.get<std::int32_t>());
  }
  prompt.text = model.tokenizer->decode(prompt.tokens);
  return prompt;
}

// The prompts of a request: a text, several texts, the ids of one, or the ids of several.
std::vector<Prompt> prompts_of(Fields& fields, const ServedModel& model) {
  const json* const field = fields.find("prompt");
  if (field == nullptr) throw BadRequest("prompt", "prompt: expected a text, got none");
  const std::int64_t most = field->is_array() && are_numbers(*field) ? model.capacity : most_texts_of(model);
  if (field->is_array() && std::ssize(*field) > most)
    throw BadRequest(
        "prompt", are_numbers(*field)
                      ? fmt::format("a prompt of {} tokens: expected at most {} together with "
                                    "max_tokens",
                                    field->size(), most)
                      : fmt::format("prompt: expected at most {} texts in all, got {}", most, field->size()));
  std::vector<Prompt> prompts;
  if (field->is_string()) {
    prompts.push_back(prompt_of_text(*field, model));
  } else if (field->is_array() && !field->empty() && are_numbers(*field)) {
    prompts.push_back(prompt_of_ids(*field, model));
  } else if (field->is_array() && !field->empty()) {
    for (const json& one : *field) {
      if (one.is_string()) {
        prompts.push_back(prompt_of_text(one, model));
      } else if (one.is_array() && are_numbers(one)) {
        prompts.push_back(prompt_of_ids(one, model));
      } else {
        throw BadRequest(
            "prompt", fmt::format("prompt: expected texts or lists of tokens, got {}", Fields::shown(one)));
      }
    }
  } else {
    throw BadRequest("prompt", fmt::format("prompt: expected a text, tokens, or a list of them, got {}",
                                           Fields::shown(*field)));
  }
  for (const Prompt& prompt : prompts) {
    if (prompt.tokens.empty()) throw BadRequest("prompt", "prompt: expected one token or more, got none");
    for (const std::int32_t id : prompt.tokens) {
      if (id >= model.vocab)
        throw BadRequest("prompt", fmt::format("prompt: token {} is outside the model's vocabulary of {}", id,
                                               model.vocab));
    }
  }
  return prompts;
}

// The ids that end the texts of a request.
std::vector<std::int32_t> ends_of(const json& ids, const ServedModel& model) {
  constexpr const char* kField = "stop_token_ids";
  if (!ids.is_array() || std::ssize(ids) > kMostEnds)
    throw BadRequest(kField, fmt::format("stop_token_ids: expected a list of at most {} tokens, got {}",
                                         kMostEnds, Fields::shown(ids)));
  std::vector<std::int32_t> ends;
  for (const json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id >= model.vocab)
      throw BadRequest(kField, fmt::format("stop_token_ids: expected tokens of 0 to {}, got {}",
                                           model.vocab - 1, Fields::shown(id)));
    ends.push_back(id.get<std::int32_t>());
  }
  return ends;
}

json problem_json(const std::string& problem) {
  return {{"message", problem}, {"type", "server_error"}};
}

}  // namespace

CompletionRequest parse_completion(const std::string& body, const ServedModel& model, std::uint32_t own_seed,
                                   std::int64_t key) {
  const json object = parse_object(body);
  Fields fields(object);
  CompletionRequest request;
  const std::shared_ptr<const TextAdapter> adapter = adapter_named(fields.find("model"), model);
  const std::vector<Prompt> prompts = prompts_of(fields, model);
  TextRequest text;
  text.sampling = sampling_of(fields, model);
  text.seed = static_cast<std::uint32_t>(fields.integer("seed", model.seed.value_or(own_seed),
                                                        std::numeric_limits<std::int64_t>::min(),
                                                        std::numeric_limits<std::int64_t>::max()));
  text.stop = fields.find("stop") == nullptr ? model.stop : fields.strings("stop");
  if (std::ssize(text.stop) > kMostStops)
    throw BadRequest("stop",
                     fmt::format("stop: expected at most {} texts, got {}", kMostStops, text.stop.size()));
  if (std::any_of(text.stop.begin(), text.stop.end(), [](const std::string& word) { return word.empty(); }))
    throw BadRequest("stop", "stop: expected texts that are not empty");
  text.ignore_end = fields.boolean("ignore_eos");
  if (const json* const ids = fields.find("stop_token_ids")) text.ends = ends_of(*ids, model);
  if (fields.find("logprobs") != nullptr)
    text.log_probs = static_cast<int>(fields.integer("logprobs", 0, 0, kMostLogProbs));
  read_training_fields(fields, model, text);
  text.adapter = adapter;
  text.domain = cache_domain_of(fields.find("cache_salt"), key, model, adapter.get());
  const bool echo = fields.boolean("echo");
  text.scores_prompt = echo && text.log_probs;
  request.stream = fields.boolean("stream");
  if (const json* const options = fields.find("stream_options")) {
    if (!request.stream || !options->is_object())
      throw BadRequest("stream_options", "stream_options: expected an object, with stream=true");
    Fields stream_fields(*options);
    request.usage_at_end = stream_fields.boolean("include_usage");
    stream_fields.refuse_others();
  }
  const std::int64_t copies = fields.integer("n", 1, 1, kMostTexts);
  const bool own_length = fields.find("max_tokens") == nullptr;
  const std::int64_t most = fields.integer("max_tokens", model.most_tokens.value_or(kDefaultTokens), 0,
                                           std::numeric_limits<std::int32_t>::max());
  fields.integer("best_of", copies, copies, copies);
  fields.only("suffix", "");
  fields.only("num_beams", 1);  // lm-evaluation-harness sends what a task says for transformers
  fields.find("user");          // is for the client's own records
  fields.refuse_others();
  if (const std::int64_t most_texts = most_texts_of(model); copies * std::ssize(prompts) > most_texts) {
    const char* const field = copies > 1 ? "n" : "prompt";
    throw BadRequest(field, fmt::format("{}: expected at most {} texts in all, got {}", field, most_texts,
                                        copies * std::ssize(prompts)));
  }
  for (const Prompt& prompt : prompts) {
    const std::int64_t length = std::ssize(prompt.tokens), room = model.capacity - length;
    const std::int64_t least = std::min<std::int64_t>(1, most);
    if (room < least || (!own_length && most > room))
      throw BadRequest(room < least ? "prompt" : "max_tokens",
                       fmt::format("a prompt of {} tokens and max_tokens={}: expected at most {} together",
                                   length, most, model.capacity));
    request.prompt_tokens += length;
    text.prompt = prompt.tokens;
    text.most_tokens = std::min(most, room);
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      text.choice = request.texts.size();
      request.texts.push_back(text);
      // A character that the prompt begins and the model completes is the first of the new text.
      const std::size_t own = most > 0 ? whole_characters(prompt.text) : prompt.text.size();
      request.echoed.push_back(echo ? prompt.text.substr(0, own) : "");
    }
  }
  return request;
}

CompletionAnswer::CompletionAnswer(const CompletionRequest& request, const ServedModel& model,
                                   const std::string& id, std::int64_t created)
    : ProtocolAnswer(request.texts.size()),
      frame_{{"id", id},
             {"object", "text_completion"},
             {"created", created},
             {"model", model.name_with(request.texts[0].adapter.get())},
             {"system_fingerprint", model.weights->fingerprint(request.texts[0].adapter.get())}},
      stream_(request.stream),
      usage_at_end_(request.usage_at_end),
      with_log_probs_(request.texts[0].log_probs.has_value()),
      with_token_ids_(request.texts[0].returns_token_ids),
      prompt_tokens_(request.prompt_tokens) {
  for (std::size_t i = 0; i < request.texts.size(); ++i) {
    const std::string& echoed = request.echoed[i];
    choices_.push_back({echoed, nullptr, "", characters_in(echoed)});
    if (with_token_ids_) choices_.back().prompt = request.texts[i].prompt;
    if (with_log_probs_)
      choices_.back().log_probs = {{"tokens", json::array()},
                                   {"token_logprobs", json::array()},
                                   {"top_logprobs", json::array()},
                                   {"text_offset", json::array()}};
  }
}

json CompletionAnswer::event(std::size_t choice, const std::string& text) const {
  json event = frame_;
  event["choices"].push_back(
      {{"index", choice}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  return event;
}

std::string CompletionAnswer::begin() {
  std::string events;
  for (std::size_t i = 0; stream_ && i < choices_.size(); ++i) {
    if (choices_[i].text.empty() && !with_token_ids_) continue;
    json first = event(i, choices_[i].text);
    if (with_token_ids_) {
      first["choices"][0]["prompt_token_ids"] = choices_[i].prompt;
      first["choices"][0]["token_ids"] = json::array();
    }
    events += event_text(first);
  }
  return events;
}

std::string CompletionAnswer::add(const Piece& piece) {
  count(piece);
  Choice& choice = choices_[piece.choice];
  choice.text += piece.text;
  new_tokens_ += piece.tokens;
  json new_event = event(piece.choice, piece.text);
  json& shown = new_event["choices"][0];
  for (const TokenLogProb& token : piece.log_probs) {
    json most;
    if (token.log_prob) most = json::object();
    for (const auto& [text, log_prob] : token.most_probable) most[text] = log_prob;
    for (json* const list : {&choice.log_probs, &shown["logprobs"]}) {
      (*list)["tokens"].push_back(token.text);
      (*list)["token_logprobs"].push_back(token.log_prob ? json(*token.log_prob) : json());
      (*list)["top_logprobs"].push_back(most);
      (*list)["text_offset"].push_back(token.offset + (piece.of_prompt ? 0 : choice.echoed));
    }
  }
  if (with_token_ids_) {
    choice.token_ids.insert(choice.token_ids.end(), piece.made.begin(), piece.made.end());
    shown["token_ids"] = piece.made;
  }
  if (!piece.routing.empty()) shown["routed_experts"] = choice.routing = to_base64(piece.routing);
  if (piece.finish) {
    choice.finish = *piece.finish == Finish::stop      ? "stop"
                    : *piece.finish == Finish::failed  ? "error"
                    : *piece.finish == Finish::aborted ? "abort"
                                                       : "length";
    choice.problem = piece.problem;
    shown["finish_reason"] = choice.finish;
    if (!choice.problem.empty()) shown["error"] = problem_json(choice.problem);
  }
  const bool nothing_new = piece.text.empty() && piece.log_probs.empty() && !piece.finish &&
                           (!with_token_ids_ || piece.made.empty());
  return !stream_ || nothing_new || is_abandoned() ? "" : event_text(new_event);
}

json CompletionAnswer::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", new_tokens_},
          {"total_tokens", prompt_tokens_ + new_tokens_}};
}

std::string CompletionAnswer::end() {
  json last = frame_;
  last["choices"] = json::array();
  last["usage"] = usage();
  if (stream_) return (usage_at_end_ ? event_text(last) : "") + "data: [DONE]\n\n";
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    last["choices"].push_back({{"index", i},
                               {"text", choice.text},
                               {"logprobs", choice.log_probs},
                               {"finish_reason", choice.finish}});
    json& shown = last["choices"].back();
    if (with_token_ids_) shown["prompt_token_ids"] = choice.prompt, shown["token_ids"] = choice.token_ids;
    if (!choice.routing.empty()) shown["routed_experts"] = choice.routing;
    if (!choice.problem.empty()) shown["error"] = problem_json(choice.problem);
  }
  return to_text(last) + "\n";
}

}  // namespace switchyard::serve
