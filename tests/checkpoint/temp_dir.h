// A temporary directory of one test, removed at the end.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace pitstop::test {

class TempDir {
  public:
    TempDir() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "pitstop-test-XXXXXX").string();
        EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
        path_ = pattern;
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string path(const std::string& name) const { return path_ + "/" + name; }

    void write(const std::string& name, const std::string& content) const {
        std::ofstream(path(name), std::ios::binary) << content;
    }
    [[nodiscard]] std::string read(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void truncate(const std::string& name, std::uintmax_t size) const {
        std::filesystem::resize_file(path(name), size);
    }
    void remove(const std::string& name) const { std::filesystem::remove(path(name)); }
    // Copies the files of another directory.
    void copy_from(const std::string& other) const {
        std::filesystem::copy(other, path_, std::filesystem::copy_options::recursive);
    }

  private:
    std::string path_;
};

}  // namespace pitstop::test
