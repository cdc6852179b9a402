#include "serve/protocol/responses_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace switchyard::serve {
namespace {

using chat::Json;

constexpr std::string_view kInputItems = "/input_items";
constexpr int kUsualItems = 20, kMostItems = 100;

// Returns a value of a query such as limit=5&order=asc. Ids and numbers need no decoding.
std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('='))
      return std::string(pair.substr(name.size() + 1));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
  }
  return {};
}

std::size_t wanted_items(const std::string& query) {
  const std::string text = query_value(query, "limit").value_or(std::to_string(kUsualItems));
  int limit = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || limit < 1 || limit > kMostItems)
    throw BadRequest("limit",
                     fmt::format("limit: expected a whole number of 1 to {}, got {}", kMostItems, text));
  return static_cast<std::size_t>(limit);
}

std::string input_items_text(const StoredResponse& response, const std::string& query) {
  const auto begin = response.conversation.begin();
  StoredItems items(begin + static_cast<std::ptrdiff_t>(response.input_begin),
                    begin + static_cast<std::ptrdiff_t>(response.input_end));
  const std::string order = query_value(query, "order").value_or("desc");
  if (order != "asc" && order != "desc")
    throw BadRequest("order", fmt::format("order: expected asc or desc, got {}", order));
  if (order == "desc") std::ranges::reverse(items);
  if (const auto after = query_value(query, "after")) {
    const auto found = std::ranges::find_if(items, [&](const auto& item) { return item->id == *after; });
    if (found == items.end())
      throw BadRequest("after", fmt::format("after: there is no item {} in the input", *after));
    items.erase(items.begin(), found + 1);
  }
  const std::size_t shown = std::min(items.size(), wanted_items(query));
  const bool has_more = shown < items.size();
  items.resize(shown);
  std::string data;  // items are JSON already, and may be long
  for (const auto& item : items) data += (data.empty() ? "" : ",") + item->text;
  const std::string first = items.empty() ? "null" : Json(items.front()->id).dump();
  const std::string last = items.empty() ? "null" : Json(items.back()->id).dump();
  return fmt::format(R"({{"object":"list","data":[{}],"has_more":{},"first_id":{},"last_id":{}}})", data,
                     has_more, first, last) +
         "\n";
}

[[noreturn]] void refuse_unknown_response(const std::string& id) {
  throw BadRequest("response_id", fmt::format("response_id: there is no stored response {}", id),
                   "response_not_found", 404);
}

}  // namespace

ResponsesAnswer::Keep keeper_of(const ResponsesRequest& request, StoredResponses& stored,
                                StoredResponses::Key key) {
  if (!request.stores) return {};
  return [&stored, key, id = request.id, conversation = request.conversation, begin = request.input_begin](
             const std::string& response, const Json& output) {
    StoredResponse kept{response, conversation, begin, conversation.size()};
    for (const Json& item : output) kept.conversation.push_back(stored_item(item));
    stored.keep(key, id, std::move(kept));
  };
}

std::string show_stored(const std::string& name, const std::string& query, StoredResponses& stored,
                        StoredResponses::Key key) {
  const bool of_items = name.ends_with(kInputItems);
  const std::string id = of_items ? name.substr(0, name.size() - kInputItems.size()) : name;
  const std::shared_ptr<const StoredResponse> found = stored.find(key, id);
  if (found == nullptr) refuse_unknown_response(id);
  if (of_items) return input_items_text(*found, query);
  if (const auto stream = query_value(query, "stream"); stream && *stream != "false")
    throw BadRequest("stream", "stream: expected false, as the response has ended");
  return found->text + "\n";
}

std::string delete_stored(const std::string& id, StoredResponses& stored, StoredResponses::Key key) {
  if (!stored.erase(key, id)) refuse_unknown_response(id);
  return Json{{"id", id}, {"object", "response"}, {"deleted", true}}.dump() + "\n";
}

}  // namespace switchyard::serve
