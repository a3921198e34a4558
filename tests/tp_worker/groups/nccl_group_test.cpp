// A trainer's NCCL group on the GPU in software: its work in flight ends before another group or a
// step gets the turn.
#include "tp_worker/groups/nccl_group.h"

#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/nccl.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/in_process.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <string>
#include <thread>

namespace pitstop::tp_worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int wrong(const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    return 1;
}

using Joined = Result<std::shared_ptr<BroadcastGroup>>;

// Rank 1 of a group whose rank 0 never joins.
Joined join_in_vain(NcclTurn& turn, const std::string& id) {
    messages::GroupSpec spec;
    spec.group = "w";
    spec.rendezvous = messages::Rendezvous::kDirect;
    spec.world_size = 2;
    spec.unique_id.values.assign(id.begin(), id.end());
    const std::atomic<bool> never{false};
    return join_nccl_group(spec, 1, turn, {Clock::now() + milliseconds(20), never});
}

// Takes the turn as soon as a failed join gives it back, several times.
int be_next() {
    if (!kernels::open_cuda_device(0)) return wrong("no GPU");
    constexpr int kNum = 20;
    NcclTurn turn;
    for (int num_seen = 0; num_seen < kNum;) {
        const Result<std::string> id = kernels::make_nccl_id();
        if (!id) return wrong(id.error().message);
        const std::int64_t num_before = emulator::num_calls("ncclCommAbort");
        std::future<Joined> joining =
            std::async(std::launch::async, [&] { return join_in_vain(turn, *id); });
        const auto is_joining = [&] {
            return joining.wait_for(seconds(0)) != std::future_status::ready;
        };
        while (is_joining() && turn.try_take("a look")) std::this_thread::yield();
        while (!turn.try_take("the next")) std::this_thread::yield();
        const std::int64_t num_ended = emulator::num_calls("ncclCommAbort") - num_before;
        const Joined joined = joining.get();
        if (joined) return wrong("joined alone");
        // On a slow machine the join may time out before it has the turn.
        if (joined.error().message.find("timed out waiting for the other ranks") ==
            std::string::npos)
            continue;
        if (num_ended != 1) return wrong("the turn was given back before the abort was over");
        ++num_seen;
    }
    return 0;
}

const bool defined = emulator::define_part("next", be_next);

TEST(NcclGroupTest, P5_AJoinInVainHasEndedBeforeTheNextOneBegins) {
    ASSERT_TRUE(defined);
    const test::TempDir dir;
    EXPECT_EQ(emulator::run_part("next", {{"PITSTOP_EMULATED_MACHINE", dir.path("machine")}}), 0);
}

}  // namespace
}  // namespace pitstop::tp_worker
