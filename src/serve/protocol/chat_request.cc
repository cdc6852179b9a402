#include "serve/protocol/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>

#include "chat/call_form.h"
#include "core/error.h"
#include "serve/protocol/answer_constraint.h"
#include "serve/protocol/sampling_fields.h"
#include "serve/protocol/tool_choice.h"

namespace switchyard::serve {
namespace {

using chat::Json;
using nlohmann::json;

constexpr std::int64_t kMostChoices = 128, kMostStopTexts = 16, kMostTopLogProbs = 20;
constexpr std::int64_t kAnyNumber = std::numeric_limits<std::int32_t>::max();

// Fields that the prompt's template and the constraint read.
constexpr std::array kReadElsewhere = {"messages",
                                       "documents",
                                       "tools",
                                       "tool_choice",
                                       "response_format",
                                       "structured_outputs",
                                       "guided_json",
                                       "guided_regex",
                                       "guided_choice",
                                       "reasoning_effort",
                                       "chat_template_kwargs",
                                       "add_generation_prompt",
                                       "continue_final_message"};
// Fields for the client's own records, or for services that this server is not.
constexpr std::array kWithoutEffect = {"user",
                                       "metadata",
                                       "store",
                                       "service_tier",
                                       "safety_identifier",
                                       "prompt_cache_key",
                                       "prompt_cache_retention",
                                       "prompt_cache_options",
                                       "prediction",
                                       "verbosity"};
// Fields that would change the answer and are not built.
constexpr std::array kNotBuilt = {"functions",      "function_call", "audio",          "web_search_options",
                                  "moderation",     "regex",         "ebnf",           "grammar",
                                  "guided_grammar", "lora",          "prompt_logprobs"};
// Samplers that are not built: a family of fields, and the value that switches it off.
struct NotBuiltSampler {
  const char* prefix;
  const char* main;  // the field that switches the family
  double off;
};
constexpr NotBuiltSampler kNotBuiltSamplers[] = {{"mirostat", "mirostat", 0},
                                                 {"dry_", "dry_multiplier", 0},
                                                 {"xtc_", "xtc_probability", 0},
                                                 {"typical_p", "typical_p", 1}};

bool begins_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

[[noreturn]] void refuse_not_built(const std::string& name) {
  throw BadRequest(name, fmt::format("{}: is not built, and would change the answer", name));
}

void refuse_what_is_not_built(Fields& fields, const json& object, std::int64_t choices) {
  for (const char* name : kNotBuilt) {
    if (fields.find(name) != nullptr) refuse_not_built(name);
  }
  for (const auto& [name, value] : object.items()) {
    for (const NotBuiltSampler& sampler : kNotBuiltSamplers) {
      if (!begins_with(name, sampler.prefix) || fields.find(name) == nullptr) continue;
      const bool is_off = name == sampler.main && value.is_number() && value.get<double>() == sampler.off;
      if (!is_off) refuse_not_built(name);
    }
  }
  if (const json* const beams = fields.find("use_beam_search"); beams != nullptr && *beams != false)
    refuse_not_built("use_beam_search");
  if (fields.integer("best_of", choices, 1, kMostChoices) > choices) refuse_not_built("best_of");
  if (const json* const kinds = fields.find("modalities");
      kinds != nullptr && *kinds != json::array({"text"}))
    refuse_not_built("modalities");
  if (const json* const cache = fields.find("prompt_cache_options");
      cache != nullptr && cache->is_object() && cache->value("prewarm", json()) == true)
    refuse_not_built("prompt_cache_options.prewarm");  // asks for no answer
}

std::int64_t most_tokens_of(Fields& fields, const ServedModel& model, std::int64_t room) {
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    if (fields.find(name) != nullptr) {
      fields.find("max_tokens");  // known, where the other wins
      return std::min(room, fields.integer(name, 1, 1, kAnyNumber));
    }
  }
  return std::min(room, model.most_tokens.value_or(room));
}

std::vector<std::string> stops_of(Fields& fields, const ServedModel& model) {
  if (fields.find("stop") == nullptr) return model.stop;
  std::vector<std::string> stops = fields.strings("stop");
  std::erase(stops, "");  // some clients send an empty text for none
  if (std::ssize(stops) > kMostStopTexts)
    throw BadRequest("stop",
                     fmt::format("stop: expected at most {} texts, got {}", kMostStopTexts, stops.size()));
  return stops;
}

void read_log_probs(Fields& fields, ChatRequest& request, TextRequest& text) {
  request.log_probs = fields.boolean("logprobs");
  const bool has_top = fields.find("top_logprobs") != nullptr;
  const std::int64_t top = fields.integer("top_logprobs", 0, 0, kMostTopLogProbs);
  if (has_top && top > 0 && !request.log_probs)
    throw BadRequest("top_logprobs", "top_logprobs: expected logprobs=true beside it");
  if (request.log_probs) text.log_probs = static_cast<int>(top);
}

void read_stream(Fields& fields, ChatRequest& request) {
  request.stream = fields.boolean("stream");
  const json* const options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    throw BadRequest("stream_options",
                     fmt::format("stream_options: expected an object, got {}", Fields::shown(*options)));
  Fields of_stream(*options);  // without `stream` they have no effect: litellm sends them so
  request.usage_at_end = of_stream.boolean("include_usage");
  request.usage_in_all = of_stream.boolean("continuous_usage_stats");
}

std::optional<std::int64_t> most_reasoning_of(Fields& fields) {
  std::optional<std::int64_t> most;
  for (const char* name : {"thinking_token_budget", "thinking_budget", "max_reasoning_tokens"}) {
    if (fields.find(name) != nullptr) most = fields.integer(name, 0, -1, kAnyNumber);
  }
  return most && *most < 0 ? std::nullopt : most;  // -1: as many as the model likes
}

// The ids that end the texts of a request, beside the model's own.
std::vector<std::int32_t> own_ends(Fields& fields, const ServedModel& model) {
  const json* const ids = fields.find("stop_token_ids");
  std::vector<std::int32_t> ends;
  if (ids == nullptr) return ends;
  if (!ids->is_array() || ids->size() > 128)
    throw BadRequest("stop_token_ids", "stop_token_ids: expected a list of at most 128 tokens");
  for (const json& id : *ids) {
    if (!id.is_number_integer() || id < 0 || id >= model.vocab)
      throw BadRequest("stop_token_ids", fmt::format("stop_token_ids: expected tokens of 0 to {}, got {}",
                                                     model.vocab - 1, Fields::shown(id)));
    ends.push_back(id.get<std::int32_t>());
  }
  return ends;
}

bool keeps_reasoning_of(Fields& fields, const ChatModel& chat) {
  const json* const form = fields.find("reasoning_format");
  if (form == nullptr || *form == "auto") return !chat.reads_reasoning;
  if (*form == "none") return true;
  throw BadRequest("reasoning_format",
                   fmt::format("reasoning_format: expected auto or none, got {}", Fields::shown(*form)));
}

std::vector<std::string> unknown_fields(const json& object, Fields& fields, bool strict) {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : object.items()) {
    if (!fields.knows(name)) unknown.push_back(name);
  }
  if (strict && !unknown.empty())
    throw BadRequest(unknown[0], fmt::format("{}: unknown field", unknown[0]), "unknown_field");
  return unknown;
}

