#include "convert/resumable_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "core/stopping_point.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJournal = ".conversion.json";
constexpr const char* kWriting = ".writing";

bool is_empty_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) && fs::is_empty(path, error);
}

}  // namespace

SavePlace new_place(const std::string& prefix, const std::string& destination) {
  fs::path path = fs::path(destination).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  const fs::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (path.filename().empty() || path.filename() == "." || path.filename() == "..")
    fail_usage("{} {}: expected the name of a new folder", prefix, destination);
  std::error_code error;
  if (!fs::is_directory(parent, error))
    fail_usage("{} {}: there is no folder {} to put it in", prefix, destination, parent.string());
  return {parent.string(), path.filename().string()};
}

ResumableFolder::ResumableFolder(FileSystem& files, const std::string& destination, const nlohmann::json& job,
                                 const std::string& marker)
    : files_(files), place_(new_place("[convert]", destination)) {
  std::error_code error;
  const std::string journal = job.dump(1) + "\n";
  if (fs::exists(fs::symlink_status(place_.final(), error)) && !is_empty_folder(place_.final())) {
    if (!take_over(journal, marker))
      fail_usage("[convert] {}: exists already; remove it, or name another folder", destination);
  }
  if (!done_) begin(journal);
}

ResumableFolder::~ResumableFolder() {
  if (lock_ >= 0) ::close(lock_);
}

// Handles an existing destination. True when an earlier attempt at this same job made it: then it is done, or
// is renamed back to its temporary name.
bool ResumableFolder::take_over(const std::string& journal, const std::string& marker) {
  std::error_code error;
  const std::string there = place_.final() + "/" + kJournal;
  if (!fs::exists(there, error) || read_whole_file(there) != journal) return false;
  lock(there);
  done_ = marker.empty() || fs::exists(place_.final() + "/" + marker, error);
  if (!done_) rename_path(files_, place_.final(), place_.temporary());
  return true;
}

void ResumableFolder::begin(const std::string& journal) {
  std::error_code error;
  const std::string path = place_.temporary() + "/" + kJournal;
  if (lock_ < 0 && fs::exists(path, error)) {
    lock(path);
    if (read_whole_file(path) == journal) return;
    ::close(std::exchange(lock_, -1));  // of another job
  }
  if (lock_ >= 0) return;  // taken over
  remove_tree(files_, place_.temporary());
  make_folder(files_, place_.temporary());
  // Under its name the journal is whole.
  write_synced(files_, path + kWriting, journal);
  rename_path(files_, path + kWriting, path);
  sync_folder(files_, place_.temporary());
  lock(path);
}

void ResumableFolder::lock(const std::string& path) {
  lock_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (lock_ < 0) fail_runtime("[convert] {}: {}", path, std::generic_category().message(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0)
    fail_usage("[convert] {}: another process is writing this folder", place_.final());
}

bool ResumableFolder::has(const PlannedFile& file) const {
  const std::string path = place_.temporary() + "/" + file.name;
  std::error_code error;
  if (!fs::is_regular_file(path, error) ||
      fs::file_size(path, error) != static_cast<std::uintmax_t>(file.bytes))
    return false;
  std::string header(file.header.size(), '\0');
  std::ifstream stream(path, std::ios::binary);
  return stream.read(header.data(), static_cast<std::streamsize>(header.size())) && header == file.header;
}

void ResumableFolder::write(const PlannedFile& file, const std::function<Tensor(std::size_t tensor)>& make) {
  const std::string path = place_.temporary() + "/" + file.name;
  OutputFile out(files_, path + kWriting, OutputFile::Mode::create);
  out.resize(file.bytes);
  out.write_at(file.header.data(), file.header.size(), 0);
  std::future<void> writing;
  for (const PlannedFile::Place& place : file.tensors) {
    Tensor tensor = make(place.tensor);
    CHECK(static_cast<std::int64_t>(tensor.bytes()) == place.bytes, "{} bytes, planned {}", tensor.bytes(),
          place.bytes);
    if (writing.valid()) writing.get();
    writing = std::async(std::launch::async, [&out, tensor = std::move(tensor), offset = place.offset] {
      out.write_at(tensor.raw(), tensor.bytes(), offset);
    });
  }
  if (writing.valid()) writing.get();
  out.sync();
  out.close();
  rename_path(files_, path + kWriting, path);
  sync_folder(files_, place_.temporary());
  stopping_point("file converted");
}

void ResumableFolder::write_small(const std::string& name, const std::string& content) {
  const std::string path = place_.temporary() + "/" + name, folder = fs::path(path).parent_path();
  if (folder != place_.temporary()) make_folder(files_, folder);
  write_synced(files_, path, content);
  if (folder != place_.temporary()) sync_folder(files_, folder);
}

void ResumableFolder::finish() {
  std::error_code error;
  if (fs::exists(place_.temporary() + "/" + kJournal, error)) {
    sync_folder(files_, place_.temporary());
    rename_path(files_, place_.temporary(), place_.final());
    sync_folder(files_, place_.parent);
  }
  const std::string journal = place_.final() + "/" + kJournal;
  if (const int failed = files_.remove_file(journal); failed < 0)
    fail_runtime("[convert] {}: {}", journal, std::generic_category().message(-failed));
  sync_folder(files_, place_.final());
}

}  // namespace switchyard
