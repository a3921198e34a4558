// NCCL between the ranks of a replica, on the GPU in software. Each rank is a process with its own
// GPU, because NCCL refuses two ranks on one GPU.
#include "tp_worker/ranks/rank_nccl.h"

#include "base/digest.h"
#include "kernels/runtime/cuda_device.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/emulated_gpu/in_process.h"
#include "tp_worker/ranks/gpu_communicator.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using emulator::define_part;
using emulator::start_part;
using emulator::wait_part;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kNum = 40'000;  // floats: several pieces of an exchange
constexpr std::int64_t kBytes = kNum * sizeof(float);

int number_of(const char* name) { return std::stoi(std::getenv(name)); }

// Prints the fault of a part, and returns the part's exit status.
int wrong(const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", number_of("PITSTOP_TEST_RANK"), what.c_str());
    return 1;
}

// The state with which every part begins.
struct Side {
    std::unique_ptr<Communicator> host{};
    kernels::DeviceStream stream{};
    kernels::DeviceBuffer data{};
    std::shared_ptr<NcclTurn> turn = std::make_shared<NcclTurn>();
    Duration limit{};

    [[nodiscard]] int rank() const { return raw(host->rank()); }
    [[nodiscard]] std::span<float> floats() const {
        return {static_cast<float*>(data.data()), kNum};
    }
    [[nodiscard]] RankNccl::Args nccl_args() const {
        return {
            .host = *host, .bus = *host, .turn = turn, .stream = stream.stream(), .limit = limit};
    }
    [[nodiscard]] GpuCommunicatorArgs gpu_args(SumPath sums) const {
        return {
            .host = *host,
            .bus = *host,
            .stream = stream.stream(),
            .limit = limit,
            .sums = sums,
            .nccl_turn = turn,
            .sum_bytes_max = std::int64_t{1} << 19,
            .is_timed = true};
    }
    void upload(const std::vector<float>& values) const {
        kernels::copy_and_wait(data.data(), values.data(), kBytes);
    }
    [[nodiscard]] std::vector<float> fetch() const {
        std::vector<float> values(kNum);
        kernels::copy_and_wait(values.data(), data.data(), kBytes);
        return values;
    }
    // Sums twos of two ranks, in a step that sums this many bytes. Returns what went wrong.
    [[nodiscard]] std::string sum_twos(Communicator& ranks, std::int64_t bytes) const {
        upload(std::vector<float>(kNum, 2.f));
        Result<> summed = ranks.begin_sums(bytes);
        if (summed) summed = ranks.all_reduce_sum(floats());
        if (summed) summed = ranks.finish_sums();
        if (!summed) return summed.error().message;
        stream.wait();
        const bool is_right = ranks.check() && fetch() == std::vector<float>(kNum, 4.f);
        return is_right ? "" : "a wrong sum";
    }
    // Returns whether all ranks have the same bytes.
    [[nodiscard]] bool is_everybodys(std::span<const std::byte> mine) const {
        std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(host->size()));
        if (!host->all_gather(mine, all)) return false;
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i] != mine[i % mine.size()]) return false;
        }
        return true;
    }
};

Result<Side> open_side() {
    const int rank = number_of("PITSTOP_TEST_RANK");
    Side side;
    side.limit = milliseconds(number_of("PITSTOP_TEST_LIMIT_MS"));
    RETURN_IF_ERROR(kernels::open_cuda_device(number_of("PITSTOP_TEST_GPU")));
    ASSIGN_OR_RETURN(
        side.host,
        attach_shm_communicator(
            {.path = std::getenv("PITSTOP_TEST_PLACE"),
             .rank = static_cast<Rank>(rank),
             .size = number_of("PITSTOP_TEST_SIZE"),
             .attach_timeout = seconds(60),
             .peer_timeout = milliseconds(number_of("PITSTOP_TEST_HOST_LIMIT_MS"))}
        )
    );
    ASSIGN_OR_RETURN(side.stream, kernels::DeviceStream::create(kernels::StreamPriority::kStep));
    ASSIGN_OR_RETURN(side.data, kernels::DeviceBuffer::create(kBytes));
    return side;
}

// Connects, and begins a step that uses NCCL; null if NCCL is missing or the step does not use it.
std::unique_ptr<RankNccl> begin_step(const Side& side) {
    Result<RankNccl::Connected> connected = RankNccl::connect(side.nccl_args());
    if (!connected || connected->nccl == nullptr) return nullptr;
    if (!connected->nccl->begin_step() || !connected->nccl->is_in_use()) return nullptr;
    return std::move(connected->nccl);
}

