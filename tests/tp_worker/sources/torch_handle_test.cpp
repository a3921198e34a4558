// Views of PyTorch's that are no plain row of bytes: built by hand, in a segment of torch's form.
#include "tp_worker/sources/torch_handle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kHeaderBytes = 64;
constexpr std::int64_t kElements = 24;

// Owns: a segment that holds bf16 bits 0, 1, ...; one reference of its own.
class Segment {
  public:
    Segment() : name_("/torch_" + std::to_string(::getpid()) + "_77_0") {
        const int fd = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
        EXPECT_GE(fd, 0);
        std::vector<std::uint16_t> words(kHeaderBytes / 2 + kElements, 0);
        words[0] = 1000;  // more references than a test gives back
        for (std::size_t i = 0; i < kElements; ++i)
            words[kHeaderBytes / 2 + i] = static_cast<std::uint16_t>(i);
        EXPECT_EQ(::write(fd, words.data(), words.size() * 2), std::ssize(words) * 2);
        ::close(fd);
    }
    ~Segment() { ::shm_unlink(name_.c_str()); }
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    [[nodiscard]] TensorHandle handle(
        std::vector<std::int64_t> shape, std::vector<std::int64_t> stride, std::int64_t offset
    ) const {
        TensorHandle handle;
        handle.dtype = "bfloat16";
        handle.shape = std::move(shape);
        handle.stride = std::move(stride);
        handle.offset = offset;
        handle.segment = name_;
        handle.segment_bytes = kElements * 2;
        return handle;
    }

  private:
    std::string name_;
};

std::vector<std::uint16_t> read_all(const TensorBytes& bytes, std::size_t num) {
    std::vector<std::uint16_t> elements(num, 0xffff);
    std::memcpy(elements.data(), bytes.data, num * 2);
    return elements;
}

TEST(TorchHandle, ATransposedViewIsGathered) {
    const Segment segment;
    TorchStorages storages;
    const auto bytes =
        storages.open(segment.handle({3, 2}, {1, 4}, 5), checkpoint::StoredDtype::kBf16);
    ASSERT_TRUE(bytes) << bytes.error().message;
    EXPECT_EQ(read_all(*bytes, 6), (std::vector<std::uint16_t>{5, 9, 6, 10, 7, 11}));
}

// An empty view's strides may exceed the storage, because it has no elements.
TEST(TorchHandle, AnEmptyViewHasNoBytesToReachFor) {
    const Segment segment;
    for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{3}, kElements}) {
        TorchStorages storages;
        const auto bytes = storages.open(
            segment.handle({7, 0, 9}, {100, 1, 1000}, offset), checkpoint::StoredDtype::kBf16
        );
        ASSERT_TRUE(bytes) << bytes.error().message;
    }
}

TEST(TorchHandle, AnExpandedViewMayNotBeLargerThanItsStorage) {
    const Segment segment;
    for (const std::int64_t rows : {std::int64_t{9}, std::int64_t{1} << 40}) {
        TorchStorages storages;
        const auto bytes =
            storages.open(segment.handle({rows, 3}, {0, 1}, 0), checkpoint::StoredDtype::kBf16);
        ASSERT_FALSE(bytes);
        EXPECT_EQ(bytes.error().code, ErrorCode::kInvalidArgument);
        EXPECT_NE(bytes.error().message.find("send it contiguous"), std::string::npos);
    }
    TorchStorages storages;
    const auto bytes =
        storages.open(segment.handle({8, 3}, {0, 1}, 0), checkpoint::StoredDtype::kBf16);
    ASSERT_TRUE(bytes);
    EXPECT_EQ(read_all(*bytes, 6), (std::vector<std::uint16_t>{0, 1, 2, 0, 1, 2}));
}

// Each view is at most as large as its storage, but a thousand views would be a thousand times as
// large.
TEST(TorchHandle, ViewsOfOneStorageMayNotTogetherBeMuchLarger) {
    const Segment segment;
    TorchStorages storages;
    Result<TensorBytes> bytes =
        storages.open(segment.handle({8, 3}, {0, 1}, 0), checkpoint::StoredDtype::kBf16);
    int num_opened = 0;
    while (bytes && num_opened < 1000) {
        ++num_opened;
        bytes = storages.open(segment.handle({8, 3}, {0, 1}, 0), checkpoint::StoredDtype::kBf16);
    }
    ASSERT_FALSE(bytes);
    EXPECT_EQ(num_opened, static_cast<int>(TorchStorages::kGatheredTimesMax * kElements / 24));
    EXPECT_NE(bytes.error().message.find("views of a storage"), std::string::npos);
    // Contiguous views are not gathered.
    EXPECT_TRUE(storages.open(segment.handle({2, 3}, {3, 1}, 0), checkpoint::StoredDtype::kBf16));
}

TEST(TorchHandle, AViewMayNotReachOutOfItsStorage) {
    const Segment segment;
    TorchStorages storages;
    EXPECT_TRUE(storages.open(segment.handle({2, 2}, {20, 3}, 0), checkpoint::StoredDtype::kBf16));
    EXPECT_FALSE(storages.open(segment.handle({2, 2}, {20, 4}, 0), checkpoint::StoredDtype::kBf16));
    EXPECT_FALSE(storages.open(segment.handle({1}, {1}, kElements), checkpoint::StoredDtype::kBf16)
    );
}

}  // namespace
}  // namespace pitstop::tp_worker
