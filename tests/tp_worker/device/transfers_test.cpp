// Turns of transfers on the GPU in software: when each turn's time limit begins.
#include "tp_worker/device/transfers.h"

#include "base/isa.h"
#include "tests/emulated_gpu/streams.h"
#include "tests/gpu_or_skip.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

namespace pitstop::tp_worker {
namespace {

// Work enqueued after the gate waits until the gate is opened.
class Gate {
  public:
    explicit Gate(kernels::Stream stream) {
        emulator::Work work{.kind = emulator::WorkKind::kHost, .name = "gate"};
        work.may_begin = [open = is_open_] { return open->load(); };
        emulator::enqueue(emulator::find_stream(stream.handle, 0), std::move(work));
    }
    ~Gate() { open(); }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    void open() { is_open_->store(true); }

  private:
    std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(false);
};

void pass(Gate& gate, const kernels::DeviceEvent& behind) {
    gate.open();
    while (!behind.is_done()) std::this_thread::yield();
}

// Two steps are enqueued at once, and each runs for longer than half of a step's time limit. The
// second step's time begins when the first one ends.
TEST(TransferTurns, P5_OfTwoSlowOnesTheSecondHasATimeOfItsOwn) {
    ASSERT_EQ(why_no_gpu(), "");
    constexpr Duration kWaitMax = std::chrono::milliseconds(100);
    kernels::ThreadPool threads(1);
    const Result<Device> device =
        Device::open({.kind = DeviceKind::kCuda, .isa = best_isa()}, threads);
    ASSERT_TRUE(device.has_value()) << device.error().message;
    constexpr int kTriesMax = 50;
    for (int i = 0; i < kTriesMax; ++i) {
        Result<Transfers> transfers = Transfers::make(*device, 1024, kWaitMax);
        const Result<kernels::DeviceEvent> first_done = kernels::DeviceEvent::create();
        const Result<kernels::DeviceEvent> second_done = kernels::DeviceEvent::create();
        ASSERT_TRUE(transfers.has_value() && first_done.has_value() && second_done.has_value());
        Gate first(device->stream());
        transfers->end_turn();
        first_done->record(device->stream());
        Gate second(device->stream());
        transfers->end_turn();
        second_done->record(device->stream());
        const TimePoint enqueued = Clock::now();
        while (Clock::now() - enqueued < kWaitMax) std::this_thread::yield();
        EXPECT_TRUE(transfers->is_turn_over());  // the first step's time is over
        pass(first, *first_done);
        const TimePoint begun = Clock::now();
        transfers->finish_turn();
        const bool is_over = transfers->is_turn_over();
        const Duration elapsed = Clock::now() - begun;
        pass(second, *second_done);
        transfers->finish_turn();
        if (elapsed >= kWaitMax) continue;  // this process was stopped: the time proves nothing
        EXPECT_FALSE(is_over) << "the second has only begun";
        return;
    }
    FAIL() << "this process stood still each time";
}

}  // namespace
}  // namespace pitstop::tp_worker
