// free_host_bytes and total_host_bytes over files in the kernel's form, under a root of the test's
// own.
#include "tp_worker/device/host_room.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace pitstop::tp_worker {
namespace {

namespace fs = std::filesystem;

class HostRoom : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = (fs::temp_directory_path() / "pitstop-host-room-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        root_ = name;
    }
    void TearDown() override { fs::remove_all(root_); }

    void write(const std::string& path, const std::string& text) const {
        const fs::path whole = root_.string() + path;
        fs::create_directories(whole.parent_path());
        std::ofstream(whole) << text;
    }
    void write_machine(std::int64_t available_kib) const {
        write(
            "/proc/meminfo",
            "MemTotal:       9000 kB\nMemFree:  1 kB\nMemAvailable:   " +
                std::to_string(available_kib) + " kB\nBuffers: 3 kB\n"
        );
    }
    void write_group(
        const std::string& group,
        const std::string& most,
        std::int64_t used,
        std::int64_t inactive_file = 0
    ) const {
        const std::string at = "/sys/fs/cgroup" + group;
        write(at + "/memory.max", most + "\n");
        write(at + "/memory.current", std::to_string(used) + "\n");
        write(
            at + "/memory.stat",
            "anon 5\nactive_file 77\ninactive_file " + std::to_string(inactive_file) + "\n"
        );
    }
    [[nodiscard]] std::int64_t free() const { return free_host_bytes(root_.string()); }

    fs::path root_;
};

TEST_F(HostRoom, IsWhatTheMachineSaysIsAvailable) {
    write_machine(4096);
    EXPECT_EQ(free(), 4096 * 1024);
}

TEST_F(HostRoom, IsLessWhereAGroupAllowsLess) {
    write_machine(4096);
    write("/proc/self/cgroup", "0::/pod/worker\n");
    write_group("/pod/worker", "1000000", 400000, 100000);
    EXPECT_EQ(free(), 700000) << "cached files that nobody uses make room";
}

TEST_F(HostRoom, EveryGroupAboveCounts) {
    write_machine(4096);
    write("/proc/self/cgroup", "0::/pod/worker\n");
    write_group("/pod/worker", "max", 400000);
    write_group("/pod", "900000", 400000);
    EXPECT_EQ(free(), 500000);
    write_group("", "600000", 400000);  // a container sees its own group as the top
    EXPECT_EQ(free(), 200000);
}

TEST_F(HostRoom, AGroupThatIsFullHasNone) {
    write_machine(4096);
    write("/proc/self/cgroup", "0::/\n");
    write_group("", "1000", 2000);
    EXPECT_EQ(free(), 0);
}

TEST_F(HostRoom, GroupsOfTheFirstVersionSayNothing) {
    write_machine(4096);
    write("/proc/self/cgroup", "12:memory:/pod\n3:cpu:/pod\n");
    write_group("/pod", "1000", 2000);
    EXPECT_EQ(free(), 4096 * 1024);
}

TEST_F(HostRoom, IsUnlimitedWhereNothingSays) {
    EXPECT_EQ(free(), std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(total_host_bytes(root_.string()), std::numeric_limits<std::int64_t>::max());
}

TEST_F(HostRoom, ATotalIsTheLeastLimitWhateverIsTaken) {
    write_machine(4096);
    EXPECT_EQ(total_host_bytes(root_.string()), 9000 * 1024);
    write("/proc/self/cgroup", "0::/pod/worker\n");
    write_group("/pod/worker", "max", 400000);
    write_group("/pod", "900000", 899999);
    EXPECT_EQ(total_host_bytes(root_.string()), 900000);
}

}  // namespace
}  // namespace pitstop::tp_worker
