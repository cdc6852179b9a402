#include "serve/protocol/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace switchyard::serve {
namespace {

using chat::Json;

constexpr const char* kLogProbs = "message.output_text.logprobs";
constexpr const char* kSealedReasoning = "reasoning.encrypted_content";
constexpr std::int64_t kMostShownLogProbs = 20;
constexpr std::size_t kMostMetadata = 16;

// Other parts of items that a client may ask to include; no answer has them here.
constexpr std::array kNeverIncluded = {"file_search_call.results",
                                       "web_search_call.results",
                                       "web_search_call.action.sources",
                                       "message.input_image.image_url",
                                       "computer_call_output.output.image_url",
                                       "code_interpreter_call.outputs"};

// Fields of a chat that have another place here, and fields that would change the answer and are not built.
struct RefusedField {
  const char* name;
  const char* why;
};
constexpr RefusedField kRefusedFields[] = {
    {"messages", "is of /v1/chat/completions: here it is `input`"},
    {"max_tokens", "is of /v1/chat/completions: here it is max_output_tokens"},
    {"max_completion_tokens", "is of /v1/chat/completions: here it is max_output_tokens"},
    {"response_format", "is of /v1/chat/completions: here it is text.format"},
    {"reasoning_effort", "is of /v1/chat/completions: here it is reasoning.effort"},
    {"verbosity", "is of /v1/chat/completions: here it is text.verbosity"},
    {"logprobs", "is of /v1/chat/completions: here it is include=[\"message.output_text.logprobs\"]"},
    {"n", "is of /v1/chat/completions: a response has one answer"},
    {"best_of", "is of /v1/completions: a response has one answer"},
    {"prompt", "is not built, and would change the answer"},
    {"conversation", "is not built, and would change the answer: use previous_response_id"},
    {"context_management", "is not built, and would change the answer"},
    {"multi_agent", "is not built, and would change the answer"}};

// Fields that the response repeats as the request has them, and their values without it.
struct RepeatedField {
  const char* name;
  const char* otherwise;  // as JSON
};
constexpr RepeatedField kRepeatedFields[] = {{"instructions", "null"},
                                             {"max_output_tokens", "null"},
                                             {"max_tool_calls", "null"},
                                             {"parallel_tool_calls", "true"},
                                             {"previous_response_id", "null"},
                                             {"prompt_cache_key", "null"},
                                             {"safety_identifier", "null"},
                                             {"tool_choice", "\"auto\""},
                                             {"top_logprobs", "0"},
                                             {"truncation", "\"disabled\""},
                                             {"user", "null"},
                                             {"metadata", "{}"}};

[[noreturn]] void refuse_value(const std::string& field, const std::string& expected, const Json& got) {
  throw BadRequest(field, fmt::format("{}: expected {}, got {}", field, expected, Fields::shown(got)));
}

// A member that is not known is passed on by its whole name: the chat ignores it aloud, or refuses it.
void pass_unknown(const std::string& object, const std::string& name, ResponsesRequest& request) {
  request.chat[object + "." + name] = true;
}

void read_nothing(const Json&, ResponsesRequest&) {}

void read_instructions(const Json& value, ResponsesRequest&) {
  if (!value.is_string()) refuse_value("instructions", "a text", value);
}

void read_most_tokens(const Json& value, ResponsesRequest& request) {
  request.chat["max_completion_tokens"] = value;
}

void read_store(const Json& value, ResponsesRequest& request) {
  if (!value.is_boolean()) refuse_value("store", "true or false", value);
  request.stores = value.get<bool>();
}

void read_background(const Json& value, ResponsesRequest&) {
  if (value != false) refuse_value("background", "false, as nothing else is built", value);
}

void read_truncation(const Json& value, ResponsesRequest&) {
  if (value != "disabled") refuse_value("truncation", "disabled, as nothing else is built", value);
}

void read_most_tool_calls(const Json& value, ResponsesRequest&) {
  // It counts calls of tools that a server runs itself. None are built.
  if (!value.is_number_integer() || value < 0) refuse_value("max_tool_calls", "a whole number", value);
}

void read_metadata(const Json& value, ResponsesRequest&) {
  const bool is_known =
      value.is_object() && value.size() <= kMostMetadata &&
      std::all_of(value.begin(), value.end(), [](const Json& one) { return one.is_string(); });
  if (!is_known) refuse_value("metadata", fmt::format("an object of at most {} texts", kMostMetadata), value);
}

void read_stream_options(const Json& value, ResponsesRequest& request) {
  if (!value.is_object()) refuse_value("stream_options", "an object", value);
  for (const auto& [name, option] : value.items()) {
    if (name != "include_obfuscation") {  // this stream has none to leave out
      pass_unknown("stream_options", name, request);
    } else if (!option.is_boolean() && !option.is_null()) {
      refuse_value("stream_options.include_obfuscation", "true or false", option);
    }
  }
}

void read_include(const Json& value, ResponsesRequest& request) {
  if (!value.is_array()) refuse_value("include", "a list", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] == kLogProbs) {
      request.chat["logprobs"] = true;
    } else if (value[i] == kSealedReasoning) {
      request.seals_reasoning = true;
    } else if (std::ranges::find(kNeverIncluded, value[i]) == kNeverIncluded.end()) {
      refuse_value(fmt::format("include[{}]", i),
                   fmt::format("{}, {} or the like", kLogProbs, kSealedReasoning), value[i]);
    }
  }
}

