#include "base/mapped_file.h"

#include "tests/no_descriptors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>

namespace pitstop {
namespace {

class MappedFileTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "/mapped-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        dir_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(dir_); }
    std::string write(const std::string& name, const std::string& bytes) {
        std::ofstream(dir_ / name, std::ios::binary) << bytes;
        return dir_ / name;
    }
    std::filesystem::path dir_{};
};

std::string text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST_F(MappedFileTest, ShowsTheBytesAndOutlivesTheName) {
    const std::string path = write("a", std::string("one\0two", 7));
    Result<MappedFile> file = MappedFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    std::filesystem::remove(path);
    const MappedFile moved = *std::move(file);
    EXPECT_EQ(text_of(moved), std::string("one\0two", 7));
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
    const Result<MappedFile> file = MappedFile::open(write("empty", ""));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, AFileThatCannotBeOpenedIsNamed) {
    const Result<MappedFile> missing = MappedFile::open(dir_ / "missing");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
    EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
    EXPECT_FALSE(MappedFile::open(dir_)) << "a directory";
}

TEST_F(MappedFileTest, WithoutDescriptorsTheErrorDoesNotBlameTheFile) {
    const std::string path = write("a", "one");
    const test::NoDescriptors none;
    const Result<MappedFile> file = MappedFile::open(path);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, ErrorCode::kResourceExhausted) << file.error().message;
}

TEST_F(MappedFileTest, AFifoThatNobodyWritesToIsRefusedAtOnce) {
    const std::string path = dir_ / "fifo";
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const auto file = MappedFile::open(path);
    ::unlink(path.c_str());
    ASSERT_FALSE(file.has_value());
    EXPECT_NE(file.error().message.find("not a regular file"), std::string::npos);
}

TEST_F(MappedFileTest, ReadTakesASmallFileWholeAndRefusesALargeOne) {
    const std::string path = write("b", "12345");
    const Result<std::string> exact = MappedFile::read(path, 5);
    ASSERT_TRUE(exact) << exact.error().message;
    EXPECT_EQ(*exact, "12345");
    const Result<std::string> over = MappedFile::read(path, 4);
    ASSERT_FALSE(over);
    EXPECT_EQ(over.error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace pitstop
