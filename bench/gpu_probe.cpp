// pitstop_gpu_probe asks a GPU and its driver what the GPU in software cannot know
// (tests/gpu/first). Each question has a process of its own, so that a hang or a crash costs one
// answer.
//
// Output: a line of JSON per fact, with "ok": false if the product relies on the opposite.
#include "base/flags.h"
#include "base/result.h"
#include "base/time.h"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_graph.h"
#include "kernels/runtime/device_import.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/device_range.h"
#include "kernels/runtime/nccl.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::bench {
namespace {

using Json = nlohmann::json;
using kernels::DeviceBuffer;
using kernels::DeviceGraph;
using kernels::DeviceRange;
using kernels::DeviceStream;
using kernels::PinnedBuffer;
using kernels::StreamPriority;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

void say(const Json& fact) {
    std::printf("%s\n", fact.dump().c_str());
    std::fflush(stdout);
}

double ms_since(TimePoint begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Returns `wanted`, but at most a quarter of the free memory: a GPU in software has little.
std::int64_t bytes_of(std::int64_t wanted) {
    const std::int64_t free = kernels::device_memory_info().free_bytes;
    return std::max(kMiB, std::min(wanted, free / 4) / kMiB * kMiB);
}

Result<> ask_memory() {
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(const kernels::CudaDeviceInfo info, kernels::open_cuda_device(0));
    const double open_ms = ms_since(begin);
    const kernels::DeviceMemoryInfo memory = kernels::device_memory_info();
    say(
        {{"what", "the GPU is opened"},
         {"ok", true},
         {"ms", open_ms},
         {"total_gb", static_cast<double>(memory.total_bytes) * 1e-9},
         {"free_gb", static_cast<double>(memory.free_bytes) * 1e-9},
         {"cublas_lt", info.cublas_lt_path},
         {"nccl", info.nccl_path}}
    );
    return Ok{};
}

// A call that another thread makes while a stream is captured.
struct Beside {
    std::string name{};
    bool must_work = false;  // an update, a release or a step makes this call
    std::function<cudaError_t()> call{};
};

std::vector<Beside> calls_beside(
    DeviceStream& other, DeviceRange& range, void*& device, void*& host
) {
    return {
        {"nothing", true, [] { return cudaSuccess; }},
        {"DeviceRange::map",
         true,
         [&] { return range.map() ? cudaSuccess : cudaErrorMemoryAllocation; }},
        {"DeviceRange::unmap", true, [&] { return range.unmap(), cudaSuccess; }},
        {"cudaMalloc", true, [&] { return cudaMalloc(&device, 16 * kMiB); }},
        {"cudaMemcpy from the host",
         true,
         [&] { return cudaMemcpy(device, &device, sizeof device, cudaMemcpyHostToDevice); }},
        {"cudaFree", true, [&] { return cudaFree(device); }},
        {"cudaMallocHost", true, [&] { return cudaMallocHost(&host, 16 * kMiB); }},
        {"cudaFreeHost", true, [&] { return cudaFreeHost(host); }},
        {"cudaMemGetInfo",
         true,
         [] {
             std::size_t free = 0, total = 0;
             return cudaMemGetInfo(&free, &total);
         }},
        {"cudaStreamSynchronize of its own stream",
         true,
         [&] { return cudaStreamSynchronize(static_cast<cudaStream_t>(other.stream().handle)); }},
        {"cudaDeviceSynchronize", false, [] { return cudaDeviceSynchronize(); }},
    };
}

Result<> ask_captures() {
    ASSIGN_OR_RETURN(DeviceStream other, DeviceStream::create(StreamPriority::kBackground));
    ASSIGN_OR_RETURN(const DeviceBuffer words, DeviceBuffer::create(kMiB));
    ASSIGN_OR_RETURN(DeviceRange range, DeviceRange::reserve(2 * kMiB));
    void* device = nullptr;
    void* host = nullptr;
    for (const Beside& each : calls_beside(other, range, device, host)) {
        ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::create(StreamPriority::kStep));
        const auto handle = static_cast<cudaStream_t>(stream.stream().handle);
        DeviceGraph::begin_capture(stream.stream());
        (void)cudaMemsetAsync(words.data(), 1, kMiB, handle);
        cudaError_t said = cudaSuccess;
        std::thread([&] {
            kernels::enter_cuda_device();
            said = each.call();
            (void)cudaGetLastError();
        }).join();
        (void)cudaMemsetAsync(words.data(), 2, kMiB, handle);
        cudaGraph_t graph = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(handle, &graph);
        (void)cudaGetLastError();
        if (graph != nullptr) (void)cudaGraphDestroy(graph);
        const bool works = said == cudaSuccess && ended == cudaSuccess;
        say(
            {{"what", "beside a capture: " + each.name},
             {"ok", works || !each.must_work},
             {"call", cudaGetErrorName(said)},
             {"capture", cudaGetErrorName(ended)}}
        );
    }
    return Ok{};
}

Result<> ask_ranges() {
    const std::int64_t before = kernels::device_memory_info().free_bytes;
    ASSIGN_OR_RETURN(DeviceRange range, DeviceRange::reserve(bytes_of(16 * kGiB)));
    TimePoint begin = Clock::now();
    RETURN_IF_ERROR(range.map());
    const double map_ms = ms_since(begin);
    begin = Clock::now();
    ASSIGN_OR_RETURN(const int fd, range.export_chunk(0));
    ::close(fd);
    const double export_ms = ms_since(begin);
    begin = Clock::now();
    range.unmap();
    const std::int64_t missing = before - kernels::device_memory_info().free_bytes;
    say(
        {{"what", "memory that is mapped, zeroed and given back"},
         {"ok", missing < 64 * kMiB},
         {"gb", static_cast<double>(range.bytes()) * 1e-9},
         {"map_and_zero_ms", map_ms},
         {"export_ms", export_ms},
         {"unmap_ms", ms_since(begin)},
         {"missing_mb", static_cast<double>(missing) * 1e-6}}
    );
    return Ok{};
}

// Writes `bytes` to the other process. Returns false if not all could be written.
bool pass(int fd, const std::string& bytes) {
    return ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

// Runs in the child: opens and closes the parent's handle repeatedly. Returns the exit code.
int open_handles(int fd) {
    constexpr int kRounds = 20;
    std::string handle(kernels::kIpcHandleBytes, '\0');
    if (::read(fd, handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) return 1;
    if (!kernels::open_cuda_device(0)) return 1;
    std::vector<double> opened, closed;
    std::int64_t bytes = 0;
    for (int i = 0; i < kRounds; ++i) {
        TimePoint begin = Clock::now();
        {
            const Result<kernels::DeviceImport> import = kernels::DeviceImport::open(handle);
            if (!import) {
                say({{"what", "CUDA IPC"}, {"ok", false}, {"error", import.error().message}});
                return 1;
            }
            opened.push_back(ms_since(begin));
            bytes = import->bytes();
            begin = Clock::now();
        }
        closed.push_back(ms_since(begin));
    }
    say(
        {{"what", "an allocation opened by CUDA IPC"},
         {"ok", true},
         {"gb", static_cast<double>(bytes) * 1e-9},
         {"first_open_ms", opened.front()},
         {"open_ms", opened.back()},
         {"close_ms", closed.back()}}
    );
    return pass(fd, "x") ? 0 : 1;
}

// Forks before either process has touched CUDA.
Result<> ask_ipc() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return make_error(ErrorCode::kInternal, "socketpair failed");
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(pair[0]);
        const int code = open_handles(pair[1]);
        std::fflush(stdout);
        std::_Exit(code);
    }
    ::close(pair[1]);
    ASSIGN_OR_RETURN([[maybe_unused]] const auto info, kernels::open_cuda_device(0));
    ASSIGN_OR_RETURN(const DeviceBuffer large, DeviceBuffer::create(bytes_of(16 * kGiB)));
    ASSIGN_OR_RETURN(const DeviceBuffer a, DeviceBuffer::create(kMiB));
    ASSIGN_OR_RETURN(const DeviceBuffer b, DeviceBuffer::create(kMiB));
    say(
        {{"what", "handles of two allocations of 1 MiB"},
         {"ok", true},
         {"same", kernels::ipc_handle_of(a) == kernels::ipc_handle_of(b)}}
    );
    char word = 0;
    const bool passed = pass(pair[0], kernels::ipc_handle_of(large));
    if (!passed || ::read(pair[0], &word, 1) != 1)
        say({{"what", "CUDA IPC"}, {"ok", false}, {"error", "the other process gave up"}});
    ::waitpid(child, nullptr, 0);
    return Ok{};
}

struct Launches {
    std::int64_t num = 0;
    double worst_ms = 0;
};

// Returns the launches of another thread while `work` runs. Its stream and memory are created
// first, because creating them may wait for `work`.
Result<Launches> launches_beside(const std::function<void()>& work) {
    ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::create(StreamPriority::kStep));
    ASSIGN_OR_RETURN(const DeviceBuffer words, DeviceBuffer::create(kMiB));
    std::atomic<bool> is_over = false;
    std::atomic<bool> has_begun = false;
    Launches launches;
    std::thread thread([&] {
        kernels::enter_cuda_device();
        while (!is_over) {
            const TimePoint begin = Clock::now();
            kernels::fill_device(words.data(), 0, kMiB, stream.stream());
            stream.wait();
            launches.worst_ms = std::max(launches.worst_ms, ms_since(begin));
            ++launches.num;
            has_begun = true;
        }
    });
    while (!has_begun) std::this_thread::yield();
    work();
    is_over = true;
    thread.join();
    return launches;
}