void read_top_log_probs(const Json& value, ResponsesRequest& request) {
  if (!value.is_number_integer() || value < 0 || value > kMostShownLogProbs)
    refuse_value("top_logprobs", fmt::format("a whole number of 0 to {}", kMostShownLogProbs), value);
  request.chat["top_logprobs"] = value;
}

void read_reasoning_options(const Json& value, ResponsesRequest& request) {
  if (!value.is_object()) refuse_value("reasoning", "an object", value);
  for (const auto& [name, option] : value.items()) {
    const std::string field = "reasoning." + name;
    if (option.is_null()) continue;
    if (name == "effort") {
      request.chat["reasoning_effort"] = option;
    } else if (name == "summary" || name == "generate_summary") {
      // The answer has the whole reasoning, so no summary is made.
      if (option != "auto" && option != "concise" && option != "detailed")
        refuse_value(field, "auto, concise or detailed", option);
    } else if (name == "context") {
      if (option != "auto") refuse_value(field, "auto, as the template chooses what it shows", option);
    } else if (name == "mode") {
      if (option != "standard") refuse_value(field, "standard, as nothing else is built", option);
    } else {
      pass_unknown("reasoning", name, request);
    }
  }
}

// {"type": "json_schema", "name", "schema", …} is flat here and nested in a chat.
Json chat_format(const Json& format) {
  const std::string type = given_text(format, "type", "text.format");
  if (type != "json_schema") return format;
  Json schema = Json::object();
  for (const auto& [name, value] : format.items()) {
    if (name != "type") schema[name] = value;
  }
  return {{"type", type}, {"json_schema", std::move(schema)}};
}

void read_text_options(const Json& value, ResponsesRequest& request) {
  if (!value.is_object()) refuse_value("text", "an object", value);
  for (const auto& [name, option] : value.items()) {
    if (option.is_null()) continue;
    if (name == "format") {
      request.chat["response_format"] = chat_format(option);
    } else if (name == "verbosity") {
      if (option != "low" && option != "medium" && option != "high")
        refuse_value("text.verbosity", "low, medium or high", option);
      request.chat["verbosity"] = option;
    } else {
      pass_unknown("text", name, request);
    }
  }
}

// Members of a function that only servers have which run tools themselves: the value that changes nothing.
void refuse_served_tool(const Json& tool, const std::string& place) {
  for (const char* name : {"async", "defer_loading"}) {
    const Json* const value = given_member(tool, name);
    if (value != nullptr && *value != false)
      refuse_value(fmt::format("{}.{}", place, name), "false, as nothing else is built", *value);
  }
  const Json* const callers = given_member(tool, "allowed_callers");
  if (callers != nullptr && *callers != Json::array({"direct"}))
    refuse_value(place + ".allowed_callers", "[\"direct\"], as nothing else is built", *callers);
}

