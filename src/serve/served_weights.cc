#include "serve/served_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "chat/bad_request.h"
#include "core/error.h"
#include "core/sha256.h"
#include "engine/own_adapter.h"
#include "texts/steady_seconds.h"

namespace switchyard::serve {
namespace {

namespace fs = std::filesystem;
using chat::BadRequest;

constexpr int kNotFound = 404;

// BadRequest unless the path is at or below one of the folders.
void require_below(const char* field, const std::string& path, const std::vector<std::string>& folders,
                   const char* option) {
  if (folders.empty())
    throw BadRequest(field,
                     fmt::format("{}: this server takes none: start it with {} FOLDER", field, option));
  std::error_code problem;
  const fs::path whole = fs::weakly_canonical(path, problem);
  for (const std::string& folder : folders) {
    const fs::path allowed = fs::weakly_canonical(folder, problem);
    if (std::ranges::mismatch(allowed, whole).in1 == allowed.end()) return;
  }
  throw BadRequest(field, fmt::format("{}: {} is not below a folder of {}", field, path, option));
}

}  // namespace

ServedWeights::ServedWeights(Model model)
    : model_(std::move(model)),
      hash_(weights_hash(model_.path)),
      only_hash_(weights_hash(model_.only_adapter)) {
  for (const NamedAdapter& adapter : model_.adapters) {
    ++serial_;
    named_.push_back(std::make_shared<const TextAdapter>(TextAdapter{
        adapter.name, static_cast<std::int32_t>(serial_), serial_, weights_hash(adapter.folder)}));
    places_.push_back({named_.back(), true});
  }
}

std::shared_ptr<const TextAdapter> ServedWeights::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(named_, name, [](const auto& adapter) { return adapter->name; });
  return found == named_.end() ? nullptr : *found;
}

std::vector<std::shared_ptr<const TextAdapter>> ServedWeights::adapters() const {
  const std::lock_guard lock(mutex_);
  return named_;
}

// The mutex is held.
std::string ServedWeights::fingerprint_of(const TextAdapter* adapter) const {
  Sha256 sum;
  const std::string text = fmt::format("{};{};{};{};{}", SWITCHYARD_VERSION, model_.shapes, hash_, only_hash_,
                                       adapter == nullptr ? "" : adapter->hash);
  sum.add(std::as_bytes(std::span(text)));
  return "fp_" + sum.hex().substr(0, 12);
}

std::string ServedWeights::fingerprint(const TextAdapter* adapter) const {
  const std::lock_guard lock(mutex_);
  return fingerprint_of(adapter);
}

// The mutex is held. 0: all places are taken.
std::int32_t ServedWeights::free_number() const {
  const auto free = std::ranges::find_if(places_, [](const Place& place) { return place.adapter.expired(); });
  const auto at = free - places_.begin();
  return at < model_.places ? static_cast<std::int32_t>(at + 1) : 0;
}

// Hands a change to the model's loop and waits for its end.
void ServedWeights::run(const char* field, const WeightChange& change, RunningTexts running) {
  Waiting waiting{change, running};
  std::unique_lock lock(mutex_);
  if (stopped_) throw BadRequest("", "this server is stopping", "stopping", 503);
  waiting_ = &waiting;
  ended_.wait(lock, [&] { return waiting.done || stopped_; });
  waiting_ = nullptr;
  if (!waiting.done) throw BadRequest("", "this server is stopping", "stopping", 503);
  if (!waiting.problem.empty()) throw BadRequest(field, waiting.problem);
}

std::shared_ptr<const TextAdapter> ServedWeights::load_adapter(const std::string& name,
                                                               const std::string& path, bool in_place) {
  require_below("lora_path", path, model_.adapter_folders, "--adapter-folder");
  const std::lock_guard one(one_change_);
  if (!in_place && find(name) != nullptr)
    throw BadRequest("lora_name",
                     fmt::format("lora_name: {} is loaded; load_inplace=true replaces it", name));
  return change_adapter({"lora_name", "lora_path"}, name, path, RunningTexts::go_on);
}

