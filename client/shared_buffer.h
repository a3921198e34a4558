// Owns a memfd that other processes may open (messages/push.h): sealed against shrinking from the
// start, and against any change by seal(). Owns: the descriptor and the mapping, if any.
#pragma once

#include "base/result.h"
#include "messages/push.h"

#include <cstddef>
#include <span>

namespace pitstop {

class SharedBuffer {
  public:
    enum class Access {
        kMapped,  // filled repeatedly, through bytes()
        // filled once, by write(): a new page costs half as much then, because the kernel
        // need not clear it
        kWritten,
    };
    static Result<SharedBuffer> make(std::int64_t bytes, Access access);
    SharedBuffer(SharedBuffer&& other) noexcept;
    SharedBuffer& operator=(SharedBuffer&& other) noexcept;
    ~SharedBuffer();

    // REQUIRES: kMapped.
    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
    // May be called from any thread. Bytes that are never written read as zeros. REQUIRES: the
    // range lies in the buffer.
    // Errors: kResourceExhausted; kDataLoss if `from` is a mapping whose file was truncated.
    Result<> write(std::int64_t at, std::span<const std::byte> from) const;
    [[nodiscard]] messages::SharedMemory describe() const;
    // Unmaps the buffer; it cannot be written to any more.
    Result<> seal();

  private:
    SharedBuffer(int fd, std::byte* data, std::size_t size) : fd_(fd), data_(data), size_(size) {}
    int fd_ = -1;
    std::byte* data_ = nullptr;  // null: not mapped
    std::size_t size_ = 0;
};

}  // namespace pitstop