// All bits of the mantissa in use: the order of a sum shows.
float value_of(int rank, std::size_t i) {
    const std::uint64_t bits = mix64(i * 64 + static_cast<std::uint64_t>(rank)) >> 40;
    return static_cast<float>(bits) * (2000.f / 0x1p24f) - 1000.f;
}

std::string sum_values(const Side& side, RankNccl& nccl) {
    std::vector<float> mine(kNum);
    std::vector<float> whole(kNum);
    for (std::size_t i = 0; i < kNum; ++i) {
        mine[i] = value_of(side.rank(), i);
        for (int rank = 0; rank < side.host->size(); ++rank) whole[i] += value_of(rank, i);
    }
    side.upload(mine);
    for (int times = 0; times < 2; ++times) {  // one after the other
        if (const Result<> summed = nccl.all_reduce_sum(side.floats()); !summed)
            return summed.error().message;
    }
    if (const Result<> finished = nccl.finish_step(); !finished) return finished.error().message;
    if (nccl.is_in_use()) return "the step has not ended";
    const std::vector<float> sums = side.fetch();
    if (!side.is_everybodys(std::as_bytes(std::span(sums)))) return "others have other bits";
    constexpr float kRounding = 0.01f;  // of sums of some thousands, in any order
    for (std::size_t i = 0; i < kNum; ++i) {
        const float expected = whole[i] * static_cast<float>(side.host->size());
        if (std::abs(sums[i] - expected) > kRounding) return "a wrong sum";
    }
    return "";
}

int be_summing() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const Result<RankNccl::Connected> connected = RankNccl::connect(side->nccl_args());
    if (!connected) return wrong(connected.error().message);
    if (connected->nccl == nullptr) return wrong(connected->why_not);
    RankNccl& nccl = *connected->nccl;
    if (nccl.is_in_use()) return wrong("no step has begun");
    for (int step = 0; step < 2; ++step) {
        if (!nccl.begin_step() || !nccl.is_in_use()) return wrong("a step does without");
        if (const std::string why = sum_values(*side, nccl); !why.empty()) return wrong(why);
    }
    // A trainer's group of one rank has NCCL: no rank uses it, and the step has nothing to wait
    // for.
    {
        std::optional<NcclTurn::Held> held;
        if (side->rank() == 1) held.emplace(*side->turn->try_take("a trainer's"));
        if (!nccl.begin_step()) return wrong("a step cannot begin");
        if (nccl.is_in_use()) return wrong("two communicators at once");
        if (side->rank() == 0 && !side->turn->try_take("another")) return wrong("the turn is kept");
        if (!nccl.finish_step()) return wrong("nothing to wait for");
    }
    if (!nccl.begin_step() || !nccl.is_in_use()) return wrong("it is free again");
    if (const std::string why = sum_values(*side, nccl); !why.empty()) return wrong(why);
    if (nccl.num_sums() != 6) return wrong("sums are counted");
    return side->host->barrier() ? 0 : wrong("nobody leaves before");
}

// Rank 1 is lost when the step has begun, before its sum.
int be_lost() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const std::unique_ptr<RankNccl> nccl = begin_step(*side);
    if (nccl == nullptr) return wrong("a step does without");
    if (side->rank() == 1) ::raise(number_of("PITSTOP_TEST_SIGNAL"));
    side->upload(std::vector<float>(kNum, 1.f));
    Result<> summed = nccl->all_reduce_sum(side->floats());
    if (summed) summed = nccl->finish_step();
    if (summed) return wrong("a sum without rank 1");
    const std::string& message = summed.error().message;
    const bool is_named = message.find("rank 1 (pid ") != std::string::npos &&
                          message.find("NCCL 2.28.9") != std::string::npos;
    return is_named ? 0 : wrong(message);
}

// Rank 1 is stopped before its sums, and rank 0 enqueues more than a GPU's queue could contain.
int be_flooding() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const std::unique_ptr<RankNccl> nccl = begin_step(*side);
    if (nccl == nullptr) return wrong("a step does without");
    if (side->rank() == 1) ::raise(SIGSTOP);
    side->upload(std::vector<float>(kNum, 1.f));
    constexpr int kNumMax = 100;
    for (int i = 0; i < kNumMax; ++i) {
        const Result<> summed = nccl->all_reduce_sum(side->floats());
        if (summed) continue;
        const bool is_named = summed.error().message.find("rank 1 (pid ") != std::string::npos;
        return is_named ? 0 : wrong(summed.error().message);
    }
    return wrong("nothing is waited for before all is enqueued");
}