// All of a body but its long parts, which `Fields` need not see.
json short_fields(const Json& body) {
  json object = json::object();
  for (const auto& [name, value] : body.items()) {
    const bool is_long = name == "messages" || name == "tools";
    object[name] = is_long ? json(true) : json(value);
  }
  return object;
}

std::optional<std::int32_t> single_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode_with_special(text);
  return ids.size() == 1 ? std::optional(ids[0]) : std::nullopt;
}

bool ends_with_closed_reasoning(std::string text, std::string_view end) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.ends_with(end);
}

// Returns the text that ends reasoning that is too long. gpt-oss then begins a message of its own choice.
std::string_view forced_end(chat::Format format) {
  return format == chat::Format::harmony ? "<|end|>" : chat::reasoning_end(format);
}

// Places the grammar's beginning: behind the reasoning, or at once.
void place_grammar(TextRequest& text, const chat::Prompt& prompt, const ServedModel& model) {
  const AnswerForm& form = *text.answer;
  const std::string end(chat::reasoning_end(form.format));
  if (form.format == chat::Format::harmony || form.opens_reasoning) {
    text.grammar_after = end;
    text.grammar_after_reasoning = true;
  } else if (!end.empty() && form.format != chat::Format::mistral &&
             !ends_with_closed_reasoning(prompt.text, end)) {
    text.reasoning_begin = single_token(*model.tokenizer, chat::reasoning_begin(form.format));
    text.grammar_after_reasoning = text.reasoning_begin.has_value();
    if (text.reasoning_begin) text.grammar_after = end;
  }
}

