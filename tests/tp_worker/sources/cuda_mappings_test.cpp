// Mappings of senders' memory over the messages of an update, on the GPU in software. The importer
// is a separate process, because CUDA does not open a process's own memory.
#include "tp_worker/sources/cuda_mappings.h"

#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/device_range.h"
#include "tests/emulated_gpu/in_process.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kBytes = 4096;

std::string hex_of(const std::string& bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string hex;
    for (const char byte : bytes) {
        hex += kDigits[static_cast<unsigned char>(byte) / 16];
        hex += kDigits[static_cast<unsigned char>(byte) % 16];
    }
    return hex;
}

std::string handle_in(const char* name) {
    const std::string hex = std::getenv(name);
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

unsigned char first_byte(const kernels::DeviceImport& import) {
    unsigned char byte = 0;
    kernels::copy_and_wait(&byte, import.data(), 1);
    return byte;
}

int find_again() {
    if (!kernels::open_cuda_device(0)) return 1;
    const std::string handle = handle_in("PITSTOP_TEST_HANDLE");
    const CudaMappings::Sender sender{::getppid(), "/torch_1_2_3"};
    CudaMappings mappings;
    for (int message = 0; message < 3; ++message) {
        mappings.begin_message();
        for (int tensor = 0; tensor < 2; ++tensor) {
            const auto found = mappings.find(handle, sender);
            if (!found || first_byte(**found) != 7) return 2;
        }
        mappings.end_message();
    }
    if (mappings.num_opened() != 1 || mappings.num_found_open() != 5) return 3;
    // A new process that has the number of an ended one has other counters.
    mappings.begin_message();
    if (!mappings.find(handle, {::getppid(), "/torch_1_9_3"})) return 4;
    mappings.end_message();
    if (mappings.num_opened() != 2 || mappings.num_open() != 2) return 5;
    mappings.clear();
    mappings.begin_message();
    if (mappings.num_open() != 0 || !mappings.find(handle, sender)) return 6;
    mappings.end_message();
    return mappings.num_opened() == 3 ? 0 : 7;
}

int close_what_has_ended() {
    if (!kernels::open_cuda_device(0)) return 1;
    const std::string handle = handle_in("PITSTOP_TEST_HANDLE");
    const pid_t child = ::fork();
    if (child == 0) {
        ::pause();
        _exit(0);
    }
    CudaMappings mappings;
    mappings.begin_message();
    if (!mappings.find(handle, {child, "/torch_1_2_3"})) return 2;
    mappings.end_message();
    if (mappings.num_open() != 1) return 3;
    ::kill(child, SIGKILL);
    if (::waitpid(child, nullptr, 0) != child) return 4;
    mappings.begin_message();
    return mappings.num_open() == 0 ? 0 : 5;
}

int close_the_oldest() {
    if (!kernels::open_cuda_device(0)) return 1;
    const std::string handle = handle_in("PITSTOP_TEST_HANDLE");
    CudaMappings mappings;
    const auto sender = [](std::size_t i) {
        return CudaMappings::Sender{::getppid(), "/torch_1_2_" + std::to_string(i)};
    };
    for (std::size_t i = 0; i <= CudaMappings::kMax; ++i) {
        mappings.begin_message();
        if (!mappings.find(handle, sender(i))) return 2;
        mappings.end_message();
    }
    if (mappings.num_open() != CudaMappings::kMax) return 3;
    mappings.begin_message();
    if (!mappings.find(handle, sender(1)) || mappings.num_found_open() != 1) return 4;
    if (!mappings.find(handle, sender(0)) || mappings.num_found_open() != 1) return 5;
    return 0;
}

// CUDA's second open fails, as if an earlier message's mapping were at the new address.
int open_where_a_stale_one_was() {
    if (!kernels::open_cuda_device(0)) return 1;
    const std::string handle = handle_in("PITSTOP_TEST_HANDLE");
    CudaMappings mappings;
    mappings.begin_message();
    if (!mappings.find(handle, {::getppid(), "/torch_1_2_3"})) return 2;
    mappings.end_message();
    mappings.begin_message();
    const auto found = mappings.find(handle, {::getppid(), "/torch_1_2_4"});
    if (!found || first_byte(**found) != 7) return 3;
    return mappings.num_open() == 1 ? 0 : 4;
}

int read_chunks() {
    if (!kernels::open_cuda_device(0)) return 1;
    const std::string handle = handle_in("PITSTOP_TEST_HANDLE");
    const CudaMappings::Sender sender{::getppid(), "/torch_1_2_3"};
    const std::int64_t free = kernels::device_memory_info().free_bytes;
    CudaMappings mappings;
    for (int message = 0; message < 2; ++message) {
        mappings.begin_message();
        const auto found = mappings.find(handle, sender);
        if (!found) return 2;
        std::vector<unsigned char> bytes(static_cast<std::size_t>((*found)->bytes()), 0);
        kernels::copy_and_wait(bytes.data(), (*found)->data(), (*found)->bytes());
        // The bytes have the handle's order, in which the second chunk is first.
        if (bytes.size() != std::size_t{4} << 20 || bytes.front() != 9 || bytes.back() != 7)
            return 3;
        if (kernels::device_memory_info().free_bytes != free) return 4;  // the exporter owns it
        mappings.end_message();
        if (mappings.num_open() != 0) return 5;  // the handle's numbers may mean other memory now
    }
    return mappings.num_opened() == 2 ? 0 : 6;
}

const bool are_parts_defined =
    emulator::define_part("mappings_again", find_again) &&
    emulator::define_part("mappings_ended", close_what_has_ended) &&
    emulator::define_part("mappings_oldest", close_the_oldest) &&
    emulator::define_part("mappings_stale", open_where_a_stale_one_was) &&
    emulator::define_part("mappings_chunks", read_chunks);

class CudaMappingsTest : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(are_parts_defined);
        ASSERT_TRUE(kernels::open_cuda_device(0).has_value());
    }

    // Returns a handle of memory that is full of sevens.
    std::string legacy_handle() {
        buffer_ = *kernels::DeviceBuffer::create(kBytes);
        const std::vector<unsigned char> sevens(kBytes, 7);
        kernels::copy_and_wait(buffer_.data(), sevens.data(), kBytes);
        return "\x03"
               "c" +
               kernels::ipc_handle_of(buffer_);
    }

    kernels::DeviceBuffer buffer_{};
};

