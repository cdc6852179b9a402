#include "serve/protocol/stored_responses.h"

#include <utility>

namespace switchyard::serve {
namespace {

constexpr std::size_t kBytesBeside = 200;  // of an item or a response, for what holds it

std::size_t bytes_of_stored(const StoredResponse& response) {
  std::size_t bytes = response.text.size() + kBytesBeside;
  for (const auto& item : response.conversation) bytes += item->id.size() + item->text.size() + kBytesBeside;
  return bytes;
}

}  // namespace

void StoredResponses::drop(Place place) {
  bytes_ -= place->bytes;
  places_.erase(place->id);
  kept_.erase(place);
}

void StoredResponses::keep(Key key, const std::string& id, StoredResponse response) {
  const std::size_t bytes = bytes_of_stored(response);
  if (bytes > most_bytes_) return;
  const std::lock_guard lock(mutex_);
  while (!kept_.empty() && (kept_.size() >= most_ || bytes_ + bytes > most_bytes_))
    drop(std::prev(kept_.end()));
  kept_.push_front({key, id, std::make_shared<const StoredResponse>(std::move(response)), bytes});
  places_[id] = kept_.begin();
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> StoredResponses::find(Key key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end() || found->second->key != key) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->response;
}

bool StoredResponses::erase(Key key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end() || found->second->key != key) return false;
  drop(found->second);
  return true;
}

std::map<std::string, std::string> StoredResponses::find_items(Key key, const std::set<std::string>& ids) {
  std::map<std::string, std::string> found;
  if (ids.empty()) return found;
  const std::lock_guard lock(mutex_);
  for (const Kept& kept : kept_) {
    if (kept.key != key) continue;
    const StoredItems& items = kept.response->conversation;
    for (std::size_t i = kept.response->input_begin; i < items.size(); ++i) {
      if (ids.contains(items[i]->id)) found.emplace(items[i]->id, items[i]->text);
    }
  }
  return found;
}

}  // namespace switchyard::serve
