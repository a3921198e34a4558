// The bytes of an evicted adapter: in a file without a name, so that nothing else can change it and
// nothing of it outlives the process.
//
// Thread:  one at a time.
#pragma once

#include "base/digest.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace pitstop::tp_worker {

class AdapterFile {
  public:
    AdapterFile() = default;
    ~AdapterFile();
    AdapterFile(const AdapterFile&) = delete;
    AdapterFile& operator=(const AdapterFile&) = delete;

    [[nodiscard]] bool is_written() const { return fd_ >= 0; }
    // Copies the bytes from `begin` on, from host or GPU memory.
    using Fetch = std::function<void(std::int64_t begin, std::span<std::byte> out)>;
    // Writes `num_bytes` to a new file in the directory, piece by piece. Errors: kUnavailable,
    // kResourceExhausted (a full disk); nothing is left. REQUIRES: !is_written().
    Result<> write(const std::string& directory, std::int64_t num_bytes, const Fetch& fetch);
    // Reads back all bytes. Errors: kUnavailable; kDataLoss: the file's bytes have changed.
    // REQUIRES: is_written(), `bytes` are as many as were written.
    Result<> read(std::span<std::byte> bytes) const;
    // Reads some of the bytes without comparing them. Thread: any. Errors: kUnavailable; kDataLoss:
    // the file is too short. REQUIRES: is_written().
    Result<> read_at(std::int64_t begin, std::span<std::byte> bytes) const;

  private:
    int fd_ = -1;
    Digest digest_{};
};

}  // namespace pitstop::tp_worker
