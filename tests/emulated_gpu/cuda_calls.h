// Shared by the tests of the emulated runtime: calls that must succeed, and owners of the objects.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitstop::emulator {

#define EXPECT_CUDA(error, call) EXPECT_STREQ(cudaGetErrorName(call), cudaGetErrorName(error))
#define ASSERT_OK(call) ASSERT_STREQ(cudaGetErrorName(call), "cudaSuccess")

inline cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    return stream;
}

inline cudaEvent_t make_event(unsigned flags = cudaEventDisableTiming) {
    cudaEvent_t event = nullptr;
    EXPECT_CUDA(cudaSuccess, cudaEventCreateWithFlags(&event, flags));
    return event;
}

// Words in GPU memory, freed at the end of the test.
class DeviceWords {
  public:
    explicit DeviceWords(std::size_t num) : num_(num) {
        EXPECT_CUDA(cudaSuccess, cudaMalloc(&data_, num * sizeof(std::uint32_t)));
    }
    ~DeviceWords() { cudaFree(data_); }
    DeviceWords(const DeviceWords&) = delete;
    DeviceWords& operator=(const DeviceWords&) = delete;

    [[nodiscard]] std::uint32_t* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return num_ * sizeof(std::uint32_t); }
    // Returns the GPU's bytes, by a copy in the legacy stream, which waits for blocking streams
    // only.
    [[nodiscard]] std::vector<std::uint32_t> read() const {
        std::vector<std::uint32_t> words(num_);
        EXPECT_CUDA(cudaSuccess, cudaMemcpy(words.data(), data_, bytes(), cudaMemcpyDeviceToHost));
        return words;
    }

  private:
    std::size_t num_;
    std::uint32_t* data_ = nullptr;
};

class PinnedWords {
  public:
    explicit PinnedWords(std::size_t num) : num_(num) {
        void* data = nullptr;
        EXPECT_CUDA(cudaSuccess, cudaMallocHost(&data, num * sizeof(std::uint32_t)));
        data_ = static_cast<std::uint32_t*>(data);
    }
    ~PinnedWords() { cudaFreeHost(data_); }
    PinnedWords(const PinnedWords&) = delete;
    PinnedWords& operator=(const PinnedWords&) = delete;

    [[nodiscard]] std::uint32_t* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return num_ * sizeof(std::uint32_t); }

  private:
    std::size_t num_;
    std::uint32_t* data_ = nullptr;
};

// Each word becomes 2 w + 1: the value shows that each kernel ran exactly once, and in order.
inline __global__ void double_words(std::uint32_t* words, std::size_t num) {
    const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < num) words[i] = 2 * words[i] + 1;
}

inline cudaError_t launch_double(std::uint32_t* words, std::size_t num, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>((num + 63) / 64)};
    config.blockDim = {64};
    config.stream = stream;
    return cudaLaunchKernelEx(&config, double_words, words, num);
}

}  // namespace pitstop::emulator