void read_tools(const Json& value, ResponsesRequest& request) {
  if (!value.is_array()) refuse_value("tools", "a list", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    const std::string type = given_text(value[i], "type", place);
    if (type != "function") refuse_value(place + ".type", "function, as no other tools are built", type);
    refuse_served_tool(value[i], place);
    Json function{{"name", given_text(value[i], "name", place)}};
    for (const char* name : {"description", "parameters", "strict"}) {
      if (const Json* const member = given_member(value[i], name)) function[name] = *member;
    }
    if (!function.contains("strict")) {
      function["strict"] = true;  // OpenAI's default
      request.unsaid_strict.push_back(i);
    }
    Json shown = function;
    shown["type"] = "function";
    request.shown["tools"].push_back(std::move(shown));
    request.names.push_back({place + ".function", place});
    request.chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
}

struct FieldReader {
  const char* name;
  void (*read)(const Json& value, ResponsesRequest& request);
};
constexpr FieldReader kFieldReaders[] = {{"input", read_nothing},
                                         {"previous_response_id", read_nothing},
                                         {"instructions", read_instructions},
                                         {"max_output_tokens", read_most_tokens},
                                         {"store", read_store},
                                         {"background", read_background},
                                         {"truncation", read_truncation},
                                         {"max_tool_calls", read_most_tool_calls},
                                         {"metadata", read_metadata},
                                         {"stream_options", read_stream_options},
                                         {"include", read_include},
                                         {"top_logprobs", read_top_log_probs},
                                         {"reasoning", read_reasoning_options},
                                         {"text", read_text_options},
                                         {"tools", read_tools}};

void read_fields(const Json& body, ResponsesRequest& request) {
  for (const auto& [name, value] : body.items()) {
    if (value.is_null()) continue;
    const auto* const refused = std::ranges::find(
        kRefusedFields, name, [](const RefusedField& one) { return std::string(one.name); });
    if (refused != std::end(kRefusedFields))
      throw BadRequest(name, fmt::format("{}: {}", name, refused->why));
    const auto* const reader =
        std::ranges::find(kFieldReaders, name, [](const FieldReader& one) { return std::string(one.name); });
    if (reader != std::end(kFieldReaders))
      reader->read(value, request);
    else
      request.chat[name] = value;  // others are treated as a chat's
  }
  if (request.chat.value("top_logprobs", 0) > 0 && !request.chat.contains("logprobs"))
    throw BadRequest("top_logprobs",
                     fmt::format("top_logprobs: expected include=[\"{}\"] beside it", kLogProbs));
}

void show_request(const Json& body, ResponsesRequest& request) {
  for (const RepeatedField& field : kRepeatedFields) {
    const Json* const value = given_member(body, field.name);
    request.shown[field.name] = value != nullptr ? *value : Json::parse(field.otherwise);
  }
  const Json reasoning = body.contains("reasoning") ? body["reasoning"] : Json();
  request.shown["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  for (const char* name : {"effort", "summary"}) {
    if (const Json* const value = given_member(reasoning, name)) request.shown["reasoning"][name] = *value;
  }
  request.shown["text"] = {{"format", {{"type", "text"}}}};
  const Json* const text = given_member(body, "text");
  for (const char* name : {"format", "verbosity"}) {
    const Json* const value = text == nullptr ? nullptr : given_member(*text, name);
    if (value != nullptr) request.shown["text"][name] = *value;
  }
  request.shown["store"] = request.stores;
  request.shown["background"] = false;
  request.shown["service_tier"] = "default";
  if (!request.shown.contains("tools")) request.shown["tools"] = Json::array();
}

// Makes the chat's messages of the instructions, of what a former response remembers, and of the input.
void read_conversation(const Json& body, StoredResponses& stored, StoredResponses::Key key,
                       ResponsesRequest& request) {
  ItemMessages messages;
  if (const Json* const instructions = given_member(body, "instructions"))
    messages.add_instructions(instructions->get<std::string>());
  if (given_member(body, "previous_response_id") != nullptr) {
    const std::string id = given_text(body, "previous_response_id", "");
    const std::shared_ptr<const StoredResponse> before = stored.find(key, id);
    if (before == nullptr)
      throw BadRequest("previous_response_id",
                       fmt::format("previous_response_id: there is no stored response {}", id),
                       "previous_response_not_found");
    request.conversation = before->conversation;
    for (const auto& item : request.conversation)
      messages.add(Json::parse(item->text), "previous_response_id");
  }
  request.input_begin = request.conversation.size();
  if (const Json* const input = given_member(body, "input")) {
    std::size_t at = 0;
    for (const Json& item : read_input_items(*input, stored, key, request.ids)) {
      messages.add(item, input->is_string() ? "input" : fmt::format("input[{}]", at++));
      request.conversation.push_back(stored_item(item));
    }
  }
  if (request.conversation.empty())
    throw BadRequest("input", "input: expected a text, or a list of one item or more");
  request.chat["messages"] = std::move(messages.messages);
  request.names.insert(request.names.end(), messages.names.begin(), messages.names.end());
}

// Returns the error by the names of the request's own fields.
BadRequest renamed(const BadRequest& error, const std::vector<ChatFieldName>& names) {
  const ChatFieldName* best = nullptr;
  for (const ChatFieldName& name : names) {
    const bool fits = error.field.starts_with(name.chat) &&
                      (error.field.size() == name.chat.size() || error.field[name.chat.size()] == '.' ||
                       error.field[name.chat.size()] == '[');
    if (fits && (best == nullptr || name.chat.size() > best->chat.size())) best = &name;
  }
  if (best == nullptr) return error;
  const std::string field = best->request + error.field.substr(best->chat.size());
  std::string message = error.what();
  if (message.starts_with(error.field)) message = field + message.substr(error.field.size());
  return {field, message, error.code, error.status};
}

void forget_unsaid_strict(ResponsesRequest& request) {
  for (const std::size_t tool : request.unsaid_strict) {
    request.chat["tools"][tool]["function"].erase("strict");
    request.shown["tools"][tool]["strict"] = false;
  }
}

// A tool is strict unless the request says otherwise or the server cannot hold to the tool's schema.
ChatRequest parse_strict_or_not(ResponsesRequest& request, const ServedModel& model, std::uint32_t own_seed,
                                std::int64_t key) {
  if (!request.unsaid_strict.empty()) {
    try {
      return parse_chat(request.chat, model, own_seed, key);
    } catch (const BadRequest&) {
      forget_unsaid_strict(request);  // if that is not the reason, it is refused again
    }
  }
  return parse_chat(request.chat, model, own_seed, key);
}

}  // namespace

