// Owns a memfd that other processes may open (messages/push.h): sealed against shrinking from the
// start, and against everything by seal(). Owns: the descriptor and the mapping, if there is one.
#pragma once

#include "base/result.h"
#include "messages/push.h"

#include <cstddef>
#include <span>

namespace pitstop {

class SharedBuffer {
  public:
    enum class Access {
        kMapped,   // filled again and again, through bytes()
        kWritten,  // filled once, by write(): a page that was never there costs half as much so, as
                   // the kernel need not clear it first
    };
    static Result<SharedBuffer> make(std::int64_t bytes, Access access);
    SharedBuffer(SharedBuffer&& other) noexcept;
    SharedBuffer& operator=(SharedBuffer&& other) noexcept;
    ~SharedBuffer();

    // REQUIRES: kMapped.
    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
    // It may be called from any thread. What nobody writes reads as zeros. REQUIRES: it lies in the
    // buffer.
    // Errors: kResourceExhausted; kDataLoss, `from` is a mapping that was cut short.
    Result<> write(std::int64_t at, std::span<const std::byte> from) const;
    [[nodiscard]] messages::SharedMemory describe() const;
    // Unmaps it; from now on nobody can write to it.
    Result<> seal();

  private:
    SharedBuffer(int fd, std::byte* data, std::size_t size) : fd_(fd), data_(data), size_(size) {}
    int fd_ = -1;
    std::byte* data_ = nullptr;  // null: not mapped
    std::size_t size_ = 0;
};

}  // namespace pitstop
