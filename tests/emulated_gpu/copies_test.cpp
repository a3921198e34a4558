// The memory that each copy may read and write, and when. Source of each expectation: CUDA Runtime
// API, "API synchronization behavior" and "Memory Management".
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"

#include <numeric>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 1000;

std::vector<std::uint32_t> counted(std::uint32_t first) {
    std::vector<std::uint32_t> words(kNum);
    std::iota(words.begin(), words.end(), first);
    return words;
}

TEST(Copies, NeverWrittenMemoryHoldsPoison) {
    const DeviceWords words(kNum);
    for (const std::uint32_t word : words.read()) EXPECT_EQ(word, 0xffffffffu);
}

TEST(Copies, APageableSourceIsReadBeforeTheCallReturns) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    std::vector<std::uint32_t> source = counted(5);
    ASSERT_OK(
        cudaMemcpyAsync(words.data(), source.data(), words.bytes(), cudaMemcpyHostToDevice, stream)
    );
    source.assign(kNum, 0);
    ASSERT_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(words.read(), counted(5));
}

TEST(Copies, APinnedSourceIsReadWhenTheCopyRuns) {
    if (settings().policy != Policy::kLate) GTEST_SKIP() << "the policy is not late";
    const DeviceWords words(kNum);
    const PinnedWords source(kNum);
    const cudaStream_t stream = make_stream();
    std::fill_n(source.data(), kNum, 1u);
    ASSERT_OK(
        cudaMemcpyAsync(words.data(), source.data(), words.bytes(), cudaMemcpyHostToDevice, stream)
    );
    std::fill_n(source.data(), kNum, 2u);  // too early: the copy has not run yet
    ASSERT_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 2u));
}

TEST(Copies, ToPageableMemoryTheyAreDoneWhenTheCallReturns) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    const std::vector<std::uint32_t> source = counted(1);
    std::vector<std::uint32_t> into(kNum);
    ASSERT_OK(
        cudaMemcpyAsync(words.data(), source.data(), words.bytes(), cudaMemcpyHostToDevice, stream)
    );
    ASSERT_OK(
        cudaMemcpyAsync(into.data(), words.data(), words.bytes(), cudaMemcpyDeviceToHost, stream)
    );
    EXPECT_EQ(into, source);
}

TEST(Copies, OneStreamKeepsItsOrder) {
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), stream));
    for (int i = 0; i < 3; ++i) ASSERT_OK(launch_double(words.data(), kNum, stream));
    ASSERT_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 7u));
}

TEST(Copies, ADirectionThatTheAddressesContradictIsRefused) {
    const DeviceWords words(kNum);
    std::vector<std::uint32_t> host(kNum);
    const cudaStream_t stream = make_stream();
    EXPECT_CUDA(
        cudaErrorInvalidValue,
        cudaMemcpyAsync(host.data(), words.data(), words.bytes(), cudaMemcpyHostToDevice, stream)
    );
    EXPECT_CUDA(
        cudaErrorInvalidValue,
        cudaMemcpyAsync(
            words.data(), host.data(), words.bytes() + 4096, cudaMemcpyHostToDevice, stream
        )
    );
}

TEST(Copies, AllocationsEndWhereTheGpuHasNoMore) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    ASSERT_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    void* data = nullptr;
    EXPECT_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&data, free_bytes + 4096));
    EXPECT_CUDA(cudaErrorMemoryAllocation, cudaGetLastError());
    EXPECT_CUDA(cudaSuccess, cudaGetLastError());  // the error is not sticky
    {
        const DeviceWords words(kNum);
        std::size_t less = 0;
        ASSERT_OK(cudaMemGetInfo(&less, &total_bytes));
        EXPECT_LT(less, free_bytes);
    }
    std::size_t again = 0;
    ASSERT_OK(cudaMemGetInfo(&again, &total_bytes));
    EXPECT_EQ(again, free_bytes);
}

}  // namespace
}  // namespace pitstop::emulator
