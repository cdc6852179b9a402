#include "train/step_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

constexpr int kProgram = 0, kProgress = 1, kKernels = 2, kTransfers = 3;  // thread ids in the file

double microseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-3;
}

bool is_op(const TraceEvent& event) {
  return event.category == "forward" || event.category == "backward" || event.category == "recompute" ||
         event.category == "ahead";
}

std::string to_json(const TraceEvent& event, std::int64_t start, int rank, int thread) {
  std::string args;
  if (event.number >= 0)
    args = fmt::format(R"("{}":{})", event.category == "step" ? "step" : "layer", event.number);
  if (event.bytes >= 0)
    args += fmt::format(R"({}"axis":"{}","where":"{}","bytes":{},"wait_us":{:.3f})", args.empty() ? "" : ",",
                        event.axis, event.where, event.bytes, event.wait_seconds * 1e6);
  return fmt::format(
      R"({{"name":"{}","cat":"{}","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{{}}}}})",
      event.name, event.category, microseconds(event.begin - start), microseconds(event.end - event.begin),
      rank, thread, args);
}

std::string name_event(const char* what, const std::string& name, int rank, int thread) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what, rank,
                     thread, name);
}

}  // namespace

TracedSteps traced_steps(const Config& config, std::int64_t steps) {
  if (config.get_string("profiler").empty()) return {};
  const std::int64_t begin = config.get_int("skip_first_n_steps_for_profiler");
  if (begin >= steps)
    fail_usage(
        "[train] skip_first_n_steps_for_profiler={}: expected less than the {} steps of the run, so that "
        "there "
        "is one to trace",
        begin, steps);
  return {begin, std::min(steps, begin + config.get_int("profiler_steps"))};
}

void StepTrace::before(std::int64_t step) {
  if (!is_traced(step)) return;
  if (step == steps_.begin) {
    context_.comm->barrier(everyone(*context_.comm, "trace"));
    start_ = TraceLog::now();
    if (context_.memory.device().is_gpu()) stream_.emplace(context_.comm->position().layer);
  }
  if (stream_) StreamLog::exchange_of_thread(&*stream_);
  context_.comm->position().trace = &program_;
  context_.comm->trace_progress(&progress_);
}

void StepTrace::after(std::int64_t step) {
  if (!is_traced(step)) return;
  context_.comm->position().trace = nullptr;
  context_.comm->trace_progress(nullptr);
  if (stream_) {
    StreamLog::exchange_of_thread(nullptr);
    stream_->tell(kernels_, transfers_);
  }
  if (step + 1 == steps_.end) write();
}

std::string StepTrace::events() const {
  const int rank = context_.comm->rank();
  const int process = context_.comm->process_of(rank);
  std::vector<std::string> lines{
      name_event("process_name", fmt::format("rank {} (process {})", rank, process), rank, kProgram),
      name_event("thread_name", "program", rank, kProgram)};
  if (!progress_.events().empty()) lines.push_back(name_event("thread_name", "progress", rank, kProgress));
  if (!kernels_.events().empty()) lines.push_back(name_event("thread_name", "kernels", rank, kKernels));
  if (!transfers_.events().empty()) lines.push_back(name_event("thread_name", "transfers", rank, kTransfers));
  for (const auto& [log, thread] : {std::pair(&program_, kProgram), std::pair(&progress_, kProgress),
                                    std::pair(&kernels_, kKernels), std::pair(&transfers_, kTransfers)}) {
    for (const TraceEvent& event : log->events()) lines.push_back(to_json(event, start_, rank, thread));
  }
  return fmt::format("{}", fmt::join(lines, ",\n"));
}

void StepTrace::write() const {
  const std::string own = events();
  Communicator& comm = *context_.comm;
  const ProcessGroup group = everyone(comm, "trace");
  const std::size_t ranks = group.ranks.size();
  const auto size = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> sizes(ranks), none(ranks, 0), sent(ranks, 0), received(ranks, 0),
      places(ranks, 0);
  comm.all_gather(group, host_view(std::span(&size, 1)), host_view(sizes));
  sent[0] = size;
  if (comm.rank() == 0) {
    received = sizes;
    std::exclusive_scan(sizes.begin(), sizes.end(), places.begin(), std::int64_t{0});
  }
  std::string texts(static_cast<std::size_t>(std::reduce(received.begin(), received.end())), ' ');
  comm.ragged_all_to_all(group, host_view(std::span(own)), {none, sent}, host_view(std::span(texts)),
                         {places, received});
  if (comm.rank() != 0) return;
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (std::size_t r = 0; r < ranks; ++r) {
    if (r > 0) text += ",\n";
    text.append(texts, static_cast<std::size_t>(places[r]), static_cast<std::size_t>(sizes[r]));
  }
  write_file_atomic(file_, text + "\n]}\n");
}

nlohmann::json StepTrace::op_times() const {
  struct Time {
    std::int64_t calls = 0, nanoseconds = 0;
  };
  std::map<std::pair<std::string_view, std::string_view>, Time> times;
  // The log receives an event when it ends, so events nested in it come directly before it.
  std::vector<const TraceEvent*> ended;
  for (const TraceEvent& event : program_.events()) {
    if (!is_op(event)) continue;
    Time& time = times[{event.name, event.category}];
    ++time.calls;
    time.nanoseconds += event.end - event.begin;
    for (; !ended.empty() && ended.back()->begin >= event.begin; ended.pop_back())
      time.nanoseconds -= ended.back()->end - ended.back()->begin;
    ended.push_back(&event);
  }
  std::vector<std::pair<std::pair<std::string_view, std::string_view>, Time>> sorted(times.begin(),
                                                                                     times.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.nanoseconds > b.second.nanoseconds; });
  const double steps = static_cast<double>(steps_.end - steps_.begin);
  nlohmann::json result = nlohmann::json::array();
  for (const auto& [key, time] : sorted)
    result.push_back({{"op", std::string(key.first)},
                      {"pass", std::string(key.second)},
                      {"calls", static_cast<double>(time.calls) / steps},
                      {"seconds", static_cast<double>(time.nanoseconds) * 1e-9 / steps}});
  return result;
}

}  // namespace switchyard
