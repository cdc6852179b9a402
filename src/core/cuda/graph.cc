// Stream capture by CUDA's runtime.
#include "core/graph.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "core/cuda/streams.h"
#include "core/error.h"

namespace switchyard::gpu::capture {
namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_runtime("[graph] {}: {}", what, cudaGetErrorString(status));
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  require(cudaStreamIsCapturing(stream, &status), "cannot ask for a stream's capture");
  return status != cudaStreamCaptureStatusNone;
}

// A capture ends on the stream where it began, after the others that it went to have come back to it.
void join(cudaStream_t into, cudaStream_t from) {
  if (!is_captured(from)) return;
  cudaEvent_t event = nullptr;
  require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cannot make an event");
  const cudaError_t recorded = cudaEventRecord(event, from);
  const cudaError_t waits = recorded == cudaSuccess ? cudaStreamWaitEvent(into, event) : recorded;
  static_cast<void>(cudaEventDestroy(event));
  require(waits, "cannot join a stream");
}

std::int64_t count_kernels(cudaGraph_t graph) {
  std::size_t count = 0;
  require(cudaGraphGetNodes(graph, nullptr, &count), "cannot count nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) require(cudaGraphGetNodes(graph, nodes.data(), &count), "cannot get nodes");
  std::int64_t kernels = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    require(cudaGraphNodeGetType(node, &type), "cannot ask for a node's type");
    kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
  }
  return kernels;
}

}  // namespace

void begin() {
  require(cudaStreamBeginCapture(streams().computation, cudaStreamCaptureModeThreadLocal),
          "cannot begin a capture");
}

Captured end() {
  const Streams all = streams();
  cudaGraph_t graph = nullptr;
  try {
    join(all.computation, all.communication);
    join(all.computation, all.transfers);
    require(cudaStreamEndCapture(all.computation, &graph), "cannot end a capture");
    Captured captured{.executable = nullptr, .kernels = count_kernels(graph), .reason = ""};
    cudaGraphExec_t executable = nullptr;
    require(cudaGraphInstantiate(&executable, graph, 0), "cannot make a graph");
    captured.executable = {executable, [](void* made) {
                             static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(made)));
                           }};
    require(cudaGraphDestroy(graph), "cannot destroy a graph");
    return captured;
  } catch (const Error& error) {
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    abandon();
    return {.executable = nullptr, .kernels = 0, .reason = error.what()};
  }
}

void abandon() {
  const Streams all = streams();
  cudaGraph_t graph = nullptr;
  if (is_captured(all.computation)) static_cast<void>(cudaStreamEndCapture(all.computation, &graph));
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());  // which the capture's end has set
}

void launch(void* executable) {
  require(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), streams().computation),
          "cannot launch a graph");
}

}  // namespace switchyard::gpu::capture
