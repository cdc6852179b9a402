#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

namespace {

void check_key(const Value& key) {
  if (key.list() != nullptr || key.mapping() != nullptr) {
    fail_other(fmt::format("unhashable type: '{}'", type_name(key)));
  }
  if (const Tuple* tuple = key.tuple()) {
    Budget::check_stack();
    for (const Value& item : tuple->items) check_key(item);
  }
}

}  // namespace

Mapping::~Mapping() {
  Budget::give_back(charged_);
  clear();
}

void Mapping::clear() {
  index_.clear();
  std::vector<Value> values;
  for (Entry& entry : entries_) {
    if (entry.first.holds_values()) values.push_back(std::move(entry.first));
    if (entry.second.holds_values()) values.push_back(std::move(entry.second));
  }
  entries_.clear();
  other_keys_ = 0;
  bury(values);
}

std::size_t Mapping::position(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(key);
    return found == index_.end() ? entries_.size() : found->second;
  }
  std::size_t at = 0;
  for (; at < entries_.size(); ++at) {
    const Text* text = entries_[at].first.text();
    if (text != nullptr && text->bytes == key) break;
  }
  return at;
}

std::size_t Mapping::position(const Value& key) const {
  if (const Text* text = key.text()) return position(text->bytes);
  check_key(key);
  if (other_keys_ == 0) return entries_.size();
  Budget::count_steps(entries_.size());
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return equal(entry.first, key); });
  return static_cast<std::size_t>(found - entries_.begin());
}

const Value* Mapping::find(const Value& key) const {
  const std::size_t at = position(key);
  return at == entries_.size() ? nullptr : &entries_[at].second;
}

const Value* Mapping::find(std::string_view key) const {
  const std::size_t at = position(key);
  return at == entries_.size() ? nullptr : &entries_[at].second;
}

void Mapping::make_index() {
  index_.clear();
  if (entries_.size() < kIndexedFrom) return;
  Budget::count_steps(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (const Text* text = entries_[i].first.text()) index_.emplace(text->bytes, i);
  }
}

void Mapping::set(const Value& key, Value value) {
  const std::size_t at = position(key);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  charged_ += Budget::take(2 * sizeof(Value) + 48);
  entries_.emplace_back(key, std::move(value));
  const Text* text = key.text();
  if (text == nullptr) ++other_keys_;
  if (entries_.size() == kIndexedFrom) {
    make_index();
  } else if (text != nullptr && entries_.size() > kIndexedFrom) {
    index_.emplace(text->bytes, at);
  }
}

bool Mapping::erase(const Value& key) {
  const std::size_t at = position(key);
  if (at == entries_.size()) return false;
  if (!key.is_text()) --other_keys_;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(at));
  make_index();
  return true;
}

}  // namespace switchyard::jinja
