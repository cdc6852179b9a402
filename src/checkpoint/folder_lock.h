// FolderLock: one process at a time writes the checkpoints of a run.
#pragma once

#include <string>

namespace switchyard {

class FolderLock {
 public:
  // Creates the folder when it is missing, locks its file .lock and writes the process id to it. Error(usage)
  // naming the process that has it, when that keeps it for longer than a process takes to end.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace switchyard
