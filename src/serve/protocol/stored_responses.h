// StoredResponses: answers of /v1/responses that a later request may continue or retrieve. Memory keeps the
// answers until newer ones need the room or the server ends. A client with another key does not find them.
// Any thread may call any function.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace switchyard::serve {

// An item of a conversation, such as a message or a call, as a text of JSON.
struct StoredItem {
  std::string id, text;
};
using StoredItems = std::vector<std::shared_ptr<const StoredItem>>;

struct StoredResponse {
  std::string text;                            // the response, as it was answered
  StoredItems conversation;                    // earlier items, then the request's, then the answer's
  std::size_t input_begin = 0, input_end = 0;  // the request's items in the conversation
};

class StoredResponses {
 public:
  using Key = std::optional<std::size_t>;  // index of a key of the server; none: it has no keys

  // Keeps at most `most` responses, and of all their conversations together at most `most_bytes`.
  explicit StoredResponses(std::size_t most = 1000, std::size_t most_bytes = std::size_t{64} << 20)
      : most_(most), most_bytes_(most_bytes) {}

  // Makes room by dropping the least recently used responses. Does not keep a response larger than the limit.
  void keep(Key key, const std::string& id, StoredResponse response);
  // Returns null if this key has no such response.
  std::shared_ptr<const StoredResponse> find(Key key, const std::string& id);
  bool erase(Key key, const std::string& id);
  // Returns the texts of the items that are stored, by id.
  std::map<std::string, std::string> find_items(Key key, const std::set<std::string>& ids);

 private:
  struct Kept {
    Key key;
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    std::size_t bytes;
  };
  using Place = std::list<Kept>::iterator;
  void drop(Place place);

  const std::size_t most_, most_bytes_;
  std::mutex mutex_;      // guards the members below
  std::list<Kept> kept_;  // the one used last comes first
  std::unordered_map<std::string, Place> places_;
  std::size_t bytes_ = 0;  // counts shared items once per conversation, so never too low
};

}  // namespace switchyard::serve
