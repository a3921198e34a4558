#include "base/cut_guard.h"

#include "base/mapped_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace pitstop {
namespace {

constexpr std::size_t kNumPages = 8;

// Maps a memfd of whole pages full of 'x'.
class CutGuardTest : public testing::Test {
  protected:
    void SetUp() override {
        fd_ = ::memfd_create("cut_guard_test", MFD_CLOEXEC);
        const std::string bytes(kNumPages * page_, 'x');
        ASSERT_EQ(::write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        auto file = MappedFile::of(fd_, bytes.size(), "test");
        ASSERT_TRUE(file) << file.error().message;
        file_.emplace(*std::move(file));
    }
    void TearDown() override { ::close(fd_); }

    void cut_to(std::size_t pages) {
        ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(pages * page_)), 0);
    }
    [[nodiscard]] std::span<const std::byte> bytes() const { return file_->bytes(); }
    static std::size_t num_x(std::span<const std::byte> bytes) {
        return static_cast<std::size_t>(std::ranges::count(bytes, std::byte{'x'}));
    }

    const std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    int fd_ = -1;
    std::optional<MappedFile> file_{};
};

TEST_F(CutGuardTest, WholeFilesAreNotCut) {
    const CutGuard guard(bytes());
    EXPECT_EQ(num_x(bytes()), bytes().size());
    EXPECT_FALSE(guard.is_cut());
}

TEST_F(CutGuardTest, BytesThatAreCutAwayReadAsZerosAndAreReported) {
    const CutGuard guard(bytes());
    cut_to(3);
    EXPECT_EQ(num_x(bytes()), 3 * page_);
    EXPECT_TRUE(guard.is_cut());
}

TEST_F(CutGuardTest, ACutOutsideTheRangeIsAnotherGuards) {
    const CutGuard outer(bytes());
    {
        const CutGuard inner(bytes().first(page_));
        cut_to(1);
        EXPECT_EQ(num_x(bytes()), page_);
        EXPECT_FALSE(inner.is_cut());
    }
    EXPECT_TRUE(outer.is_cut());
}

TEST_F(CutGuardTest, EachThreadHasItsOwn) {
    const CutGuard mine(bytes());
    cut_to(0);
    std::thread([&] {
        const CutGuard other(bytes());
        EXPECT_EQ(num_x(bytes()), 0u);
        EXPECT_TRUE(other.is_cut());
    }).join();
    EXPECT_FALSE(mine.is_cut());
}

using CutGuardDeathTest = CutGuardTest;

TEST_F(CutGuardDeathTest, WithoutAGuardTheSignalEndsTheProcess) {
    { const CutGuard installs_the_handler(bytes()); }
    cut_to(0);
    EXPECT_EXIT(std::exit(num_x(bytes()) == 0 ? 0 : 1), testing::KilledBySignal(SIGBUS), "");
    EXPECT_EXIT(::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace pitstop
