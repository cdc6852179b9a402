#include "core/graph_cache.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/messages.h"
#include "core/stream_log.h"

namespace switchyard::gpu {
namespace {

// Keys without a graph that are remembered: seen once, or refused.
constexpr std::size_t kOtherKeys = 64;

}  // namespace

bool graphs_are_on() {
  const char* const text = std::getenv("SWITCHYARD_GRAPHS");
  const std::string_view word = text == nullptr ? "on" : text;
  if (word != "on" && word != "off") fail_usage("[graph] SWITCHYARD_GRAPHS={}: expected on or off", word);
  return word == "on";
}

GraphCache::GraphCache(Device& device, std::string what, std::size_t most)
    : device_(device),
      what_(std::move(what)),
      most_(most),
      on_(graphs_are_on()),
      arena_(std::make_shared<GraphArena>(device)) {}

std::size_t GraphCache::graphs() const {
  return static_cast<std::size_t>(std::ranges::count(entries_, State::recorded, &Entry::state));
}

std::shared_ptr<void> GraphCache::run_kept(const std::string& key, const Body& body) {
  last_ = Way::eager;
  if (!on_ || StreamLog::of_thread() != nullptr) return body();
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) {
    entries_.push_front({.key = key, .state = State::warm, .graph = nullptr, .output = nullptr});
    make_room();
    return run_eagerly(body);
  }
  entries_.splice(entries_.begin(), entries_, found);
  Entry& entry = *found;
  if (entry.state == State::warm) record(entry, body);
  if (entry.state == State::refused) return run_eagerly(body);
  entry.graph->launch();
  if (last_ != Way::recorded) last_ = Way::replayed;
  return entry.output;
}

std::shared_ptr<void> GraphCache::run_eagerly(const Body& body) {
  const GraphArena::Use use(*arena_);
  return body();
}

void GraphCache::record(Entry& entry, const Body& body) {
  auto graph = std::make_unique<Graph>(device_, arena_);
  std::shared_ptr<void> output;
  reason_ = graph->record([&] { output = body(); });
  if (!reason_.empty()) {
    entry.state = State::refused;
    say("switchyard: {}: without a graph: {}", what_, reason_);
    return;
  }
  entry.state = State::recorded;
  entry.graph = std::move(graph);
  entry.output = std::move(output);
  last_ = Way::recorded;
  make_room();
}

// Lets the graphs go that are too many, and of the other keys those that are.
void GraphCache::make_room() {
  std::size_t graphs = 0, others = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const bool is_graph = at->state == State::recorded;
    std::size_t& count = is_graph ? graphs : others;
    const bool stays = ++count <= (is_graph ? most_ : kOtherKeys);
    at = stays ? std::next(at) : entries_.erase(at);
  }
}

}  // namespace switchyard::gpu