// Rank 1's NCCL fails in a step, though no rank is missing.
int be_failing() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const std::unique_ptr<RankNccl> nccl = begin_step(*side);
    if (nccl == nullptr) return wrong("a step does without");
    side->upload(std::vector<float>(kNum, 1.f));
    Result<> summed = nccl->all_reduce_sum(side->floats());
    if (summed) summed = nccl->finish_step();
    if (summed) return wrong("a sum that one rank has not begun");
    if (side->rank() == 0) return 0;
    const std::string& message = summed.error().message;
    const bool is_own = message.find("ncclAllReduce: unhandled system error") != std::string::npos;
    return is_own && message.find("has not arrived") == std::string::npos ? 0 : wrong(message);
}

// No NCCL exists: every rank sums by the same other method and knows the reason.
int be_without() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const Result<RankNccl::Connected> connected = RankNccl::connect(side->nccl_args());
    if (!connected) return wrong(connected.error().message);
    if (connected->nccl != nullptr) return wrong("there is NCCL");
    const std::string why = std::getenv("PITSTOP_TEST_WHY");
    if (side->rank() == 0 && connected->why_not.find(why) == std::string::npos)
        return wrong(connected->why_not);
    if (connected->why_not.empty()) return wrong("no reason");
    return 0;
}

// A rank that requires the missing NCCL is refused; one that does not, sums without it.
int be_insisting() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const auto forced = connect_gpu_communicator(side->gpu_args(SumPath::kNccl));
    if (forced || forced.error().code != ErrorCode::kUnsupported) return wrong("not refused");
    if (!forced.error().message.starts_with("--all-reduce nccl needs NCCL between the ranks"))
        return wrong(forced.error().message);
    const auto open = connect_gpu_communicator(side->gpu_args(SumPath::kAuto));
    if (!open) return wrong(open.error().message);
    const std::string how = (*open)->describe();
    if (how.find("own kernels; no NCCL: ") == std::string::npos) return wrong(how);
    return side->host->barrier() ? 0 : wrong("nobody leaves before");
}

// NCCL connects and then fails a timed sum: the ranks continue with their own sums.
int be_falling_back() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    const auto ranks = connect_gpu_communicator(side->gpu_args(SumPath::kAuto));
    if (!ranks) return wrong(ranks.error().message);
    const std::string how = (*ranks)->describe();
    if (how.find("own kernels; no NCCL: ") == std::string::npos) return wrong(how);
    const std::string why = side->rank() == 1 ? "ncclAllReduce: unhandled system error" : "NCCL 2";
    if (how.find(why) == std::string::npos) return wrong(how);
    if (const std::string bad = side->sum_twos(**ranks, kBytes); !bad.empty()) return wrong(bad);
    if (!side->turn->try_take("a trainer's")) return wrong("the turn is kept");
    return side->host->barrier() ? 0 : wrong("nobody leaves before");
}

// The ranks measure, choose the same method, and sum by that method.
int be_choosing() {
    const Result<Side> side = open_side();
    if (!side) return wrong(side.error().message);
    for (const SumPath path : {SumPath::kAuto, SumPath::kNccl, SumPath::kOwn}) {
        const auto ranks = connect_gpu_communicator(side->gpu_args(path));
        if (!ranks) return wrong(ranks.error().message);
        std::string how = (*ranks)->describe();
        const bool has_nccl = how.find("NCCL 2.28.9") != std::string::npos;
        if (has_nccl != (path != SumPath::kOwn)) return wrong(how);
        if (path == SumPath::kNccl && how.find("from 0 bytes on") == std::string::npos)
            return wrong(how);
        how.resize(200);
        if (!side->is_everybodys(std::as_bytes(std::span(how)))) return wrong("chosen otherwise");
        for (const std::int64_t bytes : {std::int64_t{256}, kBytes, std::int64_t{1} << 19}) {
            if (const std::string bad = side->sum_twos(**ranks, bytes); !bad.empty())
                return wrong(bad);
        }
        if (!side->host->barrier()) return wrong("nobody leaves before");
    }
    return 0;
}

const bool defined = define_part("summing", be_summing) && define_part("lost", be_lost) &&
                     define_part("without", be_without) && define_part("insisting", be_insisting) &&
                     define_part("choosing", be_choosing) && define_part("flooding", be_flooding) &&
                     define_part("failing", be_failing) &&
                     define_part("falling back", be_falling_back);

using Environment = std::map<std::string, std::string>;