// Returns how many bytes of text the messages bring at least. Templates drop parts of earlier answers, so
// these do not count.
std::size_t text_bytes_of(const Json& body) {
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array()) return 0;
  std::size_t bytes = 0;
  const auto add = [&](const Json& object, const char* name) {
    if (!object.is_object()) return;
    const auto text = object.find(name);
    if (text != object.end() && text->is_string()) bytes += text->get_ref<const std::string&>().size();
  };
  for (const Json& message : *messages) {
    if (!message.is_object() || message.value("role", Json()) == "assistant") continue;
    add(message, "content");
    if (const auto parts = message.find("content"); parts != message.end() && parts->is_array()) {
      for (const Json& part : *parts) add(part, "text");
    }
  }
  return bytes;
}

// Renders the messages by the model's template, or by the request's own where the server allows that.
chat::Prompt rendered_prompt(const Json& body, const ChatModel& chat) {
  const auto own = body.find("chat_template");
  if (own == body.end() || own->is_null()) return chat.prompts.prompt(body);
  if (!chat.takes_templates)
    throw BadRequest("chat_template",
                     "chat_template: requests bring templates of their own only to a server with "
                     "--trust-request-template",
                     "template_error", 403);
  if (!own->is_string()) throw BadRequest("chat_template", "chat_template: expected a text");
  chat::TemplateSource source = chat.prompts.source();
  source.text = own->get<std::string>();
  source.tool_text.clear();
  try {
    return chat::ChatTemplate(std::move(source), {}).prompt(body);
  } catch (const Error& error) {
    throw BadRequest("chat_template", error.what(), "template_error");
  }
}

}  // namespace

Json parse_chat_body(const std::string& body) {
  if (nests_deeper(body, kDeepestJson))
    throw BadRequest("", fmt::format("the body has lists and objects in more than {} levels", kDeepestJson));
  Json object;
  try {
    object = Json::parse(body);
  } catch (const Json::exception& error) {
    throw BadRequest("", fmt::format("the body is not JSON: {}", error.what()));
  }
  if (!object.is_object()) throw BadRequest("", "the body is not a JSON object");
  return object;
}

ChatPrompt prompt_of_chat(const Json& body, const ServedModel& model, std::int64_t key) {
  if (model.chat == nullptr)
    throw BadRequest("", "this model has no chat template: start the server with chat_template_path=FILE",
                     "no_chat_template");
  ChatPrompt prompt{rendered_prompt(body, *model.chat), {}};
  std::vector<TextRange> plain = prompt.rendered.foreign;
  if (model.chat->trusts_messages) plain.clear();
  const auto salt = body.find("cache_salt");
  const json given = salt == body.end() ? json() : json(*salt);
  const auto named = body.find("model");
  const json name = named == body.end() ? json() : json(*named);
  prompt.adapter = adapter_named(name.is_null() ? nullptr : &name, model);
  prompt.domain = cache_domain_of(given.is_null() ? nullptr : &given, key, model, prompt.adapter.get());
  prompt.tokens = model.memory != nullptr ? model.memory->encode(prompt.domain, prompt.rendered.text, plain)
                                          : model.tokenizer->encode_with_special(prompt.rendered.text, plain);
  for (const std::int32_t id : prompt.tokens) {
    if (id >= model.vocab)
      throw BadRequest("messages", fmt::format("messages: token {} is outside the model's vocabulary of {}",
                                               id, model.vocab));
  }
  if (prompt.tokens.empty()) throw BadRequest("messages", "messages: the prompt is empty");
  return prompt;
}

