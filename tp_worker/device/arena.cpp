#include "tp_worker/device/arena.h"

#include "kernels/runtime/device_memory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// Addresses start at a huge page, so that the kernel may back all of a large arena with huge pages.
constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

std::int64_t page_bytes() {
    static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
    return bytes;
}

}  // namespace

Result<Arena> Arena::reserve(std::string tag, std::int64_t bytes) {
    CHECK(bytes > 0);
    const std::int64_t rounded = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    const auto padded = static_cast<std::size_t>(rounded + kHugePageBytes);
    void* start =
        ::mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot reserve {} bytes of addresses for {}: {}",
            bytes,
            tag,
            std::strerror(errno)
        );
    }
    // The ends are trimmed to the aligned range.
    auto* begin = static_cast<std::byte*>(start);
    const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin));
    const std::int64_t head = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
    const std::int64_t tail = kHugePageBytes - head;
    if (head > 0) ::munmap(begin, static_cast<std::size_t>(head));
    if (tail > 0) ::munmap(begin + head + rounded, static_cast<std::size_t>(tail));
    return Arena(std::move(tag), begin + head, rounded);
}

Result<Arena> Arena::reserve_on_gpu(std::string tag, std::int64_t bytes) {
    Result<kernels::DeviceRange> range = kernels::DeviceRange::reserve(bytes);
    if (!range) {
        return make_error(
            range.error().code, "cannot reserve addresses for {}: {}", tag, range.error().message
        );
    }
    return Arena(std::move(tag), *std::move(range));
}

Arena::Arena(Arena&& other) noexcept
    : tag_(std::move(other.tag_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      is_committed_(std::exchange(other.is_committed_, false)),
      gpu_(std::move(other.gpu_)),
      is_adopted_(std::exchange(other.is_adopted_, false)),
      mapping_(std::exchange(other.mapping_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
    std::swap(tag_, other.tag_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_committed_, other.is_committed_);
    std::swap(gpu_, other.gpu_);
    std::swap(is_adopted_, other.is_adopted_);
    std::swap(mapping_, other.mapping_);
    return *this;
}

Arena::~Arena() {
    if (data_ != nullptr && !is_on_gpu()) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

Result<> Arena::commit() {
    if (is_committed_) {
        return make_error(ErrorCode::kFailedPrecondition, "{} is resident already", tag_);
    }
    ++mapping_;
    if (is_on_gpu()) {
        if (Result<> mapped = gpu_.map(); !mapped) {
            return make_error(
                mapped.error().code, "no memory for {}: {}", tag_, mapped.error().message
            );
        }
        is_committed_ = true;
        return Ok{};
    }
    const auto size = static_cast<std::size_t>(bytes_);
    if (::mprotect(data_, size, PROT_READ | PROT_WRITE) != 0) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot get {} bytes for {}: {}",
            bytes_,
            tag_,
            std::strerror(errno)
        );
    }
    // Huge pages reduce TLB misses; a refusal only costs speed.
    if (bytes_ >= kHugePageBytes) ::madvise(data_, size, MADV_HUGEPAGE);
    is_committed_ = true;
    return Ok{};
}

Result<std::int64_t> Arena::release() {
    if (!is_committed_) {
        return make_error(ErrorCode::kFailedPrecondition, "{} is released already", tag_);
    }
    ++mapping_;
    if (is_on_gpu()) {
        gpu_.unmap();
        is_committed_ = false;
        return bytes_;
    }
    const std::int64_t before = resident_bytes();
    // Maps a new mapping over the old one: the pages are freed and the addresses stay
    // ours, atomically.
    void* start = ::mmap(
        data_,
        static_cast<std::size_t>(bytes_),
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
        -1,
        0
    );
    if (start == MAP_FAILED) {
        return make_error(
            ErrorCode::kInternal, "cannot release {}: {}", tag_, std::strerror(errno)
        );
    }
    is_committed_ = false;
    is_adopted_ = false;
    return before - resident_bytes();
}

void Arena::move_to(Arena& to) {
    CHECK(is_committed_ && to.is_committed_);
    CHECK(!is_on_gpu() && !to.is_on_gpu() && to.bytes_ == bytes_);
    // a whole number of pages, huge ones included
    constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;
    for (std::int64_t begin = 0; begin < bytes_; begin += kPieceBytes) {
        const auto size = static_cast<std::size_t>(std::min(kPieceBytes, bytes_ - begin));
        std::memcpy(to.data_ + begin, data_ + begin, size);
        // Private anonymous memory, which reads as zeros from here on.
        ::madvise(data_ + begin, size, MADV_DONTNEED);
    }
}

void Arena::fetch(std::int64_t begin, std::span<std::byte> out) const {
    CHECK(begin >= 0 && std::ssize(out) <= bytes_ - begin);
    if (is_on_gpu()) return kernels::copy_and_wait(out.data(), data_ + begin, std::ssize(out));
    // memcpy must not be given the null pointer of an empty span.
    std::ranges::copy_n(data_ + begin, std::ssize(out), out.data());
}

Result<> Arena::adopt(int fd) {
    CHECK(is_committed_);
    ++mapping_;
    void* start =
        ::mmap(data_, static_cast<std::size_t>(bytes_), PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    if (start == MAP_FAILED) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot map memory for {}: {}",
            tag_,
            std::strerror(errno)
        );
    }
    is_adopted_ = true;
    return Ok{};
}

Result<> Arena::disown() {
    if (!is_adopted_) return Ok{};
    const auto size = static_cast<std::size_t>(bytes_);
    void* own = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "cannot get {} bytes for {}: {}",
            bytes_,
            tag_,
            std::strerror(errno)
        );
    }
    std::memcpy(own, data_, size);
    CHECK(::mremap(own, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == data_);
    is_adopted_ = false;
    return Ok{};
}

Result<> Arena::renew() {
    if (is_adopted_) RETURN_IF_ERROR(release());
    if (is_committed_) return Ok{};
    return commit();
}

std::int64_t Arena::resident_bytes() const {
    if (is_on_gpu()) return is_committed_ ? bytes_ : 0;
    std::array<unsigned char, 4096> state{};  // one byte per page; 16 MiB at a time
    const std::int64_t window = static_cast<std::int64_t>(state.size()) * page_bytes();
    std::int64_t num_pages = 0;
    for (std::int64_t begin = 0; begin < bytes_; begin += window) {
        const std::int64_t bytes = std::min(window, bytes_ - begin);
        if (::mincore(data_ + begin, static_cast<std::size_t>(bytes), state.data()) != 0) continue;
        for (std::int64_t page = 0; page < bytes / page_bytes(); ++page) {
            num_pages += state[static_cast<std::size_t>(page)] & 1;
        }
    }
    return num_pages * page_bytes();
}

}  // namespace pitstop::tp_worker
