#include "serve/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "generate/token_text.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostTexts = 128, kMostStops = 16, kMostEnds = 128, kMostLogProbs = 20,
                       kDefaultTokens = 16;

// The fields of a request, each asked for once; those that nobody asked for are refused.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  const json* find(const std::string& name) {
    known_.insert(name);
    const auto field = object_.find(name);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }
  std::int64_t integer(const std::string& name, std::int64_t without, std::int64_t least, std::int64_t most) {
    const json* const field = find(name);
    if (field == nullptr) return without;
    if (!field->is_number_integer() || *field < least || *field > most)
      throw BadRequest(name, fmt::format("{}: expected a whole number of {} to {}, got {}", name, least, most,
                                         shown(*field)));
    return field->get<std::int64_t>();
  }
  double number(const std::string& name, double without, double least, double most) {
    const json* const field = find(name);
    if (field == nullptr) return without;
    if (!field->is_number() || !(field->get<double>() >= least && field->get<double>() <= most))
      throw BadRequest(
          name, fmt::format("{}: expected a number of {} to {}, got {}", name, least, most, shown(*field)));
    return field->get<double>();
  }
  bool boolean(const std::string& name) {
    const json* const field = find(name);
    if (field == nullptr) return false;
    if (!field->is_boolean())
      throw BadRequest(name, fmt::format("{}: expected true or false, got {}", name, shown(*field)));
    return field->get<bool>();
  }
  std::vector<std::string> strings(const std::string& name) {
    const json* const field = find(name);
    if (field == nullptr) return {};
    if (field->is_string()) return {field->get<std::string>()};
    if (!field->is_array() ||
        !std::all_of(field->begin(), field->end(), [](const json& x) { return x.is_string(); }))
      throw BadRequest(name,
                       fmt::format("{}: expected a text or a list of texts, got {}", name, shown(*field)));
    return field->get<std::vector<std::string>>();
  }
  // A field with no other value than the one it has when it is not there.
  void only(const std::string& name, const json& value) {
    const json* const field = find(name);
    if (field != nullptr && *field != value)
      throw BadRequest(name, fmt::format("{}: expected {}, as nothing else is built, got {}", name,
                                         value.dump(), shown(*field)));
  }
  void refuse_others() const {
    for (const auto& [name, value] : object_.items()) {
      if (!known_.contains(name)) throw BadRequest(name, fmt::format("{}: unknown field", name));
    }
  }
  // Lists and objects may be nested deeper than the stack: they are not shown.
  static std::string shown(const json& value) {
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

 private:
  const json& object_;
  std::set<std::string> known_;
};

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::string text;
};

Prompt prompt_of_text(const std::string& text, const ServedModel& model) {
  return {encode_prompt(*model.tokenizer, text, model.add_bos, model.add_eos), text};
}

bool are_numbers(const json& list) {
  return std::all_of(list.begin(), list.end(), [](const json& x) { return x.is_number_integer(); });
}

Prompt prompt_of_ids(const json& ids, const ServedModel& model) {
  Prompt prompt;
  for (const json& id : ids) {
    // The model's: its embedding may have rows that the tokenizer has no text for.
    if (id < 0 || id >= model.vocab)
      throw BadRequest("prompt", fmt::format("prompt: token {} is outside the model's vocabulary of {}",
                                             id.dump(), model.vocab));
    prompt.tokens.push_back(id.get<std::int32_t>());
  }
  prompt.text = model.tokenizer->decode(prompt.tokens);
  return prompt;
}

// A text, some texts, the ids of one, or of some.
std::vector<Prompt> prompts_of(Fields& fields, const ServedModel& model) {
  const json* const field = fields.find("prompt");
  if (field == nullptr) throw BadRequest("prompt", "prompt: expected a text, got none");
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

// {"50256": -100}: whole numbers as texts, as JSON has it, and what is added to their logits.
std::vector<LogitBias> biases_of(const json& object, const ServedModel& model) {
  constexpr const char* kField = "logit_bias";
  if (!object.is_object())
    throw BadRequest(kField, fmt::format("logit_bias: expected an object of tokens and numbers, got {}",
                                         Fields::shown(object)));
  const auto vocab =
      static_cast<std::int32_t>(std::min<std::int64_t>(model.tokenizer->vocab_size(), model.vocab));
  std::vector<LogitBias> biases;
  for (const auto& [name, bias] : object.items()) {
    std::int32_t token = -1;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), token);
    const bool is_plain = read.ec == std::errc() && std::to_string(token) == name;  // and so there once
    if (!is_plain || token < 0 || token >= vocab)
      throw BadRequest(kField, fmt::format("logit_bias: expected tokens of 0 to {}, got {}", vocab - 1,
                                           Fields::shown(name)));
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= kMostLogitBias))
      throw BadRequest(kField, fmt::format("logit_bias: expected a number of -{} to {} for token {}, got {}",
                                           kMostLogitBias, kMostLogitBias, token, Fields::shown(bias)));
    biases.push_back({token, bias.get<double>()});
  }
  return biases;
}