ChatRequest parse_chat(const Json& body, const ServedModel& model, std::uint32_t own_seed, std::int64_t key) {
  const json object = short_fields(body);
  Fields fields(object);
  adapter_named(fields.find("model"), model);
  if (const std::size_t bytes = text_bytes_of(body); model.cannot_hold(bytes))
    throw BadRequest(
        "messages",
        fmt::format("This model's maximum context length is {} tokens. However, your messages have "
                    "{} bytes of text, and a token stands for at most {}.",
                    model.capacity, bytes, model.longest_token),
        "context_length_exceeded");
  const ChatPrompt prompt = prompt_of_chat(body, model, key);
  const std::int64_t length = std::ssize(prompt.tokens), room = model.capacity - length;
  if (room < 1)
    throw BadRequest(
        "messages",
        fmt::format("This model's maximum context length is {} tokens. However, your messages have {} "
                    "tokens, and the answer needs room for one or more.",
                    model.capacity, length),
        "context_length_exceeded");
  const ChatModel& chat = *model.chat;
  ChatRequest request;
  request.format = chat.format;
  TextRequest text;
  text.prompt = prompt.tokens;
  text.domain = prompt.domain;
  text.adapter = prompt.adapter;
  text.sampling = sampling_of(fields, model);
  text.seed = static_cast<std::uint32_t>(fields.integer("seed", model.seed.value_or(own_seed),
                                                        std::numeric_limits<std::int64_t>::min(),
                                                        std::numeric_limits<std::int64_t>::max()));
  text.most_tokens = most_tokens_of(fields, model, room);
  text.least_tokens = fields.integer("min_tokens", 0, 0, kAnyNumber);
  text.ignore_end = fields.boolean("ignore_eos");
  text.ends = own_ends(fields, model);
  read_log_probs(fields, request, text);
  read_training_fields(fields, model, text);
  read_stream(fields, request);
  request.shows_reasoning =
      fields.find("include_reasoning") == nullptr || fields.boolean("include_reasoning");
  const std::int64_t choices = fields.integer("n", 1, 1, std::min(kMostChoices, model.most_texts));

  const ToolChoice choice = tool_choice_of(body);
  auto form = std::make_shared<AnswerForm>();
  form->format = chat.format;
  form->tools = choice.tools;
  form->opens_reasoning = prompt.rendered.opens_reasoning;
  form->keeps_reasoning = keeps_reasoning_of(fields, chat);
  form->one_call = fields.find("parallel_tool_calls") != nullptr && !fields.boolean("parallel_tool_calls");
  form->stop = stops_of(fields, model);
  form->most_reasoning = most_reasoning_of(fields);
  if (form->most_reasoning)
    form->reasoning_end = model.tokenizer->encode_with_special(forced_end(chat.format));
  Constraint constraint = constraint_of(body, choice, chat.format, form->one_call, model);
  text.answer = std::move(form);
  text.grammar = std::move(constraint.grammar);
  text.grammar_after = std::move(constraint.marker);
  if (text.grammar != nullptr && text.grammar_after.empty() && !constraint.holds_reasoning)
    place_grammar(text, prompt.rendered, model);

  refuse_what_is_not_built(fields, object, choices);
  for (const char* name : kReadElsewhere) fields.find(name);
  for (const char* name : kWithoutEffect) fields.find(name);
  for (const char* name : {"chat_template", "cache_salt"}) fields.find(name);
  request.ignored = unknown_fields(object, fields, chat.strict_fields);
  // The template may show tools in a form of its own: calls in an unknown form stay content.
  if (!choice.tools.is_null() && chat::call_form(chat.format, choice.tools).calls.empty())
    request.ignored.emplace_back("tools");
  request.prompt_tokens = length;
  for (std::int64_t i = 0; i < choices; ++i) {
    text.choice = static_cast<std::size_t>(i);
    request.texts.push_back(text);
  }
  return request;
}

}  // namespace switchyard::serve
