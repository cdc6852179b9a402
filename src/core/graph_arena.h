// GraphArena: the memory of recorded graphs (core/graph.h). A recorded kernel keeps the addresses of its
// arguments, so the blocks behind them must not go to anybody else while the graph lives. What a thread
// allocates while it uses an arena comes from the arena's free blocks, and goes back there when it is
// released, whoever releases it and whenever. A miss takes a new block from the device for good.
//
// Graphs of one owner share an arena, as they run one after the other: a graph's temporary blocks are free
// when it ends. What outlives a graph's run is held by its owner, as any tensor.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"

namespace switchyard::gpu {

class GraphArena {
 public:
  explicit GraphArena(Device& device);  // of a GPU, real or emulated
  // Blocks that somebody still holds go back to the device when they are released.
  ~GraphArena();
  GraphArena(const GraphArena&) = delete;
  GraphArena& operator=(const GraphArena&) = delete;

  std::size_t bytes() const;  // taken from the device so far, free blocks included

  // While alive, this thread allocates the device's memory from the arena.
  class Use {
   public:
    explicit Use(GraphArena& arena);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    GraphArena* const before_;
  };

  // For Device: a block of the arena that this thread uses; null when it uses none for this device.
  static std::byte* allocate(Device& device, std::size_t bytes);
  // For Device: takes a block back that is of any arena. False: it is of none.
  static bool take_back(std::byte* block);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace switchyard::gpu
