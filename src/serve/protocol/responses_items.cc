#include "serve/protocol/responses_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "tokenizer/base64.h"

namespace switchyard::serve {
namespace {

using chat::Json;

constexpr std::string_view kSeal = "switchyard:";
constexpr std::size_t kMostReferredBytes = std::size_t{16} << 20;  // as a body has at most
constexpr std::array kItemRoles = {"user", "assistant", "system", "developer"};

[[noreturn]] void refuse_item(const std::string& place, const std::string& expected) {
  throw BadRequest(place, fmt::format("{}: expected {}", place, expected));
}

// Reads a part of a message, or of a call's result, in the form that the answers have.
Json read_text_part(const Json& part, const std::string& place, const char* text_type) {
  const std::string type = given_text(part, "type", place);
  if (type == "refusal") return {{"type", type}, {"refusal", given_text(part, "refusal", place)}};
  if (type != "input_text" && type != "output_text" && type != "text")
    refuse_item(
        place + ".type",
        fmt::format("input_text, output_text or refusal, as the model reads text only, got {}", type));
  Json read{{"type", text_type}, {"text", given_text(part, "text", place)}};
  if (text_type == std::string_view("output_text")) read["annotations"] = Json::array();
  return read;
}

Json read_text_parts(const Json& content, const std::string& place, const char* text_type) {
  Json parts = Json::array();
  if (content.is_string()) {
    parts.push_back(read_text_part({{"type", "text"}, {"text", content}}, place, text_type));
    return parts;
  }
  if (!content.is_array()) refuse_item(place, "a text or a list of parts");
  for (std::size_t i = 0; i < content.size(); ++i)
    parts.push_back(read_text_part(content[i], fmt::format("{}[{}]", place, i), text_type));
  return parts;
}

Json read_message(const Json& item, const std::string& place) {
  const std::string role = given_text(item, "role", place);
  if (std::ranges::find(kItemRoles, role) == kItemRoles.end())
    refuse_item(place + ".role", fmt::format("user, assistant, system or developer, got {}", role));
  const Json* const content = given_member(item, "content");
  if (content == nullptr) refuse_item(place + ".content", "a text or a list of parts");
  Json read{{"type", "message"}, {"status", "completed"}, {"role", role}};
  if (const Json* const phase = given_member(item, "phase")) read["phase"] = *phase;
  read["content"] =
      read_text_parts(*content, place + ".content", role == "assistant" ? "output_text" : "input_text");
  return read;
}

Json read_call(const Json& item, const std::string& place) {
  if (given_member(item, "namespace") != nullptr)
    refuse_item(place + ".namespace", "none, as namespaces of tools are not built");
  return {{"type", "function_call"},
          {"status", "completed"},
          {"call_id", given_text(item, "call_id", place)},
          {"name", given_text(item, "name", place)},
          {"arguments", given_text(item, "arguments", place)}};
}

Json read_result(const Json& item, const std::string& place) {
  const Json* const output = given_member(item, "output");
  if (output == nullptr) refuse_item(place + ".output", "a text or a list of parts");
  return {
      {"type", "function_call_output"},
      {"status", "completed"},
      {"call_id", given_text(item, "call_id", place)},
      {"output", output->is_string() ? *output : read_text_parts(*output, place + ".output", "input_text")}};
}

// Reads a list of {type, text}, all of one type. None is an empty list.
Json read_texts(const Json& item, const char* name, const char* type, const std::string& place) {
  Json texts = Json::array();
  const Json* const list = given_member(item, name);
  if (list == nullptr) return texts;
  const std::string where = fmt::format("{}.{}", place, name);
  if (!list->is_array()) refuse_item(where, "a list");
  for (std::size_t i = 0; i < list->size(); ++i)
    texts.push_back(
        {{"type", type}, {"text", given_text((*list)[i], "text", fmt::format("{}[{}]", where, i))}});
  return texts;
}

Json read_reasoning(const Json& item, const std::string& place) {
  const Json* const sealed = given_member(item, "encrypted_content");
  if (sealed != nullptr && !sealed->is_string()) refuse_item(place + ".encrypted_content", "a text");
  return {{"type", "reasoning"},
          {"summary", read_texts(item, "summary", "summary_text", place)},
          {"content", read_texts(item, "content", "reasoning_text", place)},
          {"encrypted_content", sealed == nullptr ? Json() : *sealed}};
}

struct ItemKind {
  const char* type;
  const char* id;  // how its ids begin
  Json (*read)(const Json& item, const std::string& place);
};
constexpr ItemKind kItemKinds[] = {{"message", "msg", read_message},
                                   {"function_call", "fc", read_call},
                                   {"function_call_output", "fco", read_result},
                                   {"reasoning", "rs", read_reasoning}};

std::string type_of_item(const Json& item, const std::string& place) {
  if (!item.is_object()) refuse_item(place, "an object");
  if (given_member(item, "type") != nullptr) return given_text(item, "type", place);
  return given_member(item, "role") != nullptr ? "message" : "item_reference";
}

std::set<std::string> referred_ids(const Json& input) {
  std::set<std::string> ids;
  for (const Json& item : input) {
    const Json* const id = given_member(item, "id");
    if (id != nullptr && id->is_string()) ids.insert(id->get<std::string>());
  }
  return ids;
}

Json read_item(const Json& item, const std::string& place, ItemIds& ids) {
  const std::string type = type_of_item(item, place);
  const auto* const kind =
      std::ranges::find(kItemKinds, type, [](const ItemKind& one) { return std::string(one.type); });
  if (kind == std::end(kItemKinds))
    refuse_item(
        place + ".type",
        fmt::format("message, function_call, function_call_output, reasoning or item_reference, as nothing "
                    "else is built, got {}",
                    type));
  Json read = kind->read(item, place);
  read["id"] = given_member(item, "id") != nullptr ? given_text(item, "id", place) : ids.next(kind->id);
  return read;
}

std::string text_of_part(const Json& part) {
  return part.at(part.at("type") == "refusal" ? "refusal" : "text").get<std::string>();
}

// Joins the texts of parts by line ends, as a chat's message does.
std::string joined_parts(const Json& parts) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) joined += (i > 0 ? "\n" : "") + text_of_part(parts[i]);
  return joined;
}

