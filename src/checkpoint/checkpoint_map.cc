// Tensors of a checkpoint that are used directly from the mapped file.
#include <xxhash.h>

#include <atomic>
#include <exception>
#include <thread>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/layout.h"
#include "core/cores.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

// A cache line: kernels may want rows to begin on one.
constexpr std::uintptr_t kLineBytes = 64;

// The elements [begin, end) of a tensor. run_of() returns those of a box, or nothing if they have gaps.
struct ElementRun {
  std::int64_t begin = 0, end = 0;
};
std::optional<ElementRun> run_of(const Shape& tensor, const Box& box) {
  ElementRun run;
  int runs = 0;
  for_runs(tensor, box, [&](std::int64_t from, std::int64_t, std::int64_t count) {
    run = {from, from + count};
    ++runs;
  });
  if (runs != 1) return std::nullopt;
  return run;
}

// Calls body(i) for i in [0, count) on new threads. Rethrows the first exception once all threads ended.
void for_each_by_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> others;
  const std::size_t threads = std::min(count, static_cast<std::size_t>(usable_cores()));
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace

void CheckpointFolder::verify_mapped(const ManifestTensor& tensor, std::size_t index) const {
  const Chunk& chunk = tensor.chunks[index];
  const std::size_t element = size_of(tensor.dtype);
  const auto bytes = static_cast<std::size_t>(num_elements(chunk.box.shape)) * element;
  verified_->once(first_chunks_.at(tensor.name) + index, [&]() -> VerifiedChunks::Content {
    const std::optional<ElementRun> run = run_of(tensor.shape, chunk.box);
    if (!run) {  // written by a rank whose block has gaps in the file
      std::vector<std::byte> gathered(bytes);
      read_chunk(tensor, chunk, gathered.data());
      return nullptr;
    }
    const std::span<const std::byte> file = files_[tensor.file]->map().bytes;
    const auto at =
        static_cast<std::size_t>(offsets_.at(tensor.name)) + static_cast<std::size_t>(run->begin) * element;
    if (XXH3_64bits(file.data() + at, bytes) != chunk.xxh3) fail_damaged(tensor, chunk);
    return nullptr;
  });
}

Tensor CheckpointFolder::map_parameter(const std::string& parameter, const Shape& shape,
                                       const Box& box) const {
  const StoredParameter stored = stored_parameter(parameter, shape);
  CHECK(inside(box, shape), "{} of {} {}", to_string(box), parameter, to_string(shape));
  if (num_elements(box.shape) == 0) return {};
  Box each = box;  // the part of one stored tensor
  std::size_t first = 0, count = 1;
  if (stored.is_stack) {
    first = static_cast<std::size_t>(box.start[0]);
    count = static_cast<std::size_t>(box.shape[0]);
    each = {{box.start.begin() + 1, box.start.end()}, {box.shape.begin() + 1, box.shape.end()}};
  }
  const std::optional<ElementRun> run = run_of(stored.shape, each);
  if (!run || (count > 1 && each != whole_box(stored.shape))) return {};
  const ManifestTensor& begin = tensor(stored.names[first]);
  const auto element = static_cast<std::int64_t>(size_of(begin.dtype));
  const std::int64_t bytes = num_elements(stored.shape) * element;
  struct Touched {
    const ManifestTensor* tensor;
    std::size_t chunk;
  };
  std::vector<Touched> touched;
  for (std::size_t i = 0; i < count; ++i) {
    const ManifestTensor& part = tensor(stored.names[first + i]);
    const bool follows =
        part.file == begin.file && part.dtype == begin.dtype && part.shape == stored.shape &&
        offsets_.at(part.name) == offsets_.at(begin.name) + static_cast<std::int64_t>(i) * bytes;
    if (!follows) return {};
    for (std::size_t c = 0; c < part.chunks.size(); ++c) {
      if (num_elements(intersection(part.chunks[c].box, each).shape) > 0) touched.push_back({&part, c});
    }
  }
  const MappedFile& file = files_[begin.file]->map();
  const std::span<const std::byte> memory =
      file.bytes.subspan(static_cast<std::size_t>(offsets_.at(begin.name) + run->begin * element),
                         static_cast<std::size_t>(num_elements(box.shape) * element));
  const std::uintptr_t wanted = is_packed(begin.dtype) ? kLineBytes / 4 : kLineBytes;  // blocks: 16 bytes
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % wanted != 0) return {};
  for_each_by_threads(touched.size(),
                      [&](std::size_t i) { verify_mapped(*touched[i].tensor, touched[i].chunk); });
  return {begin.dtype, box.shape, std::make_shared<Buffer>(file.memory, memory)};
}

}  // namespace switchyard
