// Address ranges that are mapped and unmapped. Source: CUDA Driver API, "Virtual Memory
// Management".
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/device_range.h"
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"

#include <cuda.h>

#include <cstdint>
#include <string>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;

class Ranges : public testing::Test {
  protected:
    void SetUp() override { ASSERT_TRUE(kernels::open_cuda_device(0).has_value()); }
};

TEST_F(Ranges, HoldZerosAtTheSameAddressAfterTheyAreMappedAgain) {
    Result<kernels::DeviceRange> range = kernels::DeviceRange::reserve(1);
    ASSERT_TRUE(range.has_value());
    std::byte* const address = range->data();
    const std::int64_t before = kernels::device_memory_info().free_bytes;
    for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(range->map().has_value());
        EXPECT_EQ(kernels::device_memory_info().free_bytes, before - range->bytes());
        std::uint32_t word = 7;
        kernels::copy_and_wait(&word, address, sizeof word);
        EXPECT_EQ(word, 0u);
        word = 5;
        kernels::copy_and_wait(address, &word, sizeof word);
        range->unmap();
        EXPECT_EQ(kernels::device_memory_info().free_bytes, before);
        EXPECT_EQ(range->data(), address);
    }
}

TEST_F(Ranges, MoreThanTheGpuHasIsAnError) {
    Result<kernels::DeviceRange> range =
        kernels::DeviceRange::reserve(kernels::device_memory_info().total_bytes + 1);
    ASSERT_TRUE(range.has_value());
    const Result<> mapped = range->map();
    ASSERT_FALSE(mapped.has_value());
    EXPECT_EQ(mapped.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(range->num_chunks(), 0u);
}

// Runs on a GPU of 16 MiB; context and kernels use none of it.
int miss_memory() {
    if (!kernels::open_cuda_device(0).has_value()) return 1;
    const std::int64_t before = kernels::device_memory_info().free_bytes;
    Result<kernels::DeviceRange> mine = kernels::DeviceRange::reserve(1);
    if (!mine.has_value() || !mine->map().has_value()) return 2;
    Result<kernels::DeviceRange> rest = kernels::DeviceRange::reserve(before);
    if (!rest.has_value()) return 3;
    const Result<> mapped = rest->map();
    if (mapped.has_value()) return 4;
    if (kernels::device_memory_info().free_bytes != before - mine->bytes()) return 5;
    const std::string said = mapped.error().message;
    if (said.find(std::to_string(mine->bytes()) + " are missing") == std::string::npos) return 6;
    const std::string me = "process " + std::to_string(getpid()) + " (this one) uses ";
    if (said.find(me) == std::string::npos) return 7;
    mine->unmap();
    return rest->map().has_value() ? 0 : 8;
}

const bool are_parts_defined = define_part("miss", miss_memory);

TEST(RangesOfASmallGpu, TheProcessesThatHaveTheMemoryAndTheMissingBytesAreSaid) {
    ASSERT_TRUE(are_parts_defined);
    const std::string machine = testing::TempDir() + "pitstop-miss-" + std::to_string(getpid());
    EXPECT_EQ(
        run_part(
            "miss",
            {{"PITSTOP_EMULATED_MEMORY", std::to_string(16 << 20)},
             {"PITSTOP_EMULATED_CONTEXT", "0"},
             {"PITSTOP_EMULATED_CODE", "0"},
             {"PITSTOP_EMULATED_MACHINE", machine}}
        ),
        0
    );
    unlink(machine.c_str());
}

// "The range must be a fully mapped address range containing all allocations."
TEST_F(Ranges, AccessIsSetForWholeAllocations) {
    constexpr std::size_t kBytes = 2 * kGranule;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties{
        CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_NONE, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ASSERT_EQ(cuMemCreate(&handle, kBytes, &properties, 0), CUDA_SUCCESS);
    CUdeviceptr address = 0;
    ASSERT_EQ(cuMemAddressReserve(&address, kBytes, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address, kBytes, 0, handle, 0), CUDA_SUCCESS);
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(cuMemSetAccess(address, kGranule, &access, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemSetAccess(address, kBytes, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(address, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(Ranges, MemoryOfARangeHasNoLegacyHandle) {
    Result<kernels::DeviceRange> range = kernels::DeviceRange::reserve(1);
    ASSERT_TRUE(range.has_value() && range->map().has_value());
    cudaIpcMemHandle_t handle{};
    EXPECT_CUDA(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, range->data()));
}

// A physical allocation of the least size, mapped for GPU 0.
std::uint32_t* map_words(CUmemGenericAllocationHandle handle) {
    CUdeviceptr address = 0;
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(cuMemAddressReserve(&address, kGranule, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(address, kGranule, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(address, kGranule, &access, 1), CUDA_SUCCESS);
    return reinterpret_cast<std::uint32_t*>(address);
}

CUmemGenericAllocationHandle create(CUmemAllocationHandleType type) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties{
        CU_MEM_ALLOCATION_TYPE_PINNED, type, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    EXPECT_EQ(cuMemCreate(&handle, kGranule, &properties, 0), CUDA_SUCCESS);
    return handle;
}

TEST_F(Ranges, ChunksAreOneRangeAndAreExportedOneByOne) {
    constexpr std::int64_t kChunk = kernels::DeviceRange::kChunkBytes;
    Result<kernels::DeviceRange> range = kernels::DeviceRange::reserve(kChunk + 1);
    ASSERT_TRUE(range.has_value() && range->map().has_value());
    ASSERT_EQ(range->num_chunks(), 2u);
    ASSERT_EQ(cudaMemset(range->data() + kChunk - 4, 7, 8), cudaSuccess) << "over the seam";
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    Result<int> fd = range->export_chunk(1);
    ASSERT_TRUE(fd.has_value());
    CUmemGenericAllocationHandle imported = 0;
    ASSERT_EQ(
        cuMemImportFromShareableHandle(
            &imported,
            reinterpret_cast<void*>(static_cast<std::intptr_t>(*fd)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        ),
        CUDA_SUCCESS
    );
    close(*fd);
    std::uint32_t words[2] = {};
    ASSERT_EQ(
        cudaMemcpy(words, map_words(imported), sizeof words, cudaMemcpyDeviceToHost), cudaSuccess
    );
    EXPECT_EQ(words[0], 0x07070707u);
    EXPECT_EQ(words[1], 0u) << "it reads as zeros";
    range->unmap();
    EXPECT_EQ(range->num_chunks(), 0u);
}

TEST_F(Ranges, AFileDescriptorIsTheSameMemory) {
    const auto handle = create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int fd = -1;
    ASSERT_EQ(
        cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS
    );
    CUmemGenericAllocationHandle imported = 0;
    ASSERT_EQ(
        cuMemImportFromShareableHandle(
            &imported,
            reinterpret_cast<void*>(std::intptr_t{fd}),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        ),
        CUDA_SUCCESS
    );
    std::uint32_t* const words = map_words(handle);
    const std::uint32_t* const same = map_words(imported);
    const cudaStream_t stream = make_stream();
    ASSERT_OK(cudaMemsetAsync(words, 0, kGranule, stream));
    ASSERT_OK(launch_double(words, 100, stream));
    ASSERT_OK(cudaStreamSynchronize(stream));
    std::uint32_t word = 0;
    kernels::copy_and_wait(&word, same + 99, sizeof word);
    EXPECT_EQ(word, 1u);
    ::close(fd);
}

int launch_after_unmap() {
    if (!kernels::open_cuda_device(0)) return 1;
    std::uint32_t* const words = map_words(create(CU_MEM_HANDLE_TYPE_NONE));
    const cudaStream_t stream = make_stream();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess) return 2;
    if (launch_double(words, 100, stream) != cudaSuccess) return 3;
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) return 4;
    if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) return 5;
    if (cudaGraphLaunch(executable, stream) != cudaSuccess) return 6;
    if (cudaStreamSynchronize(stream) != cudaSuccess) return 7;
    if (cuMemUnmap(reinterpret_cast<CUdeviceptr>(words), kGranule) != CUDA_SUCCESS) return 8;
    if (cudaGraphLaunch(executable, stream) != cudaSuccess) return 9;
    if (cudaStreamSynchronize(stream) != cudaErrorIllegalAddress) return 10;
    return cudaStreamSynchronize(stream) == cudaErrorIllegalAddress ? 0 : 11;
}

const bool defined = define_part("graph_after_unmap", launch_after_unmap);

TEST_F(Ranges, AGraphThatUsesUnmappedMemoryEndsTheContext) {
    ASSERT_TRUE(defined);
    EXPECT_EQ(run_part("graph_after_unmap", {}), 0);
}

TEST_F(Ranges, MemoryThatWasNotMadeToBeExportedHasNoFileDescriptor) {
    int fd = -1;
    EXPECT_EQ(
        cuMemExportToShareableHandle(
            &fd, create(CU_MEM_HANDLE_TYPE_NONE), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0
        ),
        CUDA_ERROR_INVALID_VALUE
    );
}

}  // namespace
}  // namespace pitstop::emulator
