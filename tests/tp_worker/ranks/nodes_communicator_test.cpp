// Exchanges of ranks of several machines within a step, by NCCL on the GPU in software: each rank
// is a process on a machine of its own, with one GPU.
#include "tp_worker/ranks/nodes_communicator.h"

#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/emulated_gpu/in_process.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using emulator::define_part;
using emulator::start_part;
using emulator::wait_part;
using std::chrono::milliseconds;
using std::chrono::seconds;

int number_of(const char* name) { return std::stoi(std::getenv(name)); }

// Prints the fault of a part, and returns the part's exit status.
int wrong(const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", number_of("PITSTOP_TEST_RANK"), what.c_str());
    return 1;
}

struct Side {
    std::unique_ptr<Communicator> host{};
    kernels::DeviceStream stream{};
    std::shared_ptr<NcclTurn> turn = std::make_shared<NcclTurn>();
    std::unique_ptr<Communicator> ranks{};

    [[nodiscard]] int rank() const { return raw(host->rank()); }
};

Result<Side> open_side() {
    Side side;
    RETURN_IF_ERROR(kernels::open_cuda_device(0));
    ASSIGN_OR_RETURN(
        side.host,
        attach_shm_communicator(
            {.path = std::getenv("PITSTOP_TEST_PLACE"),
             .rank = static_cast<Rank>(number_of("PITSTOP_TEST_RANK")),
             .size = number_of("PITSTOP_TEST_SIZE"),
             .attach_timeout = seconds(60),
             .peer_timeout = seconds(60)}
        )
    );
    ASSIGN_OR_RETURN(side.stream, kernels::DeviceStream::create(kernels::StreamPriority::kStep));
    ASSIGN_OR_RETURN(
        side.ranks,
        connect_nodes_communicator(
            {.host = *side.host,
             .stream = side.stream.stream(),
             .limit = milliseconds(number_of("PITSTOP_TEST_LIMIT_MS")),
             .nccl_turn = side.turn}
        )
    );
    return side;
}

Result<kernels::DeviceBuffer> upload(const std::vector<float>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    ASSIGN_OR_RETURN(kernels::DeviceBuffer buffer, kernels::DeviceBuffer::create(bytes));
    kernels::copy_and_wait(buffer.data(), values.data(), bytes);
    return buffer;
}

std::vector<float> fetch(const kernels::DeviceBuffer& buffer, std::size_t num) {
    std::vector<float> values(num);
    const auto bytes = static_cast<std::int64_t>(num * sizeof(float));
    kernels::copy_and_wait(values.data(), buffer.data(), bytes);
    return values;
}

// Sums twos; returns what went wrong.
std::string sum_twos(const Side& side) {
    constexpr std::size_t kNum = 20'000;
    const Result<kernels::DeviceBuffer> data = upload(std::vector<float>(kNum, 2.f));
    if (!data) return data.error().message;
    Result<> summed = side.ranks->begin_sums(0);
    if (summed) summed = side.ranks->all_reduce_sum({static_cast<float*>(data->data()), kNum});
    if (summed) summed = side.ranks->finish_sums();
    if (!summed) return summed.error().message;
    const auto expected = 2.f * static_cast<float>(side.host->size());
    return fetch(*data, kNum) == std::vector<float>(kNum, expected) ? "" : "a wrong sum";
}

// Gathers the columns that exist: with more rows than fit at once, and a last rank without any.
std::string gather(const Side& side, std::int64_t n, std::int64_t V) {
    const int size = side.host->size();
    const std::int64_t C = (V + size - 1) / size;
    std::vector<float> part(static_cast<std::size_t>(n * C), -1.f);
    for (std::int64_t i = 0; i < n * C; ++i)
        part[static_cast<std::size_t>(i)] = static_cast<float>(i / C * V + side.rank() * C + i % C);
    const bool is_root = side.rank() == 0;
    const auto num = static_cast<std::size_t>(n * V);
    const Result<kernels::DeviceBuffer> mine = upload(part);
    const Result<kernels::DeviceBuffer> whole = upload(std::vector<float>(is_root ? num : 1, -2.f));
    if (!mine || !whole) return "no memory";
    const View2<const float> from = view2(static_cast<const float*>(mine->data()), n, C);
    const View2<float> to =
        is_root ? view2(static_cast<float*>(whole->data()), n, V) : View2<float>{};
    if (const Result<> done = side.ranks->gather_columns(from, to); !done)
        return done.error().message;
    if (!is_root) return "";
    const std::vector<float> all = fetch(*whole, num);
    for (std::size_t i = 0; i < num; ++i) {
        if (all[i] != static_cast<float>(i)) return "a wrong column";
    }
    return "";
}

