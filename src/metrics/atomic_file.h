// Files that are either the old version or the whole new one, whatever happens in between.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// Replaces `path` by `content`: a temporary file beside it, fsync, rename, fsync of the folder. On failure
// the old file stands, no temporary is left, and Error(runtime) names the file and the reason. A device or a
// pipe gets the content as it is.
void write_file_atomic(const std::string& path, std::string_view content);

// Makes renames in a folder survive a power cut. Some file systems refuse to sync a folder; then nothing is
// done.
void sync_folder(const std::string& folder);

}  // namespace switchyard