// The strategy, the temperature and their numbers: what the command line says, but for what the request says.
SamplingConfig strategy_of(Fields& fields, const ServedModel& model) {
  const SamplingConfig& own = model.sampling;
  bool given = false;
  for (const char* name : {"temperature", "top_p", "top_k", "min_p"})
    given = given || fields.find(name) != nullptr;
  using enum SamplingStrategy;
  const bool has_nucleus = own.strategy == nucleus || own.strategy == composite;
  const bool has_top_k = own.strategy == topk || own.strategy == composite;
  SamplingConfig sampling = own;
  sampling.strategy = composite;
  sampling.temperature = fields.number("temperature", own.strategy == greedy ? 1 : own.temperature, 0, 100);
  sampling.nucleus_p = fields.number("top_p", has_nucleus ? own.nucleus_p : 1, 0, 1);
  sampling.min_p = fields.number("min_p", own.min_p, 0, 1);
  sampling.top_k =
      fields.integer("top_k", has_top_k ? own.top_k : -1, -1, std::numeric_limits<std::int32_t>::max());
  if (!given) return own;
  if (sampling.nucleus_p == 0) sampling.temperature = 0;  // nothing but the most probable token
  if (sampling.top_k < 1 && sampling.nucleus_p == 1) sampling.strategy = weighted;
  if (sampling.top_k < 1) sampling.top_k = std::numeric_limits<std::int32_t>::max();
  return sampling;
}

SamplingConfig sampling_of(Fields& fields, const ServedModel& model) {
  SamplingConfig sampling = strategy_of(fields, model);
  sampling.repetition_penalty = fields.number("repetition_penalty", sampling.repetition_penalty,
                                              kLeastRepetitionPenalty, kMostRepetitionPenalty);
  sampling.presence_penalty =
      fields.number("presence_penalty", sampling.presence_penalty, -kMostPenalty, kMostPenalty);
  sampling.frequency_penalty =
      fields.number("frequency_penalty", sampling.frequency_penalty, -kMostPenalty, kMostPenalty);
  if (const json* const biases = fields.find("logit_bias")) sampling.logit_bias = biases_of(*biases, model);
  return sampling;
}

// The tokens at which a request ends its texts.
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

json parse_object(const std::string& body) {
  json object;
  try {
    object = json::parse(body);
  } catch (const json::exception& error) {
    throw BadRequest("", fmt::format("the body is not JSON: {}", error.what()));
  }
  if (!object.is_object()) throw BadRequest("", "the body is not a JSON object");
  return object;
}

}  // namespace