Json chat_parts(const Json& parts) {
  Json texts = Json::array();
  for (const Json& part : parts) texts.push_back({{"type", "text"}, {"text", text_of_part(part)}});
  return texts;
}

// Returns the text of a reasoning item: its content, or what this server sealed, or at least its summary.
// Another server's seal hides the text.
std::string text_of_reasoning(const Json& item) {
  if (!item.at("content").empty()) return joined_parts(item.at("content"));
  if (item.at("encrypted_content").is_string()) {
    const auto& sealed = item.at("encrypted_content").get_ref<const std::string&>();
    if (sealed.starts_with(kSeal)) return from_base64(sealed.substr(kSeal.size())).value_or("");
  }
  return joined_parts(item.at("summary"));
}

}  // namespace

std::string ItemIds::next(const std::string& kind) {
  return fmt::format("{}_{}{:04x}", kind, end_, next_++);
}

const Json* given_member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string given_text(const Json& object, const char* name, const std::string& place) {
  const Json* const text = given_member(object, name);
  const std::string where = place.empty() ? name : fmt::format("{}.{}", place, name);
  if (text == nullptr || !text->is_string()) refuse_item(where, "a text");
  return text->get<std::string>();
}

std::vector<Json> read_input_items(const Json& input, StoredResponses& stored, StoredResponses::Key key,
                                   ItemIds& ids) {
  if (input.is_string()) return {read_item({{"role", "user"}, {"content", input}}, "input", ids)};
  if (!input.is_array()) refuse_item("input", "a text or a list of items");
  const std::map<std::string, std::string> known = stored.find_items(key, referred_ids(input));
  std::vector<Json> items;
  std::size_t referred = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::string place = fmt::format("input[{}]", i);
    if (type_of_item(input[i], place) != "item_reference") {
      items.push_back(read_item(input[i], place, ids));
      continue;
    }
    const std::string id = given_text(input[i], "id", place);
    const auto found = known.find(id);
    if (found == known.end())
      throw BadRequest(place + ".id", fmt::format("{}.id: there is no stored item {}", place, id),
                       "item_not_found", 404);
    referred += found->second.size();
    if (referred > kMostReferredBytes)
      refuse_item(place, fmt::format("items of at most {} bytes behind all references", kMostReferredBytes));
    items.push_back(Json::parse(found->second));
  }
  return items;
}

