#include "core/graph.h"

#include <atomic>
#include <utility>

#include "core/error.h"
#include "core/fence.h"
#include "core/gpu.h"

namespace switchyard::gpu {
namespace {

thread_local GraphRecording* recording_of_thread = nullptr;

std::atomic<std::int64_t> launched_kernels{0};

// While alive, this thread records.
class Recorded {
 public:
  explicit Recorded(GraphRecording& recording)
      : recording_(recording), before_(GraphRecording::exchange_of_thread(&recording)) {
    CHECK(before_ == nullptr, "a graph is recorded inside a graph");
  }
  ~Recorded() { GraphRecording::exchange_of_thread(before_); }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  bool goes_on() const { return GraphRecording::of_thread() == &recording_; }

 private:
  GraphRecording& recording_;
  GraphRecording* const before_;
};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

[[gnu::noinline]] GraphRecording* GraphRecording::of_thread() {
  return recording_of_thread;
}

[[gnu::noinline]] GraphRecording* GraphRecording::exchange_of_thread(GraphRecording* recording) {
  return std::exchange(recording_of_thread, recording);
}

void GraphRecording::released(std::byte* block) {
  if (blocks.contains(block) || !mistake.empty()) return;
  const std::string_view op = running_op();
  mistake = fmt::format("[graph] {}: a graph cannot release memory that it did not allocate",
                        op.empty() ? "between ops" : op);
}

void forbid_in_graph(std::string_view what) {
  if (GraphRecording::of_thread() == nullptr) return;
  const std::string_view op = running_op();
  fail_runtime("[graph] {}: a graph cannot hold {}", op.empty() ? "between ops" : op, what);
}

Graph::Graph(Device& device, std::shared_ptr<GraphArena> arena) : device_(device), arena_(std::move(arena)) {
  CHECK(device_.is_gpu() && !device_.is_abstract(), "a graph of the device {}", device_.name());
}

Graph::~Graph() = default;

std::string Graph::record(const std::function<void()>& body) {
  CHECK(work_.empty() && executable_ == nullptr, "a graph is recorded twice");
  const bool captures = device_.kind() == DeviceKind::cuda;
  GraphRecording recording;
  std::string reason;
  const GraphArena::Use use(*arena_);
  if (captures) capture::begin();
  {
    const Recorded recorded(recording);
    try {
      body();
      CHECK(recorded.goes_on(), "a graph's body waited for other ranks");
    } catch (const Error& error) {
      reason = first_line(error.what());
    } catch (...) {
      if (captures) capture::abandon();
      throw;
    }
  }
  if (reason.empty()) reason = recording.mistake;
  if (!reason.empty()) {
    if (captures) capture::abandon();
    return reason;
  }
  if (captures) {
    capture::Captured captured = capture::end();
    executable_ = std::move(captured.executable);
    kernels_ = captured.kernels;
    return captured.reason;
  }
  work_ = std::move(recording.work);
  for (const GraphRecording::Work& work : work_) kernels_ += work.is_kernel ? 1 : 0;
  return "";
}

void Graph::launch() const {
  forbid_in_graph("another graph");
  launched_kernels += kernels_;
  if (device_.kind() == DeviceKind::cuda) return capture::launch(executable_.get());
  for (const GraphRecording::Work& work : work_) work.run();
}

std::int64_t kernels_of_graphs() {
  return launched_kernels;
}

}  // namespace switchyard::gpu
