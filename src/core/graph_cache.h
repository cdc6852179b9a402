// GraphCache: runs a function as a graph (core/graph.h) from the third time on. A key names all that the
// recorded work depends on besides the contents of memory: shapes, counts, options, addresses.
//
// The first run of a key is eager, which loads kernels and fills the arena; the second is recorded and
// launched; later ones are launched. A key whose recording fails stays eager, with one line in the log. The
// cache holds some graphs: the one that was not used for the longest time goes. SWITCHYARD_GRAPHS=off makes
// all runs eager. So does a trace of the kernels' times (core/stream_log.h): kernels of a graph have none.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "core/graph.h"

namespace switchyard::gpu {

// True unless SWITCHYARD_GRAPHS is `off`. Error(usage) for a value other than `on` and `off`.
bool graphs_are_on();

class GraphCache {
 public:
  static constexpr std::size_t kGraphs = 8;

  // For a GPU, real or emulated. `what`, for the log: "decode". `most`: graphs that are held.
  // Error(usage) as from graphs_are_on().
  GraphCache(Device& device, std::string what, std::size_t most = kGraphs);

  enum class Way { eager, recorded, replayed };

  // Runs `body` or the graph made of it, and returns what `body` returned when it ran last: handles to
  // tensors whose contents are now those of this run. They stay in place until the key's graph goes. `body`
  // is as for Graph::record; it may run here, be recorded here, or both where a recording fails.
  template <typename Output>
  Output run(const std::string& key, const std::function<Output()>& body) {
    const std::shared_ptr<void> kept =
        run_kept(key, [&]() -> std::shared_ptr<void> { return std::make_shared<Output>(body()); });
    return *static_cast<const Output*>(kept.get());
  }

  // Forgets all keys and their graphs: what they read at its address is gone.
  void clear() { entries_.clear(); }

  Way last_way() const { return last_; }                       // of the last run
  std::size_t graphs() const;                                  // held now
  std::size_t arena_bytes() const { return arena_->bytes(); }  // of the device, held for all graphs
  const std::string& reason() const { return reason_; }        // why the last recording failed; "": none

 private:
  enum class State { warm, recorded, refused };
  struct Entry {
    std::string key;
    State state = State::warm;
    std::unique_ptr<Graph> graph;
    std::shared_ptr<void> output;
  };
  using Body = std::function<std::shared_ptr<void>()>;

  std::shared_ptr<void> run_kept(const std::string& key, const Body& body);
  std::shared_ptr<void> run_eagerly(const Body& body);
  void record(Entry& entry, const Body& body);
  void make_room();

  Device& device_;
  const std::string what_;
  const std::size_t most_;
  const bool on_;
  const std::shared_ptr<GraphArena> arena_;  // outlives the entries
  std::list<Entry> entries_;                 // the last used first
  Way last_ = Way::eager;
  std::string reason_;
};

}  // namespace switchyard::gpu
