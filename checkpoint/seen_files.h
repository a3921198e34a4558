// Remembers files as they were when first looked at, so that whoever has read them can say whether
// they are still the same: by device, inode, size and time of the last write, or that there is
// none.
//
// A writer that sets the time back, or writes again within the tick of the file system's clock in
// which it was looked at (4 ms here), is not seen: a digest sees that.
//
// Thread: one at a time.
#pragma once

#include "base/result.h"

#include <optional>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <vector>

namespace pitstop::checkpoint {

// These stay the same as long as nobody writes to a file, or puts another in its place.
struct FileIdentity {
    dev_t device = 0;
    ino_t inode = 0;
    off_t bytes = 0;
    timespec written{};

    static FileIdentity of(const struct stat& info);
    // Says in words how `now` differs; nothing if it does not.
    [[nodiscard]] std::optional<std::string> difference(const FileIdentity& now) const;
};

// Makes a kDataLoss: `path` changed, and `how`.
[[nodiscard]] Error file_changed(const std::string& path, std::string_view how);

class SeenFiles {
  public:
    // Remembers, and returns, what lies at `path` now; nothing, if nothing does.
    std::optional<FileIdentity> look(const std::string& path);
    // Errors: kDataLoss, naming the first file that is not as it was.
    Result<> are_unchanged() const;

  private:
    struct Seen {
        std::string path{};
        std::optional<FileIdentity> identity{};
    };
    std::vector<Seen> files_{};
};

}  // namespace pitstop::checkpoint