class RankNcclTest : public testing::Test {
  protected:
    // Starts ranks on a machine of `size` GPUs; all on GPU 0 if they are to share it.
    void start(const std::string& part, int size, Environment environment, bool is_shared = false) {
        ASSERT_TRUE(defined);
        environment["PITSTOP_EMULATED_GPUS"] = std::to_string(size);
        environment["PITSTOP_EMULATED_MACHINE"] = dir_.path("machine");
        environment["PITSTOP_TEST_SIZE"] = std::to_string(size);
        environment["PITSTOP_TEST_PLACE"] = dir_.path("ranks");
        environment.try_emplace("PITSTOP_TEST_LIMIT_MS", "60000");
        environment.try_emplace("PITSTOP_TEST_HOST_LIMIT_MS", "60000");
        for (int rank = 0; rank < size; ++rank) {
            environment["PITSTOP_TEST_RANK"] = std::to_string(rank);
            environment["PITSTOP_TEST_GPU"] = std::to_string(is_shared ? 0 : rank);
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

TEST_F(RankNcclTest, SumsAreTheSameBitsOnAllRanksAndGiveWayToATrainersGroup) {
    start("summing", 3, {});
    for (const std::size_t rank : {0u, 1u, 2u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(RankNcclTest, P5_ARankThatDiesInASumIsNamed) {
    start(
        "lost",
        2,
        {{"PITSTOP_TEST_SIGNAL", std::to_string(SIGKILL)}, {"PITSTOP_TEST_LIMIT_MS", "10000"}}
    );
    EXPECT_EQ(status_of(0), 0);
}

TEST_F(RankNcclTest, P5_ARankThatIsStoppedInASumIsNamed) {
    start(
        "lost",
        2,
        {{"PITSTOP_TEST_SIGNAL", std::to_string(SIGSTOP)}, {"PITSTOP_TEST_LIMIT_MS", "10000"}}
    );
    EXPECT_EQ(status_of(0), 0);
}

TEST_F(RankNcclTest, RanksOnOneGpuDoWithoutAndSayWhy) {
    start("without", 2, {{"PITSTOP_TEST_WHY", "Duplicate GPU detected"}}, /*is_shared=*/true);
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(RankNcclTest, RanksWithoutAnIdDoWithoutAndSayWhy) {
    start(
        "without",
        2,
        {{"PITSTOP_TEST_WHY", "ncclGetUniqueId: unhandled system error"},
         {"PITSTOP_EMULATED_FAULTS", "ncclGetUniqueId:1=ncclSystemError"}}
    );
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(RankNcclTest, RanksThatInsistAreRefusedByName) {
    start(
        "insisting",
        2,
        {{"PITSTOP_EMULATED_FAULTS",
          "ncclGetUniqueId:1=ncclSystemError,ncclGetUniqueId:2=ncclSystemError"}}
    );
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

// One rank waits in NCCL for the rank that cannot join, and returns before the host gives up.
TEST_F(RankNcclTest, P5_RanksOfWhichOneCannotJoinDoWithoutAndSayWhy) {
    start(
        "without",
        2,
        {{"PITSTOP_TEST_WHY", "the other ranks to join took more than 8000 ms"},
         {"PITSTOP_TEST_LIMIT_MS", "16000"},
         {"PITSTOP_TEST_HOST_LIMIT_MS", "16000"},
         {"PITSTOP_EMULATED_FAULTS", "gpu1/ncclCommInitRankConfig:1=ncclSystemError"}}
    );
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(RankNcclTest, P5_RanksOfWhichOneFailsATimedSumDoWithout) {
    start(
        "falling back",
        2,
        {{"PITSTOP_TEST_LIMIT_MS", "16000"},
         {"PITSTOP_TEST_HOST_LIMIT_MS", "16000"},
         {"PITSTOP_EMULATED_FAULTS", "gpu1/ncclAllReduce:1=ncclSystemError"}}
    );
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(RankNcclTest, P5_ARankThatNcclFailsBlamesNobody) {
    start(
        "failing",
        2,
        {{"PITSTOP_TEST_LIMIT_MS", "10000"},
         {"PITSTOP_EMULATED_FAULTS", "gpu1/ncclAllReduce:1=ncclSystemError"}}
    );
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

TEST_F(RankNcclTest, P5_ARankThatIsStoppedIsNamedBeforeAllIsEnqueued) {
    start("flooding", 2, {{"PITSTOP_TEST_LIMIT_MS", "10000"}});
    EXPECT_EQ(status_of(0), 0);
}

TEST_F(RankNcclTest, RanksChooseAlikeByWhatTheyMeasured) {
    start("choosing", 2, {});
    for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(status_of(rank), 0);
}

}  // namespace
}  // namespace pitstop::tp_worker
