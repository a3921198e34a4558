// The GPU memory that a process needs just to use the GPU. Each part runs in a process of its own,
// since a context lasts as long as its process.
#include "tests/emulated_gpu/cuda_calls.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/emulated_gpu/machine.h"

#include <cstdint>
#include <map>
#include <string>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr std::int64_t kMemory = 16 << 20;
constexpr std::int64_t kContext = 9 << 20;  // kMemory has no room for two

std::int64_t used(int gpu) { return kMemory - free_memory(gpu); }

int use_a_gpu() {
    int num = 0;
    cudaDeviceProp properties{};
    if (cudaGetDeviceCount(&num) != cudaSuccess || num != 2) return 1;
    if (cudaGetDeviceProperties(&properties, 1) != cudaSuccess || used(1) != 0) return 2;
    if (cudaSetDevice(1) != cudaSuccess || used(0) != 0 || used(1) != kContext) return 3;
    void* data = nullptr;
    if (cudaMalloc(&data, 4096) != cudaSuccess || used(1) != kContext + 4096) return 4;
    return run_part("use_a_full_gpu", {});
}

int use_a_full_gpu() {
    if (cudaSetDevice(1) != cudaErrorMemoryAllocation) return 5;
    std::size_t free = 0;
    std::size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaErrorMemoryAllocation) return 6;
    return cudaSetDevice(0) == cudaSuccess && used(0) == kContext ? 0 : 7;
}

// The first call of a thread that has not chosen a GPU opens GPU 0's context.
int use_the_first_gpu() {
    void* data = nullptr;
    if (cudaMalloc(&data, 4096) != cudaSuccess) return 1;
    return used(0) == kContext + 4096 ? 0 : 2;
}

const bool are_parts_defined = define_part("use_a_gpu", use_a_gpu) &&
                               define_part("use_a_full_gpu", use_a_full_gpu) &&
                               define_part("use_the_first_gpu", use_the_first_gpu);

int run_on_a_small_machine(const std::string& part) {
    const std::string machine = testing::TempDir() + "pitstop-context-" + std::to_string(getpid());
    const int code = run_part(
        part,
        {{"PITSTOP_EMULATED_GPUS", "2"},
         {"PITSTOP_EMULATED_MEMORY", std::to_string(kMemory)},
         {"PITSTOP_EMULATED_CONTEXT", std::to_string(kContext)},
         {"PITSTOP_EMULATED_MACHINE", machine}}
    );
    unlink(machine.c_str());
    return code;
}

TEST(Contexts, AProcessTakesMemoryOfAGpuFromSettingItOn) {
    ASSERT_TRUE(are_parts_defined);
    EXPECT_EQ(run_on_a_small_machine("use_a_gpu"), 0);
}

TEST(Contexts, AProcessTakesMemoryOfAGpuFromItsFirstCallOn) {
    EXPECT_EQ(run_on_a_small_machine("use_the_first_gpu"), 0);
}

}  // namespace
}  // namespace pitstop::emulator
