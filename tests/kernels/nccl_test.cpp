// NCCL's communicators on the GPU in software: each rank is a process with a GPU of its own. Every
// query is answered at once, even if other ranks have not joined.
#include "kernels/runtime/nccl.h"

#include "base/time.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/emulated_gpu/in_process.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::kernels {
namespace {

using emulator::define_part;
using emulator::run_part;
using emulator::start_part;
using emulator::wait_part;

constexpr std::int64_t kNum = 40'000;  // floats: several of the pieces that ranks exchange

int rank_of_this() { return std::stoi(std::getenv("PITSTOP_TEST_RANK")); }

int wrong(const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", rank_of_this(), what.c_str());
    return 1;
}

// The id that rank 0 made: it writes a file, which the others wait for.
Result<std::string> common_id() {
    const std::string path = std::getenv("PITSTOP_TEST_ID");
    if (rank_of_this() == 0) {
        ASSIGN_OR_RETURN(const std::string id, make_nccl_id());
        std::ofstream(path + ".partial", std::ios::binary) << id;
        std::filesystem::rename(path + ".partial", path);
        return id;
    }
    while (!std::filesystem::exists(path)) std::this_thread::yield();
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
}

Result<NcclCommunicator> begin(int num_ranks) {
    RETURN_IF_ERROR(open_cuda_device(rank_of_this()));
    ASSIGN_OR_RETURN(const std::string id, common_id());
    return NcclCommunicator::begin(
        {.id = id, .num_ranks = num_ranks, .rank = rank_of_this(), .max_ctas = 4}
    );
}

// Asks again until `is_so`, or until an error.
Result<> settle(NcclCommunicator& comm) {
    while (true) {
        ASSIGN_OR_RETURN(const bool is_ready, comm.is_ready());
        if (is_ready) return Ok{};
        std::this_thread::yield();
    }
}

// Joins, receives a broadcast, sums, and leaves.
Result<> exchange_all() {
    ASSIGN_OR_RETURN(NcclCommunicator comm, begin(2));
    RETURN_IF_ERROR(settle(comm));
    ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::create(StreamPriority::kStep));
    ASSIGN_OR_RETURN(const DeviceBuffer data, DeviceBuffer::create(kNum * 4));
    auto* const floats = static_cast<float*>(data.data());
    std::vector<float> values(kNum, rank_of_this() == 1 ? 1.5f : -7.f);
    copy_and_wait(floats, values.data(), kNum * 4);
    RETURN_IF_ERROR(comm.broadcast(floats, kNum * 4, NcclType::kBytes, 1, stream.stream()));
    RETURN_IF_ERROR(settle(comm));
    RETURN_IF_ERROR(comm.all_reduce_sum(floats, kNum, stream.stream()));
    RETURN_IF_ERROR(settle(comm));
    stream.wait();
    copy_and_wait(values.data(), floats, kNum * 4);
    if (values != std::vector<float>(kNum, 3.f)) return make_error(ErrorCode::kInternal, "values");
    RETURN_IF_ERROR(comm.begin_finalize());
    RETURN_IF_ERROR(settle(comm));
    comm.destroy();
    return Ok{};
}

int be_exchanging() {
    const Result<> done = exchange_all();
    return done ? 0 : wrong(done.error().message);
}

// Rank 1 never joins: no call waits, and an abort, or destruction, ends what was begun.
int be_alone() {
    for (const bool is_aborted : {true, false}) {
        Result<NcclCommunicator> comm = begin(2);
        if (!comm) return wrong(comm.error().message);
        for (int i = 0; i < 100; ++i) {
            const Result<bool> is_ready = comm->is_ready();
            if (!is_ready || *is_ready) return wrong("nobody has come");
        }
        NcclCommunicator moved =
            *std::move(comm);  // the moved-from communicator has nothing to abort
        if (is_aborted) moved.abort();
    }
    return 0;
}

// Rank 1 dies after both have joined; rank 0 has one of its broadcasts in flight, which an abort
// ends.
int be_left() {
    Result<NcclCommunicator> comm = begin(2);
    if (!comm) return wrong(comm.error().message);
    if (const Result<> joined = settle(*comm); !joined) return wrong(joined.error().message);
    const std::string both_are_there = std::string(std::getenv("PITSTOP_TEST_ID")) + ".joined";
    if (rank_of_this() == 1) {
        while (!std::filesystem::exists(both_are_there)) std::this_thread::yield();
        ::raise(SIGKILL);
    }
    std::ofstream(both_are_there) << "rank 0 has joined";
    const Result<DeviceStream> stream = DeviceStream::create(StreamPriority::kStep);
    const Result<DeviceBuffer> data = DeviceBuffer::create(64);
    if (!stream || !data) return wrong("no memory");
    Result<> lost = comm->broadcast(data->data(), 64, NcclType::kBytes, 1, stream->stream());
    while (lost) {
        const Result<bool> is_ready = comm->is_ready();
        if (!is_ready) lost = is_ready.error();
    }
    if (lost.error().code != ErrorCode::kUnavailable) return wrong(lost.error().message);
    comm->abort();
    stream->wait();  // must end
    return 0;
}