// Page-locks in pieces, as an update does for the second version while steps run
// (tp_worker/device/host_copy.h).
Result<> ask_pinned_pages() {
    double create_ms = 0;
    bool is_there = false;
    const Result<Launches> launches = launches_beside([&] {
        const TimePoint begin = Clock::now();
        is_there = kernels::PinnedPages::create(kGiB, 64 * kMiB).has_value();
        create_ms = ms_since(begin);
    });
    RETURN_IF_ERROR(launches);
    say(
        {{"what", "1024 MiB page-locked by pieces of 64 MiB beside launches"},
         {"ok", is_there},
         {"create_and_destroy_ms", create_ms},
         {"launches", launches->num},
         {"worst_launch_ms", launches->worst_ms}}
    );
    return Ok{};
}

Result<> ask_pinned() {
    for (const std::int64_t bytes : {256 * kMiB, kGiB}) {
        double create_ms = 0, destroy_ms = 0;
        bool is_there = false;
        const Result<Launches> launches = launches_beside([&] {
            TimePoint begin = Clock::now();
            {
                const Result<PinnedBuffer> buffer = PinnedBuffer::create(bytes);
                is_there = buffer.has_value();
                create_ms = ms_since(begin);
                begin = Clock::now();
            }
            destroy_ms = ms_since(begin);
        });
        RETURN_IF_ERROR(launches);
        say(
            {{"what", fmt::format("{} MiB page-locked beside launches", bytes / kMiB)},
             {"ok", is_there},
             {"create_ms", create_ms},
             {"destroy_ms", destroy_ms},
             {"launches", launches->num},
             {"worst_launch_ms", launches->worst_ms}}
        );
    }
    return ask_pinned_pages();
}

