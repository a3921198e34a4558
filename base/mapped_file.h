// Maps a file read-only into memory.
//
// Owns: the mapping. The file may be replaced on disk meanwhile. If it is *truncated* under a
// mapping, an access raises SIGBUS. Readers that must survive that use a CutGuard (cut_guard.h).
#pragma once

#include "base/result.h"

#include <cstddef>
#include <span>
#include <string>

namespace pitstop {

class MappedFile {
  public:
    static Result<MappedFile> open(const std::string& path);
    // Maps the first `size` bytes of an open file; `path` names it in errors. The descriptor may be
    // closed afterwards. kUnsupported: its file system cannot map files.
    static Result<MappedFile> of(int fd, std::size_t size, const std::string& path);
    // Reads a whole small file. kTooLarge over `size_max` bytes; kDataLoss if it is
    // truncated meanwhile.
    static Result<std::string> read(const std::string& path, std::size_t size_max);

    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace pitstop