std::string gather_records(const Side& side) {
    constexpr std::size_t kNum = 64;  // floats of a rank
    const auto size = static_cast<std::size_t>(side.host->size());
    const Result<kernels::DeviceBuffer> mine =
        upload(std::vector<float>(kNum, static_cast<float>(side.rank())));
    const Result<kernels::DeviceBuffer> all = upload(std::vector<float>(kNum * size, -2.f));
    if (!mine || !all) return "no memory";
    const Result<> done = side.ranks->all_gather_records(
        {static_cast<const std::byte*>(mine->data()), kNum * sizeof(float)},
        {static_cast<std::byte*>(all->data()), kNum * size * sizeof(float)}
    );
    if (!done) return done.error().message;
    const std::vector<float> values = fetch(*all, kNum * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i] != static_cast<float>(i / kNum)) return "a wrong record";
    }
    return "";
}

int be_exchanging() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    if (side->ranks->may_be_captured()) return wrong("NCCL is waited for on the host");
    for (int step = 0; step < 2; ++step) {
        if (const std::string bad = sum_twos(*side); !bad.empty()) return wrong(bad);
        for (const auto& [n, V] : {std::pair{1, 5}, std::pair{3, 8}, std::pair{5, 1'000'001}}) {
            if (const std::string bad = gather(*side, n, V); !bad.empty()) return wrong(bad);
        }
        if (const std::string bad = gather_records(*side); !bad.empty()) return wrong(bad);
    }
    if (!side->turn->try_take("a trainer's")) return wrong("the turn is kept");
    return side->host->barrier() ? 0 : wrong("nobody leaves before");
}

// A trainer's group on rank 1 keeps NCCL for a while: the step waits on all ranks, then continues.
int be_waiting() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    std::optional<NcclTurn::Held> held;
    if (side->rank() == 1) held.emplace(*side->turn->try_take("a trainer's"));
    if (!side->host->barrier()) return wrong("no start");
    std::thread trainer([&] {
        std::this_thread::sleep_for(milliseconds(50));  // rank 0's step has begun, or waits
        held.reset();
    });
    const std::string bad = sum_twos(*side);
    trainer.join();
    if (!bad.empty()) return wrong(bad);
    return side->host->barrier() ? 0 : wrong("nobody leaves before");
}

// A group keeps its turn for a part of the step's limit, however long its trainer's call may wait.
int be_bounded() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const std::atomic<bool> never{false};
    const Patience bounded = side->turn->within_bound({TimePoint::max(), never});
    const Duration limit = milliseconds(number_of("PITSTOP_TEST_LIMIT_MS"));
    if (bounded.deadline > Clock::now() + limit / kTrainerShare) return wrong("no bound");
    return side->host->barrier() ? 0 : wrong("nobody leaves before");
}

// Rank 1 is killed before a step's first sum: rank 0's error names rank 1.
int be_lost() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    if (!side->host->barrier()) return wrong("no start");
    if (side->rank() == 1) ::raise(SIGKILL);
    const std::string message = sum_twos(*side);
    return message.find("rank 1") != std::string::npos ? 0 : wrong(message);
}

const bool defined = define_part("exchanging over nodes", be_exchanging) &&
                     define_part("waiting over nodes", be_waiting) &&
                     define_part("bounded over nodes", be_bounded) &&
                     define_part("lost over nodes", be_lost);

class NodesCommunicatorTest : public testing::Test {
  protected:
    void start(const std::string& part, int size) {
        ASSERT_TRUE(defined);
        std::map<std::string, std::string> environment{
            {"PITSTOP_EMULATED_GPUS", "1"},
            {"PITSTOP_TEST_SIZE", std::to_string(size)},
            {"PITSTOP_TEST_PLACE", dir_.path("ranks")},
            {"PITSTOP_TEST_LIMIT_MS", "20000"}};
        for (int rank = 0; rank < size; ++rank) {
            environment["PITSTOP_TEST_RANK"] = std::to_string(rank);
            environment["PITSTOP_EMULATED_MACHINE"] = dir_.path(fmt::format("machine-{}", rank));
            ranks_.push_back(start_part(part, environment));
        }
    }
    int status_of(std::size_t rank) {
        const int process = ranks_[rank];
        ranks_[rank] = -1;
        return wait_part(process);
    }
    void TearDown() override {
        for (const int process : ranks_) {
            if (process < 0) continue;
            ::kill(process, SIGKILL);
            (void)wait_part(process);
        }
    }
    test::TempDir dir_{};
    std::vector<int> ranks_{};
};

TEST_F(NodesCommunicatorTest, SumsColumnsAndRecordsOfAllRanksComeTogether) {
    start("exchanging over nodes", 3);
    for (const std::size_t rank : {0u, 1u, 2u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(NodesCommunicatorTest, AStepWaitsForATrainersGroupWithTheOtherRanks) {
    start("waiting over nodes", 2);
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(NodesCommunicatorTest, P5_AGroupKeepsNcclForLessThanAStepWaits) {
    start("bounded over nodes", 2);
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(NodesCommunicatorTest, P5_ARankThatDiesBeforeItsSumIsNamed) {
    start("lost over nodes", 2);
    EXPECT_EQ(status_of(0), 0);
}

}  // namespace
}  // namespace pitstop::tp_worker
