// GraphRecording: what a thread that records a graph (core/graph.h) tells of its work. For the code that
// starts work on a GPU, and for the code that may not run while a graph is recorded.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace switchyard::gpu {

class GraphRecording {
 public:
  static GraphRecording* of_thread();  // null: this thread records nothing
  // Sets this thread's recording and returns the previous one.
  static GraphRecording* exchange_of_thread(GraphRecording* recording);

  // On an emulated GPU: work that each launch of the graph does again, in this order.
  struct Work {
    std::function<void()> run;
    bool is_kernel = false;
  };
  void add(std::function<void()> run) { work.push_back({std::move(run), false}); }
  void add_kernel(std::function<void()> run) { work.push_back({std::move(run), true}); }

  // Blocks of the arena. A block from outside that is released now may be somebody else's when the graph is
  // launched: `mistake` then says so.
  void allocated(std::byte* block) { blocks.insert(block); }
  void released(std::byte* block);

  std::vector<Work> work;
  std::unordered_set<std::byte*> blocks;
  std::string mistake;
};

// Does `body` now, or records it when this thread records a graph of an emulated GPU.
template <typename Body>
void do_or_record(const Body& body) {
  if (GraphRecording* const recording = GraphRecording::of_thread())
    recording->add(body);
  else
    body();
}

// Error(runtime) while this thread records a graph: a graph cannot hold `what`.
void forbid_in_graph(std::string_view what);

}  // namespace switchyard::gpu