ResponsesRequest read_responses(const Json& body, StoredResponses& stored, StoredResponses::Key key,
                                const std::string& tail) {
  ResponsesRequest request{.chat = Json::object(),
                           .names = {{"messages", "input"},
                                     {"max_completion_tokens", "max_output_tokens"},
                                     {"response_format.json_schema", "text.format"},
                                     {"response_format", "text.format"},
                                     {"reasoning_effort", "reasoning.effort"}},
                           .unsaid_strict = {},
                           .shown = Json::object(),
                           .id = "resp_" + tail,
                           .ids = ItemIds(tail),
                           .conversation = {}};
  read_fields(body, request);
  show_request(body, request);
  read_conversation(body, stored, key, request);
  return request;
}

ChatRequest chat_of_responses(ResponsesRequest& request, const ServedModel& model, std::uint32_t own_seed,
                              std::int64_t key) {
  try {
    ChatRequest chat = parse_strict_or_not(request, model, own_seed, key);
    const SamplingConfig& sampling = chat.texts[0].sampling;
    using enum SamplingStrategy;
    const bool has_nucleus = sampling.strategy == nucleus || sampling.strategy == composite;
    request.shown["model"] = model.name_with(chat.texts[0].adapter.get());
    request.shown["temperature"] = sampling.strategy == greedy ? 0 : sampling.temperature;
    request.shown["top_p"] = has_nucleus ? sampling.nucleus_p : 1;
    return chat;
  } catch (const BadRequest& error) {
    throw renamed(error, request.names);
  }
}

std::size_t count_input_tokens(const ResponsesRequest& request, const ServedModel& model, std::int64_t key) {
  try {
    return prompt_of_chat(request.chat, model, key).tokens.size();
  } catch (const BadRequest& error) {
    throw renamed(error, request.names);
  }
}

}  // namespace switchyard::serve
