// Graph: the work of a GPU that a function issues, recorded once and launched as a whole many times. A launch
// takes the host as long as a single kernel, so the GPU does not wait for the host between small kernels.
//
// On CUDA the stream is captured (CUDA's programming guide, "CUDA Graphs"); on an emulated GPU every kernel,
// move and fill is appended to a list, which a launch goes through. Arguments of kernels, addresses among
// them, are those of the recording. So inputs are written to fixed addresses before each launch, and what the
// body allocates comes from an arena (core/graph_arena.h).
//
// While a graph is recorded, nothing runs: the host can neither read nor write the device's memory, nor wait.
// And the body must not release memory that it did not allocate. record() reports such mistakes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/graph_arena.h"
#include "core/graph_recording.h"

namespace switchyard::gpu {

class Graph {
 public:
  // `device` is a GPU, real or emulated.
  Graph(Device& device, std::shared_ptr<GraphArena> arena);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Records what `body` issues on this thread; nothing of it runs. Returns why there is no graph, in one
  // line; empty when there is. To be called once. `body` must have run before on the same arena (its kernels
  // are then loaded, and its blocks there), and must not wait for other ranks.
  std::string record(const std::function<void()>& body);
  // Issues the recorded work once, in the order of the computation stream; returns before it is done.
  void launch() const;
  std::int64_t kernels() const { return kernels_; }

 private:
  Device& device_;
  const std::shared_ptr<GraphArena> arena_;
  std::vector<GraphRecording::Work> work_;  // of an emulated GPU
  std::shared_ptr<void> executable_;        // of CUDA
  std::int64_t kernels_ = 0;
};

// The kernels that all launches of all graphs of this process have run.
std::int64_t kernels_of_graphs();

// Stream capture: core/cuda/graph.cc, and core/no_cuda/graph.cc of a build without CUDA.
namespace capture {
void begin();
struct Captured {
  std::shared_ptr<void> executable;  // null: there is none
  std::int64_t kernels = 0;
  std::string reason;
};
Captured end();
void abandon();  // instead of end()
void launch(void* executable);
}  // namespace capture

}  // namespace switchyard::gpu