CompletionRequest parse_completion(const std::string& body, const ServedModel& model,
                                   std::uint32_t own_seed) {
  const json object = parse_object(body);
  Fields fields(object);
  CompletionRequest request;
  if (const json* const name = fields.find("model"); name != nullptr && *name != model.name)
    throw BadRequest("model", fmt::format("model: expected {}, got {}", model.name, Fields::shown(*name)));
  const std::vector<Prompt> prompts = prompts_of(fields, model);
  TextRequest text;
  text.sampling = sampling_of(fields, model);
  text.seed = static_cast<std::uint32_t>(fields.integer(
      "seed", own_seed, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()));
  text.stop = fields.strings("stop");
  if (std::ssize(text.stop) > kMostStops)
    throw BadRequest("stop",
                     fmt::format("stop: expected at most {} texts, got {}", kMostStops, text.stop.size()));
  if (std::any_of(text.stop.begin(), text.stop.end(), [](const std::string& word) { return word.empty(); }))
    throw BadRequest("stop", "stop: expected texts that are not empty");
  text.ignore_end = fields.boolean("ignore_eos");
  if (const json* const ids = fields.find("stop_token_ids")) text.ends = ends_of(*ids, model);
  if (fields.find("logprobs") != nullptr)
    text.log_probs = static_cast<int>(fields.integer("logprobs", 0, 0, kMostLogProbs));
  const bool echo = fields.boolean("echo");
  text.scores_prompt = echo && text.log_probs;
  request.stream = fields.boolean("stream");
  if (const json* const options = fields.find("stream_options")) {
    if (!request.stream || !options->is_object())
      throw BadRequest("stream_options", "stream_options: expected an object, with stream=true");
    Fields of_stream(*options);
    request.usage_at_end = of_stream.boolean("include_usage");
    of_stream.refuse_others();
  }
  const std::int64_t copies = fields.integer("n", 1, 1, kMostTexts);
  const bool own_length = fields.find("max_tokens") == nullptr;
  const std::int64_t most =
      fields.integer("max_tokens", kDefaultTokens, 0, std::numeric_limits<std::int32_t>::max());
  fields.integer("best_of", copies, copies, copies);
  fields.only("suffix", "");
  fields.only("num_beams", 1);  // lm-evaluation-harness sends what a task says for transformers
  fields.find("user");          // of whoever asks, for their own records
  fields.refuse_others();
  if (const std::int64_t most_texts = std::min(kMostTexts, model.most_texts);
      copies * std::ssize(prompts) > most_texts) {
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
      // A character that the prompt begins and the model ends is the first of the new text.
      const std::size_t own = most > 0 ? whole_characters(prompt.text) : prompt.text.size();
      request.echoed.push_back(echo ? prompt.text.substr(0, own) : "");
    }
  }
  return request;
}

CompletionAnswer::CompletionAnswer(const CompletionRequest& request, const ServedModel& model,
                                   const std::string& id, std::int64_t created)
    : frame_{{"id", id}, {"object", "text_completion"}, {"created", created}, {"model", model.name}},
      with_log_probs_(request.texts[0].log_probs.has_value()),
      unfinished_(request.texts.size()),
      prompt_tokens_(request.prompt_tokens) {
  for (const std::string& echoed : request.echoed) {
    choices_.push_back({echoed, nullptr, "", characters_in(echoed)});
    if (with_log_probs_)
      choices_.back().log_probs = {{"tokens", json::array()},
                                   {"token_logprobs", json::array()},
                                   {"top_logprobs", json::array()},
                                   {"text_offset", json::array()}};
  }
}

json CompletionAnswer::of_stream(std::size_t choice, const std::string& text) const {
  json part = frame_;
  part["choices"].push_back(
      {{"index", choice}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  return part;
}

std::vector<json> CompletionAnswer::beginnings() const {
  std::vector<json> parts;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].text.empty()) parts.push_back(of_stream(i, choices_[i].text));
  }
  return parts;
}

json CompletionAnswer::add(const Piece& piece) {
  Choice& choice = choices_[piece.choice];
  choice.text += piece.text;
  new_tokens_ += piece.tokens;
  json part = of_stream(piece.choice, piece.text);
  json& shown = part["choices"][0];
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
  if (piece.finish) {
    --unfinished_;
    abandoned_ = abandoned_ || *piece.finish == Finish::abandoned;
    choice.finish = *piece.finish == Finish::stop     ? "stop"
                    : *piece.finish == Finish::failed ? "error"
                                                      : "length";
    choice.problem = piece.problem;
    shown["finish_reason"] = choice.finish;
    if (!choice.problem.empty()) shown["error"] = problem_json(choice.problem);
  }
  return piece.text.empty() && piece.log_probs.empty() && !piece.finish ? json() : part;
}

json CompletionAnswer::counts() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", new_tokens_},
          {"total_tokens", prompt_tokens_ + new_tokens_}};
}

json CompletionAnswer::whole() const {
  json all = frame_;
  all["choices"] = json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    all["choices"].push_back({{"index", i},
                              {"text", choice.text},
                              {"logprobs", choice.log_probs},
                              {"finish_reason", choice.finish}});
    if (!choice.problem.empty()) all["choices"].back()["error"] = problem_json(choice.problem);
  }
  all["usage"] = counts();
  return all;
}

json CompletionAnswer::usage() const {
  json part = frame_;
  part["choices"] = json::array();
  part["usage"] = counts();
  return part;
}

json error_json(const std::string& message, const std::string& type, const std::string& field,
                const std::string& code) {
  return {{"error",
           {{"message", message},
            {"type", type},
            {"param", field.empty() ? json() : json(field)},
            {"code", code.empty() ? json() : json(code)}}}};
}

}  // namespace switchyard::serve
