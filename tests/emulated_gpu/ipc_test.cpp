// Memory and events between processes. Source: CUDA Runtime API, cudaIpcGetMemHandle,
// cudaIpcOpenMemHandle, cudaIpcGetEventHandle.
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kNum = 100;

template <class Bytes>
std::string hex_of(const Bytes& bytes) {
    std::string text;
    char digits[3];
    for (const char byte : bytes) {
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

template <class Handle>
std::string hex(const Handle& handle) {
    return hex_of(handle.reserved);
}

template <class Handle>
Handle from_environment(const char* name) {
    Handle handle{};
    const std::string text = std::getenv(name);
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return handle;
}

// Waits for the exporter's event and doubles its words; opens the handle twice.
int double_imported_words() {
    const auto handle = from_environment<cudaIpcMemHandle_t>("PITSTOP_TEST_MEMORY");
    void* words = nullptr;
    void* again = nullptr;
    if (cudaIpcOpenMemHandle(&words, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 1;
    if (cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 2;
    if (words != again) return 3;
    cudaEvent_t event = nullptr;
    if (cudaIpcOpenEventHandle(
            &event, from_environment<cudaIpcEventHandle_t>("PITSTOP_TEST_EVENT")
        ) != cudaSuccess)
        return 4;
    const cudaStream_t stream = make_stream();
    if (cudaStreamWaitEvent(stream, event, 0) != cudaSuccess) return 5;
    if (launch_double(static_cast<std::uint32_t*>(words), kNum, stream) != cudaSuccess) return 6;
    if (cudaStreamSynchronize(stream) != cudaSuccess) return 7;
    if (cudaIpcCloseMemHandle(words) != cudaSuccess) return 8;
    if (cudaIpcCloseMemHandle(words) != cudaSuccess) return 9;
    return cudaIpcCloseMemHandle(words) == cudaErrorInvalidValue ? 0 : 10;
}

// Opens the handle, reports it, and reads after the exporter has freed the memory.
int read_what_was_freed() {
    const auto handle = from_environment<cudaIpcMemHandle_t>("PITSTOP_TEST_MEMORY");
    void* words = nullptr;
    if (cudaIpcOpenMemHandle(&words, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 1;
    char byte = 0;
    if (::write(std::atoi(std::getenv("PITSTOP_TEST_OPENED")), &byte, 1) != 1) return 2;
    if (::read(std::atoi(std::getenv("PITSTOP_TEST_FREED")), &byte, 1) != 1) return 3;
    std::uint32_t word = 0;
    if (cudaMemcpy(&word, words, sizeof word, cudaMemcpyDeviceToHost) != cudaSuccess) return 4;
    return word == 0xffffffffu ? 0 : 5;
}

// Sees only the second of the machine's two GPUs, and calls it GPU 0.
int see_one_gpu() {
    int num = 0;
    if (cudaGetDeviceCount(&num) != cudaSuccess || num != 1) return 1;
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return 2;
    if (hex_of(properties.uuid.bytes) != std::getenv("PITSTOP_TEST_UUID")) return 3;
    void* words = nullptr;
    const auto visible = from_environment<cudaIpcMemHandle_t>("PITSTOP_TEST_MEMORY");
    if (cudaIpcOpenMemHandle(&words, visible, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 4;
    const auto other = from_environment<cudaIpcMemHandle_t>("PITSTOP_TEST_OTHER_MEMORY");
    return cudaIpcOpenMemHandle(&words, other, cudaIpcMemLazyEnablePeerAccess) ==
                   cudaErrorInvalidDevice
               ? 0
               : 5;
}

const bool defined = define_part("import", double_imported_words) &&
                     define_part("ipc_freed", read_what_was_freed) &&
                     define_part("see_one", see_one_gpu);

TEST(Ipc, AnotherProcessWorksOnTheMemoryBehindTheEvent) {
    ASSERT_TRUE(defined);
    const DeviceWords words(kNum);
    const cudaStream_t stream = make_stream();
    const cudaEvent_t event = make_event(cudaEventInterprocess | cudaEventDisableTiming);
    ASSERT_OK(cudaMemsetAsync(words.data(), 0, words.bytes(), stream));
    ASSERT_OK(cudaEventRecord(event, stream));
    cudaIpcMemHandle_t memory{};
    cudaIpcEventHandle_t shared_event{};
    ASSERT_OK(cudaIpcGetMemHandle(&memory, words.data()));
    ASSERT_OK(cudaIpcGetEventHandle(&shared_event, event));
    EXPECT_EQ(
        run_part(
            "import",
            {{"PITSTOP_TEST_MEMORY", hex(memory)}, {"PITSTOP_TEST_EVENT", hex(shared_event)}}
        ),
        0
    );
    EXPECT_EQ(words.read(), std::vector<std::uint32_t>(kNum, 1u));
}

TEST(Ipc, FreedMemoryIsPoisonToProcessesThatHaveItMapped) {
    std::uint32_t* words = nullptr;
    ASSERT_OK(cudaMalloc(&words, kNum * sizeof *words));
    ASSERT_OK(cudaMemset(words, 0, kNum * sizeof *words));
    ASSERT_OK(cudaDeviceSynchronize());
    cudaIpcMemHandle_t handle{};
    ASSERT_OK(cudaIpcGetMemHandle(&handle, words));
    int opened[2];
    int freed[2];
    ASSERT_TRUE(::pipe(opened) == 0 && ::pipe(freed) == 0);
    const int process = start_part(
        "ipc_freed",
        {{"PITSTOP_TEST_MEMORY", hex(handle)},
         {"PITSTOP_TEST_OPENED", std::to_string(opened[1])},
         {"PITSTOP_TEST_FREED", std::to_string(freed[0])}}
    );
    ::close(opened[1]);  // the child's death then closes the pipe
    char byte = 0;
    ASSERT_EQ(::read(opened[0], &byte, 1), 1);
    ASSERT_OK(cudaFree(words));
    ASSERT_EQ(::write(freed[1], &byte, 1), 1);
    EXPECT_EQ(wait_part(process), 0);
    for (const int fd : {opened[0], freed[0], freed[1]}) ::close(fd);
}

TEST(Ipc, AProcessCountsTheGpusThatItSees) {
    cudaDeviceProp properties{};
    ASSERT_OK(cudaGetDeviceProperties(&properties, 1));
    std::array<cudaIpcMemHandle_t, 2> handles{};
    for (int gpu = 0; gpu < 2; ++gpu) {
        ASSERT_OK(cudaSetDevice(gpu));
        void* words = nullptr;
        ASSERT_OK(cudaMalloc(&words, kNum));
        ASSERT_OK(cudaIpcGetMemHandle(&handles[static_cast<std::size_t>(gpu)], words));
    }
    ASSERT_OK(cudaSetDevice(0));
    EXPECT_EQ(
        run_part(
            "see_one",
            {{"CUDA_VISIBLE_DEVICES", "1"},
             {"PITSTOP_TEST_UUID", hex_of(properties.uuid.bytes)},
             {"PITSTOP_TEST_MEMORY", hex(handles[1])},
             {"PITSTOP_TEST_OTHER_MEMORY", hex(handles[0])}}
        ),
        0
    );
}

TEST(Ipc, NoProcessOpensAHandleOfItsOwn) {
    const DeviceWords words(kNum);
    cudaIpcMemHandle_t handle{};
    ASSERT_OK(cudaIpcGetMemHandle(&handle, words.data()));
    void* data = nullptr;
    EXPECT_CUDA(
        cudaErrorDeviceUninitialized,
        cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess)
    );
}

TEST(Ipc, BytesThatAreNoHandleAreRefused) {
    cudaIpcMemHandle_t handle{};
    std::memset(handle.reserved, 0x5a, sizeof handle.reserved);
    void* data = nullptr;
    EXPECT_CUDA(
        cudaErrorInvalidValue, cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess)
    );
}

}  // namespace
}  // namespace pitstop::emulator
