// Measures a checkpoint's write to disk against plain files of the same sizes, in turns.
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "bench/cases.h"
#include "bench/random_tensor.h"
#include "checkpoint/save.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTensorBytes = std::int64_t{16} << 20;
constexpr std::int64_t kWriteBytes = std::int64_t{8} << 20;

// All tensors share one buffer: the benchmark measures the way to the disk.
struct State {
  std::vector<StoredTensor> tensors;
  Tensor memory;
};

State make_state(ThreadPool& pool, std::int64_t bytes) {
  State state;
  const Shape shape{kTensorBytes / 4096 / 2, 4096};
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, bytes / kTensorBytes); ++i)
    state.tensors.push_back({"tensor." + std::to_string(i), DType::bf16, shape});
  state.memory = random_tensor(pool, DType::bf16, shape, 1);
  return state;
}

// A folder of its own that goes with it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent)
      : path_(parent + "/.switchyard-bench-" + std::to_string(::getpid())) {
    std::error_code error;
    if (!fs::create_directory(path_, error))
      fail_usage("[bench] checkpoint folder={}: cannot be written: {}", parent,
                 error ? error.message() : "a file is in the way");
  }
  ~ScratchFolder() { clear(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  void clear() const {
    std::error_code error;
    fs::remove_all(path_, error);
  }

 private:
  std::string path_;
};

// Writes as most programs do: into the page cache.
class PageCacheFiles : public FileSystem {
 public:
  std::size_t direct_bytes() const override { return std::numeric_limits<std::size_t>::max(); }
};

void write_plain(const std::string& folder, const CheckpointLayout& layout, const Tensor& memory) {
  PageCacheFiles files;
  make_folder(files, folder);
  for (const CheckpointLayout::File& file : layout.files()) {
    OutputFile out(files, folder + "/" + file.name, OutputFile::Mode::create);
    for (std::int64_t at = 0; at < file.bytes; at += kWriteBytes)
      out.write_at(memory.raw(), static_cast<std::size_t>(std::min(kWriteBytes, file.bytes - at)), at);
    out.sync();
    out.close();
  }
  sync_folder(files, folder);
}

void write_checkpoint(const std::string& folder, const State& state) {
  make_folder(FileSystem::real(), folder);
  CheckpointWriter writer(FileSystem::real(), {folder, "0"}, state.tensors);
  for (const StoredTensor& tensor : state.tensors) writer.write(tensor.name, state.memory);
  writer.commit({});
}

std::vector<Measurement> measure_checkpoint(Bench& bench, const std::string& folder, std::int64_t bytes) {
  const State state = make_state(bench.pool, bytes);
  const CheckpointLayout layout(state.tensors);
  const ScratchFolder scratch(folder);
  std::vector<double> plain, checkpoint;
  const auto time_of = [&](const std::function<void(const std::string&)>& write) {
    scratch.clear();
    make_folder(FileSystem::real(), scratch.path());
    ::sync();  // what others left, and what was just removed
    const double begin = now();
    write(scratch.path() + "/files");
    return now() - begin;
  };
  for (const double begin = now(); plain.size() < 3 || now() - begin < bench.budget;) {
    plain.push_back(time_of([&](const std::string& path) { write_plain(path, layout, state.memory); }));
    checkpoint.push_back(time_of([&](const std::string& path) { write_checkpoint(path, state); }));
  }
  std::vector<Measurement> both;
  for (const auto& [kind, seconds] :
       {std::pair("plain_files", &plain), std::pair("checkpoint", &checkpoint)}) {
    Measurement m;
    m.name = "checkpoint";
    m.shape = {{"kind", kind}, {"files", layout.files().size()}};
    for (const CheckpointLayout::File& file : layout.files()) m.bytes += static_cast<double>(file.bytes);
    m.time = timing_of(*seconds);
    both.push_back(std::move(m));
  }
  both[1].more["fraction_of_disk"] = both[0].time.seconds / both[1].time.seconds;
  return both;
}

}  // namespace

std::vector<Key> checkpoint_keys() {
  return {{"mib", "2048", "bytes of weights and optimizer state, in MiB"},
          {"folder", ".", "where to write, on the disk to be measured"}};
}

std::vector<Job> checkpoint_jobs(const Keys& keys) {
  const std::int64_t bytes = keys.integer("mib") << 20;
  const std::string folder = keys.text("folder");
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) fail_usage("[bench] checkpoint folder={}: {}", folder, error.message());
  if (space.available < static_cast<std::uintmax_t>(bytes) + (std::uintmax_t{64} << 20))
    fail_usage("[bench] checkpoint mib={}: {} MiB are free in folder={}", bytes >> 20, space.available >> 20,
               folder);
  return {{"checkpoint", static_cast<double>(kTensorBytes),
           [bytes, folder](Bench& bench) { return measure_checkpoint(bench, folder, bytes); }}};
}

}  // namespace switchyard::bench
