#include "core/graph_arena.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/free_blocks.h"
#include "core/gpu.h"
#include "core/graph_recording.h"

namespace switchyard::gpu {

struct GraphArena::State {
  explicit State(Device& of) : device(of) {}
  Device& device;
  FreeBlocks computation_blocks, communication_blocks;  // by the stream that allocates
  std::atomic<std::size_t> bytes{0};
  bool closed = false;  // guarded by the mutex of ArenaBlocks
};

namespace {

thread_local GraphArena* arena_of_thread = nullptr;

[[gnu::noinline]] GraphArena* exchange_arena(GraphArena* arena) {
  return std::exchange(arena_of_thread, arena);
}
[[gnu::noinline]] GraphArena* used_arena() {
  return arena_of_thread;
}

// Every block of every arena, free or not, and whose it is.
struct ArenaBlock {
  std::shared_ptr<GraphArena::State> arena;
  std::size_t bytes;
  bool of_communication;
};

struct ArenaBlocks {
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::unordered_map<std::byte*, ArenaBlock> all;
};

ArenaBlocks& arena_blocks() {
  static ArenaBlocks* const instance = new ArenaBlocks;  // never destroyed: tensors may go last
  return *instance;
}

FreeBlocks& free_blocks(GraphArena::State& arena, bool of_communication) {
  return of_communication ? arena.communication_blocks : arena.computation_blocks;
}

std::size_t block_size(std::size_t bytes) {
  return FreeBlocks::rounded(bytes, 512);
}

// While alive, this thread allocates and releases as if there were no arena.
class WithoutArena {
 public:
  WithoutArena() : before_(exchange_arena(nullptr)) {}
  ~WithoutArena() { exchange_arena(before_); }
  WithoutArena(const WithoutArena&) = delete;
  WithoutArena& operator=(const WithoutArena&) = delete;

 private:
  GraphArena* const before_;
};

}  // namespace

GraphArena::GraphArena(Device& device) : state_(std::make_shared<State>(device)) {
  CHECK(device.is_gpu() && !device.is_abstract(), "an arena of the device {}", device.name());
}

GraphArena::~GraphArena() {
  ArenaBlocks& blocks = arena_blocks();
  std::vector<std::pair<std::byte*, std::size_t>> free;
  {
    const std::lock_guard lock(blocks.mutex);
    state_->closed = true;
    for (FreeBlocks* const kept : {&state_->computation_blocks, &state_->communication_blocks}) {
      for (std::byte* const block : kept->take_all()) {
        const auto found = blocks.all.find(block);
        free.emplace_back(block, found->second.bytes);
        blocks.all.erase(found);
      }
    }
  }
  for (const auto& [block, bytes] : free) state_->device.release(block, bytes);
}

std::size_t GraphArena::bytes() const {
  return state_->bytes;
}

GraphArena::Use::Use(GraphArena& arena) : before_(exchange_arena(&arena)) {}

GraphArena::Use::~Use() {
  exchange_arena(before_);
}

std::byte* GraphArena::allocate(Device& device, std::size_t bytes) {
  GraphArena* const arena = used_arena();
  if (arena == nullptr || &arena->state_->device != &device) return nullptr;
  State& state = *arena->state_;
  const bool communicates = OnCommunicationStream::is_on();
  const std::size_t size = block_size(bytes);
  std::byte* block = free_blocks(state, communicates).take(size);
  if (block == nullptr) {
    const WithoutArena outside;
    block = device.allocate(size);
    state.bytes += size;
    ArenaBlocks& blocks = arena_blocks();
    const std::lock_guard lock(blocks.mutex);
    blocks.any = true;
    blocks.all[block] = {arena->state_, size, communicates};
  }
  if (GraphRecording* const recording = GraphRecording::of_thread()) recording->allocated(block);
  return block;
}

bool GraphArena::take_back(std::byte* block) {
  ArenaBlocks& blocks = arena_blocks();
  GraphRecording* const recording = GraphRecording::of_thread();
  if (recording != nullptr) recording->released(block);
  if (!blocks.any) return false;
  ArenaBlock mine;
  {
    const std::lock_guard lock(blocks.mutex);
    const auto found = blocks.all.find(block);
    if (found == blocks.all.end()) return false;
    mine = found->second;
    if (!mine.arena->closed) {
      free_blocks(*mine.arena, mine.of_communication).give(block, mine.bytes);
      return true;
    }
    blocks.all.erase(found);
  }
  mine.arena->device.release(block, mine.bytes);
  return true;
}

}  // namespace switchyard::gpu
