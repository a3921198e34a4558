// An open checkpoint file, as the readers of its format get it.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pitstop::checkpoint {

struct OpenFile {
    int fd = -1;
    std::int64_t file_bytes = 0;
    const std::string& path;  // for error messages
    ReadLimits limits{};
};

// Fills `out` with the bytes from `offset` on. Returns false with errno set, or with errno 0 at the
// end of the file.
[[nodiscard]] bool read_exactly(int fd, std::int64_t offset, std::span<std::byte> out);

}  // namespace pitstop::checkpoint
