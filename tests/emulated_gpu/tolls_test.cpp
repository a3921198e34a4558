// Calls that take time on a GPU take time here, if the environment asks for it (tolls.h). Each part
// runs in a process of its own, since the environment is read once.
#include "tests/emulated_gpu/tolls.h"

#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

namespace pitstop::emulator {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kNum = 64;
const std::map<std::string, std::string> kTolls{
    {"PITSTOP_EMULATED_TOLLS", "1"}, {"PITSTOP_EMULATED_POLICY", "late"}};

int lock_pages() {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    void* data = nullptr;
    const auto begin = Clock::now();
    if (cudaMallocHost(&data, kBytes) != cudaSuccess) return 1;
    if (Clock::now() - begin < 30ms) return 2;
    return cudaFreeHost(data) == cudaSuccess ? 0 : 3;
}

int launch_beside_page_locking() {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    std::atomic<bool> is_over = false;
    std::thread locker([&] {
        void* data = nullptr;
        EXPECT_CUDA(cudaSuccess, cudaMallocHost(&data, std::size_t{128} << 20));
        EXPECT_CUDA(cudaSuccess, cudaFreeHost(data));
        is_over = true;
    });
    auto longest = Clock::duration::zero();
    while (!is_over) {
        const auto begin = Clock::now();
        if (launch_double(words.data(), kNum, stream) != cudaSuccess) return 1;
        longest = std::max(longest, Clock::now() - begin);
        std::this_thread::sleep_for(5ms);
    }
    locker.join();
    if (cudaStreamSynchronize(stream) != cudaSuccess) return 2;
    return longest >= 60ms ? 0 : 3;
}

// Launches are served between the pieces of a page-locking.
int launch_beside_pieces() {
    constexpr std::int64_t kPiece = 8 << 20;
    constexpr int kPieces = 24;
    if (!kernels::open_cuda_device(0).has_value()) return 1;
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    std::atomic<bool> is_over = false;
    std::atomic<bool> is_locked = false;
    std::thread locker([&] {
        is_locked = kernels::PinnedPages::create(kPieces * kPiece, kPiece).has_value();
        is_over = true;
    });
    int num_launches = 0;
    for (; !is_over; ++num_launches) {
        if (launch_double(words.data(), kNum, stream) != cudaSuccess) return 2;
        std::this_thread::sleep_for(1ms);
    }
    locker.join();
    if (!is_locked || cudaStreamSynchronize(stream) != cudaSuccess) return 3;
    return num_launches >= kPieces / 2 ? 0 : 4;
}

// Freeing memory waits for a stream's work, even if that does not use the memory.
template <class Free>
int free_beside_work(void* unused, const Free& free) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    for (int i = 0; i < 4; ++i) {
        if (launch_double(words.data(), kNum, stream) != cudaSuccess) return 1;
    }
    if (free(unused) != cudaSuccess) return 2;
    return cudaStreamQuery(stream) == cudaSuccess ? 0 : 3;
}

int free_device_memory() {
    void* unused = nullptr;
    if (cudaMalloc(&unused, 64) != cudaSuccess) return 4;
    return free_beside_work(unused, [](void* data) { return cudaFree(data); });
}

int free_host_memory() {
    void* unused = nullptr;
    if (cudaMallocHost(&unused, 64) != cudaSuccess) return 4;
    return free_beside_work(unused, [](void* data) { return cudaFreeHost(data); });
}

std::atomic<bool> is_open = false;

int fill_a_stream() {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    const auto wait = [](void*) {
        while (!is_open) std::this_thread::sleep_for(1ms);
    };
    if (cudaLaunchHostFunc(stream, wait, nullptr) != cudaSuccess) return 1;
    std::thread opener([] {
        std::this_thread::sleep_for(300ms);
        is_open = true;
    });
    for (std::size_t i = 0; i < kWorksMax + 8; ++i) {
        if (cudaMemsetAsync(words.data(), 0, 4, stream) != cudaSuccess) return 2;
    }
    const bool has_waited = is_open;
    opener.join();
    return !has_waited ? 3 : cudaStreamSynchronize(stream) == cudaSuccess ? 0 : 4;
}

cudaIpcMemHandle_t handle_of(const std::string& text) {
    cudaIpcMemHandle_t handle{};
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return handle;
}

int open_memory() {
    const cudaIpcMemHandle_t handle = handle_of(std::getenv("PITSTOP_TEST_MEMORY"));
    void* words = nullptr;
    void* again = nullptr;
    const auto begin = Clock::now();
    if (cudaIpcOpenMemHandle(&words, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 1;
    if (Clock::now() - begin < 1700us) return 2;
    if (cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 3;
    if (cudaIpcCloseMemHandle(again) != cudaSuccess) return 4;
    return free_beside_work(words, [](void* data) { return cudaIpcCloseMemHandle(data); });
}

const bool are_defined = define_part("lock_pages", lock_pages) &&
                         define_part("launch_beside_page_locking", launch_beside_page_locking) &&
                         define_part("launch_beside_pieces", launch_beside_pieces) &&
                         define_part("free_device_memory", free_device_memory) &&
                         define_part("free_host_memory", free_host_memory) &&
                         define_part("fill_a_stream", fill_a_stream) &&
                         define_part("open_memory", open_memory);

TEST(Tolls, PageLockingTakesTimeAndOtherCallsWaitForIt) {
    EXPECT_EQ(run_part("lock_pages", kTolls), 0);
    EXPECT_EQ(run_part("launch_beside_page_locking", kTolls), 0);
    EXPECT_EQ(run_part("launch_beside_pieces", kTolls), 0);
}

TEST(Tolls, ToFreeMemoryIsToWaitForTheGpu) {
    EXPECT_EQ(run_part("free_device_memory", kTolls), 0);
    EXPECT_EQ(run_part("free_host_memory", kTolls), 0);
}

TEST(Tolls, AFullStreamHoldsItsCaller) { EXPECT_EQ(run_part("fill_a_stream", kTolls), 0); }

TEST(Tolls, ToOpenAndCloseAnothersMemoryTakesTime) {
    ASSERT_TRUE(are_defined);
    const DeviceWords words(kNum);
    cudaIpcMemHandle_t handle{};
    ASSERT_OK(cudaIpcGetMemHandle(&handle, words.data()));
    std::string text;
    for (const char byte : handle.reserved) {
        constexpr const char* kDigits = "0123456789abcdef";
        const auto value = static_cast<unsigned char>(byte);
        text += kDigits[value >> 4];
        text += kDigits[value & 15];
    }
    std::map<std::string, std::string> environment = kTolls;
    environment["PITSTOP_TEST_MEMORY"] = text;
    EXPECT_EQ(run_part("open_memory", environment), 0);
}

}  // namespace
}  // namespace pitstop::emulator
