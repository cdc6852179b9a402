// Stores one object per process and key: implements Communicator::shared.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace switchyard {

class SharedObjects {
 public:
  // Returns the object under `key`; the first caller makes it while the others wait.
  std::shared_ptr<void> get(const std::string& key, const std::function<std::shared_ptr<void>()>& make) {
    Entry* entry = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      auto& place = entries_[key];
      if (!place) place = std::make_unique<Entry>();
      entry = place.get();
    }
    const std::scoped_lock lock(entry->mutex);
    if (!entry->value) entry->value = make();
    return entry->value;
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<void> value;
  };
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace switchyard