Json& ItemMessages::push(const std::string& role, const std::string& place) {
  names.push_back({fmt::format("messages[{}]", messages.size()), place});
  messages.push_back({{"role", role}, {"content", ""}});
  return messages.back();
}

bool ItemMessages::is_open() const {
  return !messages.empty() && messages.back().at("role") == "assistant";
}

// One answer has its reasoning, its text and its calls in one message, as it has in a chat.
bool ItemMessages::is_unfinished() const {
  return is_open() && (messages.back().contains("tool_calls") || messages.back().at("content") == "");
}

// Returns the assistant's last message where that goes on, else a new one.
Json& ItemMessages::assistant(bool goes_on, const std::string& place) {
  return goes_on ? messages.back() : push("assistant", place);
}

void ItemMessages::add_instructions(const std::string& text) {
  push("system", "instructions")["content"] = text;
}

void ItemMessages::add(const Json& item, const std::string& place) {
  const std::string type = item.at("type");
  if (type == "message") return add_message(item, place);
  at_system_ = false;
  if (type == "function_call") return add_call(item, place);
  if (type == "function_call_output") return add_result(item, place);
  add_reasoning(item, place);
}

void ItemMessages::add_message(const Json& item, const std::string& place) {
  const std::string role = item.at("role"), text = joined_parts(item.at("content"));
  const bool is_system = role == "system" || role == "developer";
  at_system_ = at_system_ && is_system;
  if (at_system_ && !messages.empty()) {
    auto& joined = messages.back().at("content").get_ref<std::string&>();
    joined += (joined.empty() ? "" : "\n\n") + text;
  } else if (is_system) {
    push(role, place)["content"] = text;
  } else if (role == "user") {
    push(role, place)["content"] = chat_parts(item.at("content"));
  } else {
    assistant(is_unfinished(), place).at("content").get_ref<std::string&>() += text;
  }
}

void ItemMessages::add_call(const Json& item, const std::string& place) {
  Json& calls = assistant(is_open(), place)["tool_calls"];
  names.push_back(
      {fmt::format("messages[{}].tool_calls[{}].function", messages.size() - 1, calls.size()), place});
  calls_.insert(item.at("call_id").get<std::string>());
  calls.push_back({{"id", item.at("call_id")},
                   {"type", "function"},
                   {"function", {{"name", item.at("name")}, {"arguments", item.at("arguments")}}}});
}

void ItemMessages::add_result(const Json& item, const std::string& place) {
  const std::string id = item.at("call_id");
  if (!calls_.contains(id))
    refuse_item(place + ".call_id", fmt::format("the call_id of a function_call before it, got {}", id));
  const Json& output = item.at("output");
  Json& message = push("tool", place);
  message["tool_call_id"] = id;
  message["content"] = output.is_string() ? output : chat_parts(output);
}

void ItemMessages::add_reasoning(const Json& item, const std::string& place) {
  const std::string text = text_of_reasoning(item);
  if (text.empty()) return;
  Json& message = assistant(is_unfinished(), place);
  const Json* const before = given_member(message, "reasoning_content");
  message["reasoning_content"] = before == nullptr ? text : before->get<std::string>() + "\n" + text;
}

std::shared_ptr<const StoredItem> stored_item(const Json& item) {
  return std::make_shared<const StoredItem>(StoredItem{
      item.at("id").get<std::string>(), item.dump(-1, ' ', false, Json::error_handler_t::replace)});
}

std::string sealed_reasoning(const std::string& text) {
  return std::string(kSeal) + to_base64(text);
}

}  // namespace switchyard::serve
