// Manages the directory of --keep-committed on the disk:
//
//   committed-00000004-<digest>/   a whole version, as a checkpoint directory of Hugging Face's
//   committed-00000003-<digest>/   the one before it
//   .writing/                    one that is being written: it gets its name when complete
//
// The number counts the versions that were sealed, so that names tell which is newer; the digest is
// the version's (base/digest.h), so that an existing version is found and not written again. Names
// are created and removed only by rename, after everything is on the disk: a crash leaves what was
// sealed unchanged. There are at most two versions on the disk, including the one being written.
// If the tree was started from a version in this directory, that version exists in addition: it is
// never renamed or removed.
//
// Thread: one. No other process changes the directory: the launcher holds its lock.
#pragma once

#include "base/result.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// A file of the checkpoint besides its weights: config.json, the tokenizer's, the chat template.
struct SmallFile {
    std::string name{};
    std::string bytes{};
};
inline constexpr std::size_t kSmallFileBytesMax = std::size_t{64} << 20;
inline constexpr std::size_t kSmallFilesMax = 64;

// Returns the small files of `model_dir` as they are now: the directory may change later. Errors: a
// file cannot be read, or they exceed the bounds in number or size.
Result<std::vector<SmallFile>> read_small_files(const std::string& model_dir);

class KeptDirectory {
  public:
    // `model_dir` is the directory that the tree was started from.
    KeptDirectory(std::string path, std::string model_dir)
        : path_(std::move(path)), model_dir_(std::move(model_dir)) {}

    [[nodiscard]] std::string writing() const { return path_ + "/.writing"; }

    // Finds the version with this digest, and makes it the newest; nothing if there is none.
    Result<std::optional<std::string>> find(std::string_view digest);
    // Creates an empty writing(), and removes all versions but the newest.
    Result<> begin();
    Result<> write(const SmallFile& file);
    // Makes writing() the newest version. Returns its path.
    // REQUIRES: its weights are on the disk (fsync).
    Result<std::string> seal(std::string_view digest);
    Result<> drop();
    // Removes the version at a path that find() returned.
    Result<> remove(const std::string& version);

  private:
    struct Entry {
        int number = 0;
        std::string name{};
        std::string digest{};
    };
    Result<std::vector<Entry>> entries() const;  // oldest first
    [[nodiscard]] bool is_model(const std::string& path) const;
    Result<std::string> rename_to_newest(const std::string& from, std::string_view digest);

    std::string path_;
    std::string model_dir_;
};

// Returns the error of a call to the system that failed with this errno: "cannot make '/x': ...".
[[nodiscard]] Error io_error(std::string_view what, const std::string& path, int number);
// Writes a new file, and forces it to the disk.
Result<> write_file(const std::string& path, std::string_view bytes);
// Forces a file's or a directory's contents to the disk.
Result<> sync_path(const std::string& path);

}  // namespace pitstop::tp_worker
