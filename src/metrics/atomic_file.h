// Writes files so that they hold either the old or the whole new version at any time.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// Replaces `path` by `content`: a temporary file beside it, fsync, rename, fsync of the folder. On failure
// the old file remains, no temporary is left, and Error(runtime) names the file and the reason. A device or a
// pipe is written directly.
void write_file_atomic(const std::string& path, std::string_view content);

// Makes renames in a folder survive a power cut. Does
// nothing on a file system that refuses to sync a folder.
void sync_folder(const std::string& folder);

}  // namespace switchyard