TEST_F(CudaMappingsTest, AnAllocationIsOpenedOnceAnUpdateAndForEachSenderAnew) {
    EXPECT_EQ(
        emulator::run_part("mappings_again", {{"PITSTOP_TEST_HANDLE", hex_of(legacy_handle())}}), 0
    );
}

TEST_F(CudaMappingsTest, MappingsOfASenderThatHasEndedAreClosed) {
    EXPECT_EQ(
        emulator::run_part("mappings_ended", {{"PITSTOP_TEST_HANDLE", hex_of(legacy_handle())}}), 0
    );
}

TEST_F(CudaMappingsTest, TheMappingUsedLongestAgoIsClosedWhereThereAreTooMany) {
    EXPECT_EQ(
        emulator::run_part("mappings_oldest", {{"PITSTOP_TEST_HANDLE", hex_of(legacy_handle())}}), 0
    );
}

TEST_F(CudaMappingsTest, AMappingInTheWayOfANewAllocationIsClosed) {
    EXPECT_EQ(
        emulator::run_part(
            "mappings_stale",
            {{"PITSTOP_TEST_HANDLE", hex_of(legacy_handle())},
             {"PITSTOP_EMULATED_FAULTS", "cudaIpcOpenMemHandle:2=cudaErrorInvalidValue"}}
        ),
        0
    );
}

TEST_F(CudaMappingsTest, ChunksAreMappedInTheOrderOfTheirDescriptorsForOneMessage) {
    constexpr std::int64_t kChunk = std::int64_t{2} << 20;
    std::string fds;
    std::vector<kernels::DeviceRange> chunks;
    for (const unsigned char fill : std::array<unsigned char, 2>{9, 7}) {
        chunks.push_back(*kernels::DeviceRange::reserve(kChunk));
        ASSERT_TRUE(chunks.back().map().has_value());
        const std::vector<unsigned char> bytes(kChunk, fill);
        kernels::copy_and_wait(chunks.back().data(), bytes.data(), kChunk);
        const Result<int> fd = chunks.back().export_chunk(0);
        ASSERT_TRUE(fd.has_value());
        fds.append(reinterpret_cast<const char*>(&*fd), sizeof(int));
    }
    struct {
        std::int64_t pid;
        std::int64_t chunk_bytes = kChunk;
        std::int64_t num = 2;
    } const header{.pid = ::getpid()};
    const std::string handle =
        "\x02"
        "e" +
        std::string(reinterpret_cast<const char*>(&header), sizeof header) + fds;
    EXPECT_EQ(emulator::run_part("mappings_chunks", {{"PITSTOP_TEST_HANDLE", hex_of(handle)}}), 0);
}

}  // namespace
}  // namespace pitstop::tp_worker