// one_change_ is held.
std::shared_ptr<const TextAdapter> ServedWeights::change_adapter(const FieldNames& fields,
                                                                 const std::string& name,
                                                                 const std::string& path,
                                                                 RunningTexts running) {
  const auto refuse = [&](const std::string& why) {
    throw BadRequest(fields.name, fmt::format("{}: {}", fields.name, why));
  };
  if (!model_.only_adapter.empty())
    refuse("all texts of this server have the adapter of adapter=FOLDER: start it with adapter=NAME=FOLDER");
  if (name.empty() || std::ranges::count(model_.names, name) > 0)
    refuse(fmt::format("expected another name than the model's, got '{}'", name));
  WeightChange change{.kind = WeightChange::Kind::adapter, .path = path};
  {
    const std::lock_guard lock(mutex_);
    change.serial = ++serial_;
    change.number = free_number();
  }
  if (change.number == 0) refuse(fmt::format("all {} places of lora_slots are taken", model_.places));
  prepare(fields.path, change);
  const auto loaded = std::make_shared<const TextAdapter>(
      TextAdapter{name, change.number, change.serial, weights_hash(path)});
  run(fields.path, change, running);
  const std::lock_guard lock(mutex_);
  std::erase_if(named_, [&](const auto& adapter) { return adapter->name == name; });
  named_.push_back(loaded);
  places_.resize(std::max(places_.size(), static_cast<std::size_t>(change.number)));
  places_[static_cast<std::size_t>(change.number) - 1] = {loaded, true};
  return loaded;
}

void ServedWeights::drop_adapter(const std::string& name) {
  const std::lock_guard one(one_change_);
  const std::lock_guard lock(mutex_);
  if (std::erase_if(named_, [&](const auto& adapter) { return adapter->name == name; }) == 0)
    throw BadRequest("lora_name", fmt::format("lora_name: no adapter is called {}", name), "model_not_found",
                     kNotFound);
}

ServedWeights::Replaced ServedWeights::replace(const std::string& path, RunningTexts running,
                                               const std::string& name) {
  require_below("path", path, model_.weight_folders, "--weights-folder");
  const double begin = steady_seconds();
  if (!fs::exists(path)) throw BadRequest("path", fmt::format("path: {} is not there", path));
  const std::lock_guard one(one_change_);
  const bool adapter = is_adapter(path);
  if (adapter && model_.only_adapter.empty()) {
    std::string of = name;
    if (const auto all = adapters(); of.empty() && all.size() == 1) of = all[0]->name;
    if (of.empty()) throw BadRequest("name", fmt::format("name: {} is an adapter: expected its name", path));
    const auto loaded = change_adapter({"name", "path"}, of, path, running);
    return {loaded->hash, fingerprint(loaded.get()), of, steady_seconds() - begin};
  }
  if (!name.empty()) throw BadRequest("name", "name: expected with the path of an adapter alone");
  WeightChange change{.kind = adapter ? WeightChange::Kind::only_adapter : WeightChange::Kind::weights,
                      .path = path};
  {
    const std::lock_guard lock(mutex_);
    change.serial = ++serial_;
  }
  prepare("path", change);
  const std::string hash = weights_hash(path);
  run("path", change, running);
  if (model_.forget) model_.forget();
  const std::lock_guard lock(mutex_);
  (adapter ? only_hash_ : hash_) = hash;
  return {hash, fingerprint_of(nullptr), "", steady_seconds() - begin};
}

bool ServedWeights::is_adapter(const std::string& path) const {
  try {
    return model_.is_adapter(path);
  } catch (const Error& error) {
    throw BadRequest("path", error.what());
  }
}

void ServedWeights::prepare(const char* field, const WeightChange& change) const {
  try {
    model_.prepare(change);
  } catch (const Error& error) {
    throw BadRequest(field, error.what());
  }
}

// Texts that are to finish are the last ones that begin with the former weights.
std::optional<Loop::Task> ServedWeights::next_task(Inbox& inbox) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || tidying_) return std::nullopt;
  if (waiting_ != nullptr && !waiting_->done) {
    if (waiting_->running == RunningTexts::finish) {
      inbox.hold(true);
      if (inbox.running() > 0) return std::nullopt;
    }
    return Loop::Task{to_text(waiting_->change), waiting_->running == RunningTexts::abort};
  }
  const auto left = std::ranges::find_if(
      places_, [](const Place& place) { return place.taken && place.adapter.expired(); });
  if (left == places_.end()) return std::nullopt;
  of_tidying_ = std::unique_lock(one_change_, std::try_to_lock);
  if (!of_tidying_.owns_lock()) return std::nullopt;
  tidying_ = WeightChange{.serial = ++serial_,
                          .kind = WeightChange::Kind::drop_adapter,
                          .number = static_cast<std::int32_t>(left - places_.begin() + 1)};
  return Loop::Task{to_text(*tidying_)};
}

void ServedWeights::done(const std::string& task, const std::string& problem, Inbox& inbox) {
  inbox.hold(false);
  const std::lock_guard lock(mutex_);
  if (tidying_ && to_text(*tidying_) == task) {
    places_[static_cast<std::size_t>(tidying_->number) - 1].taken = false;
    tidying_.reset();
    of_tidying_.unlock();
    return;
  }
  waiting_->problem = problem;
  waiting_->done = true;
  ended_.notify_all();
}

void ServedWeights::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  ended_.notify_all();
}

}  // namespace switchyard::serve
