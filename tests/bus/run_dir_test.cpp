#include "bus/run_dir.h"

#include "bus/limits.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace pitstop::bus {
namespace {

class RunDirTest : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/pitstop-test-XXXXXX";  // mkdtemp makes it 0700
        ASSERT_NE(::mkdtemp(pattern), nullptr);
        path_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    static ErrorCode code_of(const std::string& path) {
        const Result<RunDir> result = RunDir::open(path);
        EXPECT_FALSE(result) << path;
        if (result) return ErrorCode::kInternal;
        EXPECT_NE(result.error().message.find("'" + path + "'"), std::string::npos)
            << result.error().message;
        return result.error().code;
    }

    std::string path_{};
};

TEST_F(RunDirTest, NamesEverySocketOfTheTree) {
    const Result<RunDir> dir = RunDir::open(path_);
    ASSERT_TRUE(dir) << dir.error().message;
    EXPECT_EQ(dir->data_door(), "ipc://" + path_ + "/data.sock");
    EXPECT_EQ(dir->admin_door(), "ipc://" + path_ + "/admin.sock");
    EXPECT_EQ(dir->tokenizer(), "ipc://" + path_ + "/tokenizer.sock");
    EXPECT_EQ(dir->detokenizer(), "ipc://" + path_ + "/detokenizer.sock");
    EXPECT_EQ(dir->requests(ReplicaId{0}), "ipc://" + path_ + "/requests-0.sock");
    EXPECT_EQ(dir->control(ReplicaId{3}), "ipc://" + path_ + "/control-3.sock");
    EXPECT_EQ(dir->workers(ReplicaId{12}), "ipc://" + path_ + "/workers-12.sock");
}

TEST_F(RunDirTest, RefusesWhatIsNotADirectory) {
    EXPECT_EQ(code_of(""), ErrorCode::kNotFound);
    EXPECT_EQ(code_of(path_ + "/missing"), ErrorCode::kNotFound);
    std::ofstream(path_ + "/file") << "x";
    EXPECT_EQ(code_of(path_ + "/file"), ErrorCode::kInvalidArgument);
}

TEST_F(RunDirTest, RefusesADirectoryThatOthersCanEnter) {
    for (const unsigned mode : {0701U, 0710U, 0704U, 0755U, 0777U}) {
        ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
        EXPECT_EQ(code_of(path_), ErrorCode::kPermissionDenied) << std::oct << mode;
    }
}

TEST_F(RunDirTest, RefusesADirectoryOfAnotherUser) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
    ASSERT_EQ(::chown(path_.c_str(), 1, 1), 0);
    EXPECT_EQ(code_of(path_), ErrorCode::kPermissionDenied);
}

TEST_F(RunDirTest, RefusesAPathThatDoesNotFitASocketAddress) {
    const auto make = [&](std::size_t size) {
        std::string path = path_;
        while (path.size() < size) {
            path += '/' + std::string(std::min<std::size_t>(50, size - path.size() - 1), 'd');
            ::mkdir(path.c_str(), 0700);
        }
        return path;
    };
    constexpr std::size_t kLongest =
        kSocketPathBytesMax - std::string_view("/requests-9999.sock").size();
    const Result<RunDir> longest = RunDir::open(make(kLongest));
    ASSERT_TRUE(longest) << longest.error().message;
    EXPECT_EQ(
        longest->requests(ReplicaId{9999}).size(),
        kSocketPathBytesMax + std::string("ipc://").size()
    );
    EXPECT_EQ(code_of(make(kLongest + 1)), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pitstop::bus
