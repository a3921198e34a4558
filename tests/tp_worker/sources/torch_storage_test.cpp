// References and mappings of torch's shared storages, in segments of torch's form.
#include "tp_worker/sources/torch_storage.h"

#include "tests/no_descriptors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kHeaderBytes = 64;
constexpr std::int64_t kPayloadBytes = 10'000;

// A segment as torch in this process would make it. Owns: its name and its descriptor.
class Segment {
  public:
    explicit Segment(std::int32_t references)
        : name_("/torch_" + std::to_string(::getpid()) + "_78_0") {
        fd_ = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
        EXPECT_GE(fd_, 0);
        EXPECT_EQ(::ftruncate(fd_, kHeaderBytes + kPayloadBytes), 0);
        set_references(references);
    }
    ~Segment() {
        unmap();
        ::close(fd_);
        ::shm_unlink(name_.c_str());
    }
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    void set_references(std::int32_t num) const {
        EXPECT_EQ(::pwrite(fd_, &num, sizeof num, 0), static_cast<ssize_t>(sizeof num));
    }
    [[nodiscard]] std::int32_t references() const {
        std::int32_t num = -1;
        EXPECT_EQ(::pread(fd_, &num, sizeof num, 0), static_cast<ssize_t>(sizeof num));
        return num;
    }
    // Maps the segment, like a sender that has a reference.
    void map() {
        mapped_ = ::mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        ASSERT_NE(mapped_, MAP_FAILED);
    }
    void unmap() {
        if (mapped_ != nullptr) ::munmap(mapped_, kHeaderBytes);
        mapped_ = nullptr;
    }
    void cut(std::int64_t bytes) const { EXPECT_EQ(::ftruncate(fd_, bytes), 0); }
    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] bool is_there() const {
        const int fd = ::shm_open(name_.c_str(), O_RDONLY, 0);
        if (fd >= 0) ::close(fd);
        return fd >= 0;
    }
    [[nodiscard]] std::vector<std::unique_ptr<TorchStorage>> open() const {
        std::vector<std::unique_ptr<TorchStorage>> storages;
        Result<std::unique_ptr<TorchStorage>> opened = TorchStorage::open(name_);
        EXPECT_TRUE(opened);
        if (opened) storages.push_back(*std::move(opened));
        return storages;
    }

  private:
    std::string name_;
    int fd_ = -1;
    void* mapped_ = nullptr;
};

TEST(TorchStorage, ALentReferenceIsGivenBack) {
    Segment segment(/*references=*/3);
    give_back(segment.open());
    EXPECT_EQ(segment.references(), 2);
    EXPECT_TRUE(segment.is_there());
}

TEST(TorchStorage, TheLastReferenceOfASenderThatHasItMappedIsTheSendersOwn) {
    Segment segment(/*references=*/2);
    segment.map();
    for (int update = 0; update < 4; ++update) {
        give_back(segment.open());
        EXPECT_EQ(segment.references(), 1) << update;
        EXPECT_TRUE(segment.is_there());
    }
}

TEST(TorchStorage, TheLastReferenceOfASenderThatHasLetGoOfItRemovesIt) {
    Segment segment(/*references=*/2);
    segment.map();
    segment.unmap();
    give_back(segment.open());
    EXPECT_TRUE(segment.is_there());  // another is still lent
    give_back(segment.open());
    EXPECT_EQ(segment.references(), 0);
    EXPECT_FALSE(segment.is_there());
}

// The sender has ended: no process with its number maps anything.
TEST(TorchStorage, TheLastReferenceOfASenderThatIsGoneRemovesIt) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const std::string name = "/torch_" + std::to_string(child) + "_78_0";
    const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    ASSERT_GE(fd, 0);
    const std::int32_t references = 1;
    ASSERT_EQ(::ftruncate(fd, kHeaderBytes), 0);
    ASSERT_EQ(::pwrite(fd, &references, 4, 0), 4);
    ::close(fd);
    std::vector<std::unique_ptr<TorchStorage>> storages;
    storages.push_back(*TorchStorage::open(name));
    give_back(storages);
    const Result<std::unique_ptr<TorchStorage>> again = TorchStorage::open(name);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, ErrorCode::kNotFound);
}

TEST(TorchStorage, WithoutDescriptorsTheErrorDoesNotBlameTheSender) {
    const Segment segment(/*references=*/1);
    Error error;
    {
        const test::NoDescriptors none;
        const Result<std::unique_ptr<TorchStorage>> opened = TorchStorage::open(segment.name());
        ASSERT_FALSE(opened);
        error = opened.error();
    }
    EXPECT_EQ(error.code, ErrorCode::kResourceExhausted) << error.message;
}

TEST(TorchStorage, AHeaderThatWasCutAwayIsNoReference) {
    Segment segment(/*references=*/2);
    const auto storages = segment.open();
    segment.cut(0);
    give_back(storages);
    segment.cut(kHeaderBytes);
    EXPECT_EQ(segment.references(), 0);
}

TEST(TorchStorage, ASegmentShorterThanPromisedIsNotMapped) {
    const Segment segment(/*references=*/9);
    for (const std::int64_t bytes : {kPayloadBytes + 1, std::int64_t{-1}, std::int64_t{1} << 62}) {
        const auto storages = segment.open();
        const Result<> mapped = storages.front()->map(bytes);
        ASSERT_FALSE(mapped) << bytes;
        EXPECT_EQ(mapped.error().code, ErrorCode::kInvalidArgument);
    }
    const auto storages = segment.open();
    ASSERT_TRUE(storages.front()->map(kPayloadBytes));
    EXPECT_EQ(storages.front()->bytes().size(), kPayloadBytes);
    EXPECT_TRUE(storages.front()->is_whole());
    segment.cut(kHeaderBytes + kPayloadBytes - 1);
    EXPECT_EQ(storages.front()->is_whole().error().code, ErrorCode::kDataLoss);
}

TEST(TorchStorage, OnlyTorchsOwnNamesAreOpened) {
    for (const char* name :
         {"/torch_1_2",
          "/torch_1_2_3_4",
          "/torch_a_2_3",
          "/other_1_2_3",
          "/torch_1_2_3/../x",
          "torch_1_2_3",
          "/torch__2_3",
          ""}) {
        const Result<std::unique_ptr<TorchStorage>> opened = TorchStorage::open(name);
        ASSERT_FALSE(opened) << name;
        EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument) << name;
    }
}

}  // namespace
}  // namespace pitstop::tp_worker
