// FolderLock: ensures that only one process at a time writes the folder of a run.
#pragma once

#include <string>

namespace switchyard {

class FolderLock {
 public:
  // Creates the folder when it is missing, locks its file .lock and writes the process id to it. Error(usage)
  // naming the process that holds the lock, if it keeps it for longer than an ending process would.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Removes the file, if the constructor created it: for a run that is refused before any work.
  void discard();

 private:
  bool open_and_lock(const std::string& folder);

  std::string path_;
  int file_ = -1;
  bool created_ = false;
};

}  // namespace switchyard
