// Remembers the state of files when they were first looked at, so that a reader can check
// afterwards that none has changed. The state is device, inode, size and time of the last write, or
// that the file does not exist.
//
// A writer that resets the time, or writes again within the same tick of the file system's clock (4
// ms here), goes unnoticed; a digest finds such a change.
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

// Constant as long as nobody writes to the file or replaces it.
struct FileIdentity {
    dev_t device = 0;
    ino_t inode = 0;
    off_t bytes = 0;
    timespec written{};

    static FileIdentity of(const struct stat& info);
    // Returns in words how `now` differs; nothing if it does not.
    [[nodiscard]] std::optional<std::string> difference(const FileIdentity& now) const;
};

// Returns the kDataLoss error: `path` changed, and `how`.
[[nodiscard]] Error file_changed(const std::string& path, std::string_view how);

class SeenFiles {
  public:
    // Remembers and returns the state of the file at `path`; nothing if none exists.
    std::optional<FileIdentity> look(const std::string& path);
    // Errors: kDataLoss, naming the first file that has changed.
    Result<> are_unchanged() const;

  private:
    struct Seen {
        std::string path{};
        std::optional<FileIdentity> identity{};
    };
    std::vector<Seen> files_{};
};

}  // namespace pitstop::checkpoint
