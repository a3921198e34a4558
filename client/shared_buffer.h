// A memfd that other processes may open (messages/push.h): sealed against shrinking from the start,
// and against everything by seal(). Owns: the descriptor and the mapping.
#pragma once

#include "base/result.h"
#include "messages/push.h"

#include <cstddef>
#include <span>

namespace pitstop {

class SharedBuffer {
  public:
    static Result<SharedBuffer> make(std::int64_t bytes);
    SharedBuffer(SharedBuffer&& other) noexcept;
    SharedBuffer& operator=(SharedBuffer&& other) noexcept;
    ~SharedBuffer();

    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
    [[nodiscard]] SharedMemory describe() const;
    // Unmaps it; from now on nobody can write to it.
    Result<> seal();

  private:
    SharedBuffer(int fd, std::byte* data, std::size_t size) : fd_(fd), data_(data), size_(size) {}
    int fd_ = -1;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace pitstop