// The rank that joins second with another number of ranks gets an error.
int be_miscounting() {
    Result<NcclCommunicator> first = begin(2);
    if (!first) return wrong(first.error().message);
    std::ifstream file(std::getenv("PITSTOP_TEST_ID"), std::ios::binary);
    const std::string id{std::istreambuf_iterator<char>(file), {}};
    const Result<NcclCommunicator> second =
        NcclCommunicator::begin({.id = id, .num_ranks = 3, .rank = 1});
    if (second) return wrong("two worlds are one");
    return second.error().code == ErrorCode::kFailedPrecondition ? 0
                                                                 : wrong(second.error().message);
}

// An id that no rank made.
int be_misled() {
    if (!open_cuda_device(0)) return wrong("no GPU");
    const std::string id(kNcclIdBytes, '\0');
    const Result<NcclCommunicator> comm =
        NcclCommunicator::begin({.id = id, .num_ranks = 2, .rank = 0});
    if (comm) return wrong("it began");
    const std::string& message = comm.error().message;
    const bool is_told = comm.error().code == ErrorCode::kUnavailable &&
                         message.starts_with("NCCL 2.28.9: ncclCommInitRankConfig: ");
    return is_told ? 0 : wrong(message);
}

const bool defined = define_part("exchanging", be_exchanging) && define_part("alone", be_alone) &&
                     define_part("left", be_left) && define_part("miscounting", be_miscounting) &&
                     define_part("misled", be_misled);

class NcclTest : public testing::Test {
  protected:
    std::map<std::string, std::string> environment(int rank) const {
        return {
            {"PITSTOP_EMULATED_GPUS", "2"},
            {"PITSTOP_EMULATED_MACHINE", dir_.path("machine")},
            {"PITSTOP_TEST_ID", dir_.path("id")},
            {"PITSTOP_TEST_RANK", std::to_string(rank)}};
    }
    // Runs rank 0 and rank 1; returns their results.
    std::pair<int, int> run(const std::string& part) const {
        EXPECT_TRUE(defined);
        const int other = start_part(part, environment(1));
        const int first = run_part(part, environment(0));
        return {first, wait_part(other)};
    }
    test::TempDir dir_{};
};

TEST_F(NcclTest, RanksJoinExchangeAndTakeLeave) { EXPECT_EQ(run("exchanging"), (std::pair{0, 0})); }

TEST_F(NcclTest, P5_ARankThatIsAloneWaitsForNobody) {
    EXPECT_EQ(run_part("alone", environment(0)), 0);
}

TEST_F(NcclTest, P5_ARankThatDiesIsAnErrorAndWhatIsInFlightEnds) {
    EXPECT_EQ(run("left"), (std::pair{0, 128 + SIGKILL}));
}

TEST_F(NcclTest, AnotherNumberOfRanksIsRefused) {
    EXPECT_EQ(run_part("miscounting", environment(0)), 0);
}

TEST_F(NcclTest, AnIdThatNobodyMadeIsAnError) { EXPECT_EQ(run_part("misled", environment(0)), 0); }

TEST_F(NcclTest, WithoutAnOpenGpuThereIsNeitherAnIdNorARank) {
    const Result<std::string> id = make_nccl_id();
    ASSERT_FALSE(id);
    EXPECT_EQ(id.error().code, ErrorCode::kUnsupported);
    const std::string zeros(kNcclIdBytes, '\0');
    const Result<NcclCommunicator> comm =
        NcclCommunicator::begin({.id = zeros, .num_ranks = 2, .rank = 0});
    ASSERT_FALSE(comm);
    EXPECT_EQ(comm.error().code, ErrorCode::kUnsupported);
}

TEST_F(NcclTest, ElementsHaveTheirSizes) {
    for (const auto& [type, bytes] :
         {std::pair{NcclType::kBytes, 1},
          {NcclType::kF16, 2},
          {NcclType::kBf16, 2},
          {NcclType::kI32, 4},
          {NcclType::kF32, 4},
          {NcclType::kI64, 8},
          {NcclType::kF64, 8}})
        EXPECT_EQ(bytes_of(type), bytes);
}

}  // namespace
}  // namespace pitstop::kernels
