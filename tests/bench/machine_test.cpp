#include "bench/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace pitstop::bench {
namespace {

TEST(Machine, SaysWhatItIs) {
    const Machine machine = this_machine();
    EXPECT_FALSE(machine.cpu.empty());
    EXPECT_GE(machine.cores, 1);
    EXPECT_GT(machine.memory_bytes, std::int64_t{1} << 28);
}

class TreeFile : public testing::Test {
  protected:
    TreeFile()
        : directory_(
              std::filesystem::temp_directory_path() / ("tree-" + std::to_string(::getpid()))
          ) {
        std::filesystem::create_directory(directory_);
    }
    ~TreeFile() override { std::filesystem::remove_all(directory_); }
    void write(const std::string& text) { std::ofstream(directory_ / "tree.json") << text; }

    std::filesystem::path directory_;
};

TEST_F(TreeFile, ProcessesAreFoundByTheirPid) {
    write(
        R"({"launcher": 1, "processes": [{"name": "tp_worker[0.0]", "kind": "tp_worker", "pid": )" +
        std::to_string(::getpid()) + R"(}, {"name": "gone", "pid": 4194305}]})"
    );
    const auto processes = processes_of(directory_);
    ASSERT_TRUE(processes.has_value());
    ASSERT_EQ(processes->size(), 2u);  // the launcher and this process: no pid is over 2^22
    EXPECT_EQ(processes->back().name, "tp_worker[0.0]");
    EXPECT_GT(processes->back().peak_bytes, 1 << 20);
    EXPECT_GE(processes->back().peak_bytes, processes->back().resident_bytes);
}

TEST_F(TreeFile, AFileThatIsNoTreeFileIsAnError) {
    EXPECT_FALSE(processes_of(directory_).has_value());
    for (const char* text : {"", "[]", "{}", R"({"processes": [{}]})", R"({"processes": [1]})"}) {
        write(text);
        EXPECT_FALSE(processes_of(directory_).has_value()) << text;
    }
}

}  // namespace
}  // namespace pitstop::bench
