// The files that a save leaves on disk when a system call fails, or at a power cut.
#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "checkpoint/save_testing.h"

namespace switchyard::save_testing {
namespace {

namespace fs = std::filesystem;

bool soaks() {
  return std::getenv("SWITCHYARD_SOAK") != nullptr;
}

// Where no power goes nothing has to be flushed, which takes most of the time.
class UnflushedFiles : public FileSystem {
 public:
  std::size_t direct_bytes() const override { return OutputFile::kBlock; }
  int sync(int) override { return 0; }
};

// Makes one call fail in a chosen way, or write less than it was asked to.
class FaultyFiles : public FileSystem {
 public:
  enum class Fault { no_space, io_error, interrupted, short_write };
  FaultyFiles(std::int64_t at, Fault fault) : at_(at), fault_(fault) {}
  std::int64_t calls() const { return calls_; }

  std::size_t direct_bytes() const override { return OutputFile::kBlock; }
  int open(const std::string& path, int flags) override {
    return fails() ? code() : FileSystem::open(path, flags);
  }
  std::int64_t write_at(int file, const void* from, std::size_t bytes, std::int64_t offset) override {
    if (!fails()) return FileSystem::write_at(file, from, bytes, offset);
    if (fault_ != Fault::short_write) return code();
    return FileSystem::write_at(file, from, (bytes + 1) / 2, offset);
  }
  int resize(int file, std::int64_t bytes) override {
    return fails() ? code() : FileSystem::resize(file, bytes);
  }
  int sync(int) override { return fails() ? code() : 0; }  // no power goes here
  int close(int file) override {
    const int result = FileSystem::close(file);
    return fails() ? code() : result;
  }
  int make_folder(const std::string& path) override {
    return fails() ? code() : FileSystem::make_folder(path);
  }
  int rename(const std::string& from, const std::string& to) override {
    return fails() ? code() : FileSystem::rename(from, to);
  }
  int remove_file(const std::string& path) override {
    return fails() ? code() : FileSystem::remove_file(path);
  }
  int remove_folder(const std::string& path) override {
    return fails() ? code() : FileSystem::remove_folder(path);
  }

 private:
  bool fails() { return calls_++ == at_; }
  // A short write of another call than write is its interruption.
  int code() const { return fault_ == Fault::no_space ? -ENOSPC : fault_ == Fault::io_error ? -EIO : -EINTR; }

