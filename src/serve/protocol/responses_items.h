// Items of /v1/responses: messages, calls, their results, and reasoning, which a request's `input` lists and
// an answer's `output` too. Here they become the messages of a chat.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chat/answer_parser.h"
#include "serve/protocol/fields.h"
#include "serve/protocol/stored_responses.h"

namespace switchyard::serve {

// A field of the chat, and the field of the request of /v1/responses that it was made from.
struct ChatFieldName {
  std::string chat, request;
};

// Makes ids of items, all with the same end.
class ItemIds {
 public:
  explicit ItemIds(std::string end) : end_(std::move(end)) {}
  std::string next(const std::string& kind);
  const std::string& end() const { return end_; }

 private:
  std::string end_;
  int next_ = 0;
};

// Returns the member of an object, or null where there is none or it is null.
const chat::Json* given_member(const chat::Json& object, const char* name);
// Returns a member that must be a text. `place` is the object's. BadRequest.
std::string given_text(const chat::Json& object, const char* name, const std::string& place);

// Reads `input`: a text, or a list of items. Each comes back whole, with an id; references are replaced by
// the items that `stored` has of `key`. BadRequest by place.
std::vector<chat::Json> read_input_items(const chat::Json& input, StoredResponses& stored,
                                         StoredResponses::Key key, ItemIds& ids);

// The messages of a chat, from items in their order.
class ItemMessages {
 public:
  // Adds instructions. They, and messages of role system or developer that come next, are one message: many
  // templates read such a message at the beginning only.
  void add_instructions(const std::string& text);
  // Adds an item as read_input_items returns it. `place` is the item's path in the request. BadRequest.
  void add(const chat::Json& item, const std::string& place);

  chat::Json messages = chat::Json::array();
  std::vector<ChatFieldName> names;

 private:
  void add_message(const chat::Json& item, const std::string& place);
  void add_result(const chat::Json& item, const std::string& place);
  void add_call(const chat::Json& item, const std::string& place);
  void add_reasoning(const chat::Json& item, const std::string& place);
  chat::Json& push(const std::string& role, const std::string& place);
  chat::Json& assistant(bool goes_on, const std::string& place);
  bool is_open() const;
  bool is_unfinished() const;

  std::set<std::string> calls_;  // ids
  bool at_system_ = true;        // nothing but instructions and the like has come
};

// Returns an item as it is stored.
std::shared_ptr<const StoredItem> stored_item(const chat::Json& item);

// Returns what `encrypted_content` has of a text of reasoning, so that a client that stores nothing here can
// pass it back. It is no secret: base64.
std::string sealed_reasoning(const std::string& text);

}  // namespace switchyard::serve