Result<> ask_nccl() {
    ASSIGN_OR_RETURN(const kernels::NcclLibrary library, kernels::load_nccl());
    const std::int64_t before = kernels::device_memory_info().free_bytes;
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(const std::string id, kernels::make_nccl_id());
    ASSIGN_OR_RETURN(
        kernels::NcclCommunicator group,
        kernels::NcclCommunicator::begin({.id = id, .num_ranks = 1, .rank = 0})
    );
    bool is_ready = false;
    while (!is_ready) {
        ASSIGN_OR_RETURN(is_ready, group.is_ready());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::int64_t taken = before - kernels::device_memory_info().free_bytes;
    say(
        {{"what", "a group of NCCL's of one rank"},
         {"ok", true},
         {"version", library.version_text()},
         {"ms", ms_since(begin)},
         {"mb", static_cast<double>(taken) * 1e-6}}
    );
    return Ok{};
}

struct Question {
    const char* name;
    bool opens_itself;
    Result<> (*ask)();
};
constexpr Question kQuestions[] = {
    {"memory", true, ask_memory},
    {"captures", false, ask_captures},
    {"ranges", false, ask_ranges},
    {"ipc", true, ask_ipc},
    {"pinned", false, ask_pinned},
    {"nccl", false, ask_nccl},
};

Result<> ask(const Question& question) {
    if (!question.opens_itself) RETURN_IF_ERROR(kernels::open_cuda_device(0));
    return question.ask();
}

int main(int argc, char** argv) {
    FlagSet flags("pitstop_gpu_probe", "Asks a GPU and its driver what only they know.");
    std::string name;
    bool is_list = false;
    flags.add("ask", &name, "name of the question to ask");
    flags.add("list", &is_list, "print the names of the questions");
    if (const auto code = flags.read(argc, argv)) return *code;
    for (const Question& question : kQuestions) {
        if (is_list) std::printf("%s\n", question.name);
        if (name != question.name) continue;
        const Result<> asked = ask(question);
        if (asked) return 0;
        say({{"what", name}, {"ok", false}, {"error", asked.error().message}});
        return 1;
    }
    if (is_list) return 0;
    std::fprintf(stderr, "pitstop_gpu_probe: --ask wants one of --list, not '%s'\n", name.c_str());
    return 2;
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) { return pitstop::bench::main(argc, argv); }
