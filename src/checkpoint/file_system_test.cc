// Writes that bypass the page cache: the same bytes for any split, and on file systems without support.
#include "checkpoint/file_system.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "checkpoint/save_testing.h"

namespace switchyard {
namespace {

using save_testing::FolderTest;
using save_testing::read_bytes;

constexpr std::size_t kBlock = OutputFile::kBlock;

// Counts the bytes that go past the page cache; may be one that has no such way.
class DirectFiles : public FileSystem {
 public:
  enum class Refuses { nothing, open, write };
  explicit DirectFiles(Refuses refuses) : refuses_(refuses) {}
  std::int64_t direct_written = 0;

  std::size_t direct_bytes() const override { return kBlock; }
  int open(const std::string& path, int flags) override {
    const bool direct = (flags & O_DIRECT) != 0;
    if (direct && refuses_ == Refuses::open) return -EINVAL;
    const int file = FileSystem::open(path, flags);
    if (direct && file >= 0) direct_.insert(file);
    return file;
  }
  std::int64_t write_at(int file, const void* from, std::size_t bytes, std::int64_t offset) override {
    const bool direct = direct_.contains(file);
    if (direct && refuses_ == Refuses::write) return -EINVAL;
    const std::int64_t written = FileSystem::write_at(file, from, bytes, offset);
    if (direct && written > 0) direct_written += written;
    return written;
  }
  int close(int file) override {
    direct_.erase(file);
    return FileSystem::close(file);
  }

 private:
  const Refuses refuses_;
  std::set<int> direct_;
};

constexpr DirectFiles::Refuses kRefusals[] = {DirectFiles::Refuses::nothing, DirectFiles::Refuses::open,
                                              DirectFiles::Refuses::write};

// Not on every file system.
bool can_write_directly(const std::string& path) {
  const int file = FileSystem::real().open(path, O_WRONLY | O_DIRECT);
  if (file >= 0) FileSystem::real().close(file);
  return file >= 0;
}

using Direct = FolderTest;

TEST_F(Direct, PartsOfAFileInAnyOrder) {
  constexpr std::size_t kBytes = 40 * kBlock + 123;
  std::mt19937 random(3);
  for (const auto refuses : kRefusals) {
    std::vector<std::byte> memory(kBytes + 3 * kBlock);
    for (std::byte& each : memory) each = static_cast<std::byte>(random());
    // The file's byte 0, as far behind a block as in the file, or elsewhere.
    for (const std::size_t shift : {std::size_t{0}, std::size_t{8}}) {
      const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
      const std::byte* content = memory.data() + (kBlock - address % kBlock) % kBlock + shift;
      std::vector<std::size_t> cuts{0, kBytes};
      for (int i = 0; i < 6; ++i) cuts.push_back(random() % kBytes);
      std::sort(cuts.begin(), cuts.end());
      std::vector<std::size_t> order(cuts.size() - 1);
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      DirectFiles files(refuses);
      OutputFile file(files, path("x"), OutputFile::Mode::create);
      file.resize(static_cast<std::int64_t>(kBytes));
      for (const std::size_t i : order)
        file.write_at(content + cuts[i], cuts[i + 1] - cuts[i], static_cast<std::int64_t>(cuts[i]));
      file.sync();
      file.close();
      const std::string got = read_bytes(path("x"));
      ASSERT_EQ(got.size(), kBytes);
      EXPECT_EQ(std::memcmp(got.data(), content, kBytes), 0);
      if (refuses != DirectFiles::Refuses::nothing || shift != 0) {
        EXPECT_EQ(files.direct_written, 0);
      } else if (can_write_directly(path("x"))) {
        EXPECT_GT(files.direct_written, 0);
      }
    }
  }
}

// More than the writer's buffer, tensors of odd sizes, in pieces that follow each other and that do not.
TEST_F(Direct, LargeSaves) {
  const std::vector<StoredTensor> tensors{{"a", DType::bf16, {1025, 2047}, false},
                                          {"b", DType::f32, {3}, false},
                                          {"c", DType::bf16, {3001, 2049}, false},
                                          {"d", DType::f32, {700, 999}, true}};
  const CheckpointLayout layout(tensors);
  for (const auto refuses : kRefusals) {
    DirectFiles files(refuses);
    const SavePlace place{path(), "1"};
    create_files(files, place, layout);
    PieceWriter writer(files, place, layout);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor tensor = save_testing::content_of(tensors[i], 1);
      std::vector<Piece> pieces;
      std::int64_t at = 0;
      for (const Box& box : boxes_of_range(whole_box(tensor.shape()), 0, tensor.size(), 1 << 20)) {
        pieces.push_back({box, tensor.raw() + static_cast<std::size_t>(at) * size_of(tensor.dtype())});
        at += num_elements(box.shape);
      }
      writer.write(i, pieces);
    }
    writer.finish();
    commit(files, place, layout, save_testing::small_manifest(1), writer.chunks(), {});
    const CheckpointFolder checkpoint = CheckpointFolder::open(path("1"));
    checkpoint.prove();
    for (const StoredTensor& stored : tensors) {
      const Tensor want = save_testing::content_of(stored, 1), got = checkpoint.read(stored.name);
      EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0) << stored.name;
    }
  }
}

}  // namespace
}  // namespace switchyard
