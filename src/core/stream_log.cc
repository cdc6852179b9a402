#include "core/stream_log.h"

#include <utility>

#include "core/fence.h"

namespace switchyard {
namespace {

thread_local StreamLog* log_of_thread = nullptr;

gpu::Moment awaited(gpu::Moment moment) {
  moment.wait();
  return moment;
}

}  // namespace

StreamLog::StreamLog(const std::atomic<std::int64_t>& layer)
    : layer_(layer), first_(awaited(gpu::Moment::now())), first_time_(TraceLog::now()) {}

[[gnu::noinline]] StreamLog* StreamLog::exchange_of_thread(StreamLog* log) {
  return std::exchange(log_of_thread, log);
}

[[gnu::noinline]] StreamLog* StreamLog::of_thread() {
  return log_of_thread;
}

void StreamLog::end() {
  kernels_.push_back(
      {running_op(), layer_, gpu::OnCommunicationStream::is_on(), std::move(before_), gpu::Moment::now()});
}

void StreamLog::tell(TraceLog& computation, TraceLog& communication) {
  const auto time_of = [&](const gpu::Moment& moment) {
    return first_time_ + static_cast<std::int64_t>(moment.seconds_since(first_) * 1e9);
  };
  for (const Started& kernel : kernels_) {
    kernel.end.wait();
    TraceEvent event;
    event.name = kernel.op;
    event.category = kernel.communicates ? "transfer" : "kernel";
    event.begin = time_of(kernel.begin);
    event.end = time_of(kernel.end);
    event.number = kernel.layer;
    (kernel.communicates ? communication : computation).add(std::move(event));
  }
  kernels_.clear();
}

}  // namespace switchyard