  const std::int64_t at_;
  const Fault fault_;
  std::int64_t calls_ = 0;
};

using Faults = FolderTest;

TEST_F(Faults, OfEveryCallLeaveTheCheckpointBefore) {
  using enum FaultyFiles::Fault;
  UnflushedFiles unflushed;
  for (const auto fault : {no_space, io_error, interrupted, short_write}) {
    for (std::int64_t call = 0;; ++call) {
      SCOPED_TRACE("call " + std::to_string(call) + " fault " + std::to_string(static_cast<int>(fault)));
      fs::remove_all(path("runs"));
      fs::create_directory(path("runs"));
      save_small(unflushed, path("runs"), 1, 0);
      save_small(unflushed, path("runs"), 2, 0);
      FaultyFiles files(call, fault);
      std::string error;
      try {
        save_small(files, path("runs"), 3, 2);  // removes checkpoint 1 at its end
      } catch (const Error& e) {
        error = e.what();
        EXPECT_EQ(e.kind(), Error::Kind::runtime);
      }
      const auto found = find_checkpoints(path("runs"));
      ASSERT_GE(found.size(), 2u);
      const CheckpointFolder newest = CheckpointFolder::open(found[0].path);
      expect_small(newest);
      expect_small(CheckpointFolder::open(path("runs/2")));
      if (fault == interrupted || fault == short_write) {
        EXPECT_EQ(error, "");
        EXPECT_EQ(newest.manifest().step, 3);
      } else if (!error.empty()) {
        EXPECT_TRUE(error.starts_with("[checkpoint] cannot ")) << error;
        EXPECT_EQ(error.find('\n'), std::string::npos);
        save_small(unflushed, path("runs"), 3, 2);  // goes well once there is room
        expect_small(CheckpointFolder::open(path("runs/3")));
      }
      if (files.calls() <= call) break;  // no call failed: the save has fewer
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Notes every call, so that any state a power cut may leave can be made from them.
class RecordingFiles : public FileSystem {
 public:
  struct Call {
    enum class Kind { create, write, resize, sync_file, sync_folder, make_folder, rename, remove } kind;
    std::string path, to;  // of a file: as it was called when it was opened
    std::string data;
    std::int64_t offset = 0;  // or size
  };
  std::vector<Call> calls;

  std::size_t direct_bytes() const override { return OutputFile::kBlock; }
  int open(const std::string& path, int flags) override {
    const int file = FileSystem::open(path, flags);
    if (file >= 0) open_[file] = {path, (flags & O_DIRECTORY) != 0};
    if (file >= 0 && (flags & O_CREAT) != 0) calls.push_back({Call::Kind::create, path, "", "", 0});
    return file;
  }
  std::int64_t write_at(int file, const void* from, std::size_t bytes, std::int64_t offset) override {
    calls.push_back(
        {Call::Kind::write, open_[file].first, "", {static_cast<const char*>(from), bytes}, offset});
    return FileSystem::write_at(file, from, bytes, offset);
  }
  int resize(int file, std::int64_t bytes) override {
    calls.push_back({Call::Kind::resize, open_[file].first, "", "", bytes});
    return FileSystem::resize(file, bytes);
  }
  int sync(int file) override {
    const auto& [path, folder] = open_[file];
    calls.push_back({folder ? Call::Kind::sync_folder : Call::Kind::sync_file, path, "", "", 0});
    return 0;  // the model's power goes, not this machine's
  }
  int close(int file) override {
    open_.erase(file);
    return FileSystem::close(file);
  }
  int make_folder(const std::string& path) override {
    const int result = FileSystem::make_folder(path);
    if (result >= 0) calls.push_back({Call::Kind::make_folder, path, "", "", 0});
    return result;
  }
  int rename(const std::string& from, const std::string& to) override {
    calls.push_back({Call::Kind::rename, from, to, "", 0});
    return FileSystem::rename(from, to);
  }
  int remove_file(const std::string& path) override {
    calls.push_back({Call::Kind::remove, path, "", "", 0});
    return FileSystem::remove_file(path);
  }
  int remove_folder(const std::string& path) override {
    const int result = FileSystem::remove_folder(path);
    if (result >= 0) calls.push_back({Call::Kind::remove, path, "", "", 0});
    return result;
  }

 private:
  std::map<int, std::pair<std::string, bool>> open_;
};

// A disk: what runs see, and what of it would survive. A folder's entries and a file's bytes survive by fsync
// of that folder or file; of what came after the last one, any part may survive as well.
class DiskModel {
 public:
  using Call = RecordingFiles::Call;

  explicit DiskModel(const std::string& root) : root_(std::make_shared<Node>()), root_path_(root) {
    root_->folder = true;
  }

  void apply(const Call& call) {
    using enum Call::Kind;
    switch (call.kind) {
      case create: {
        auto& entries = find(parent(call.path))->entries;
        const std::string name = last(call.path);
        if (entries.contains(name)) {
          edit(*entries[name], {Edit::size, 0, ""});
        } else {
          entries[name] = std::make_shared<Node>();
          change(*find(parent(call.path)), name);
        }
        break;
      }
      case make_folder: {
        const auto made = std::make_shared<Node>();
        made->folder = true;
        find(parent(call.path))->entries[last(call.path)] = made;
        change(*find(parent(call.path)), last(call.path));
        break;
      }
      case write:
        edit(*find(call.path), {Edit::bytes, call.offset, call.data});
        break;
      case resize:
        edit(*find(call.path), {Edit::size, call.offset, ""});
        break;
      case sync_file: {
        Node& node = *find(call.path);
        node.durable = node.content;
        node.edits.clear();
        break;
      }
      case sync_folder: {
        Node& node = *find(call.path);
        node.durable_entries = node.entries;
        node.changes.clear();
        break;
      }
      case rename: {
        Node& from = *find(parent(call.path));
        Node& to = *find(parent(call.to));
        const auto moved = from.entries.at(last(call.path));
        from.entries.erase(last(call.path));
        to.entries[last(call.to)] = moved;
        CHECK(&from == &to);
        from.changes.push_back({{last(call.path), nullptr}, {last(call.to), moved}});  // both or none
        break;
      }
      case remove:
        find(parent(call.path))->entries.erase(last(call.path));
        change(*find(parent(call.path)), last(call.path));
        break;
    }
  }

  // Writes what a power cut leaves to `folder`; `survives` decides about each thing that was not flushed.
  void survive(const std::string& folder, const std::function<bool()>& survives) const {
    write_node(*root_, folder, survives);
  }

 private:
  struct Edit {
    enum Kind { bytes, size } kind;
    std::int64_t at;
    std::string data;
  };
  struct Node;
  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  using Change = std::vector<std::pair<std::string, std::shared_ptr<Node>>>;  // null: the name goes
  struct Node {
    bool folder = false;
    std::string content, durable;
    std::vector<Edit> edits;  // since the last fsync
    Entries entries, durable_entries;
    std::vector<Change> changes;
  };

  static std::string parent(const std::string& path) { return fs::path(path).parent_path().string(); }
  static std::string last(const std::string& path) { return fs::path(path).filename().string(); }

  std::shared_ptr<Node> find(const std::string& path) const {
    std::shared_ptr<Node> node = root_;
    for (const fs::path& part : fs::path(path).lexically_relative(root_path_)) {
      if (part != ".") node = node->entries.at(part.string());
    }
    return node;
  }
  static void play(std::string& content, const Edit& edit) {
    if (edit.kind == Edit::size) {
      content.resize(static_cast<std::size_t>(edit.at), '\0');
      return;
    }
    const auto end = static_cast<std::size_t>(edit.at) + edit.data.size();
    if (content.size() < end) content.resize(end, '\0');
    content.replace(static_cast<std::size_t>(edit.at), edit.data.size(), edit.data);
  }
  static void edit(Node& node, Edit edit) {
    play(node.content, edit);
    node.edits.push_back(std::move(edit));
  }
  static void change(Node& folder, const std::string& name) {
    const auto now = folder.entries.find(name);
    folder.changes.push_back({{name, now == folder.entries.end() ? nullptr : now->second}});
  }
  static void write_node(const Node& node, const std::string& path, const std::function<bool()>& survives) {
    if (!node.folder) {
      std::string content = node.durable;
      for (const Edit& e : node.edits) {
        if (survives()) play(content, e);
      }
      write_bytes(path, content);
      return;
    }
    fs::create_directory(path);
    Entries entries = node.durable_entries;
    for (const Change& change : node.changes) {
      if (!survives()) continue;
      for (const auto& [name, to] : change) {
        if (to == nullptr)
          entries.erase(name);
        else
          entries[name] = to;
      }
    }
    for (const auto& [name, child] : entries) write_node(*child, path + "/" + name, survives);
  }

  std::shared_ptr<Node> root_;
  std::string root_path_;
};

using PowerLoss = FolderTest;

// Three saves of a run that keeps one checkpoint; the power goes after any of their calls. Once the first
// save is done there is always a whole checkpoint, and nothing that looks like one is not.
TEST_F(PowerLoss, LeavesAWholeCheckpointAtEveryPoint) {
  RecordingFiles files;
  fs::create_directory(path("run"));
  std::vector<std::size_t> done;  // calls after each save
  for (const std::int64_t step : {1, 2, 3}) {
    save_small(files, path("run"), step, 1, 400);
    done.push_back(files.calls.size());
  }
  // Nothing not flushed survives; all of it does; or any part.
  const int parts = soaks() ? 30 : 2;
  std::mt19937 random(11);
  DiskModel disk(path("run"));
  int states = 0;
  for (std::size_t call = 0; call <= files.calls.size(); ++call) {
    for (int variant = 0; variant < 2 + parts; ++variant) {
      SCOPED_TRACE("after call " + std::to_string(call) + ", variant " + std::to_string(variant));
      fs::remove_all(path("left"));
      disk.survive(path("left"), [&] { return variant == 1 || (variant > 1 && random() % 2 == 0); });
      ++states;
      const auto found = find_checkpoints(path("left"));
      std::int64_t newest = 0;
      for (const FoundCheckpoint& each : found) {
        std::string error;
        try {
          const CheckpointFolder checkpoint = CheckpointFolder::open(each.path);
          expect_small(checkpoint);
          newest = std::max(newest, checkpoint.manifest().step);
        } catch (const Error& e) {  // being removed: a part of it is gone, which is seen
          error = e.what();
        }
      }
      for (std::size_t save = 0; save < done.size(); ++save) {
        if (call >= done[save]) {
          EXPECT_GE(newest, static_cast<std::int64_t>(save) + 1);
        }
      }
      ASSERT_FALSE(HasFailure());
    }
    if (call < files.calls.size()) disk.apply(files.calls[call]);
  }
  if (soaks()) {
    EXPECT_GE(states, 2000);
  }
  RecordProperty("states", states);
}

// The model can tell a save that flushes too little.
TEST_F(PowerLoss, AMissingFlushIsNoticed) {
  RecordingFiles files;
  fs::create_directory(path("run"));
  save_small(files, path("run"), 1, 1, 400);
  using enum RecordingFiles::Call::Kind;
  for (const auto kind : {sync_file, sync_folder}) {
    DiskModel disk(path("run"));
    for (const auto& call : files.calls) {
      if (call.kind != kind) disk.apply(call);
    }
    fs::remove_all(path("left"));
    disk.survive(path("left"), [] { return false; });
    bool whole = false;
    for (const FoundCheckpoint& each : find_checkpoints(path("left"))) {
      try {
        CheckpointFolder::open(each.path).prove();
        whole = true;
      } catch (const Error&) {
      }
    }
    EXPECT_FALSE(whole);
  }
}

}  // namespace
}  // namespace switchyard::save_testing
