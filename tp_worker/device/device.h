// Where a rank computes: on the CPU, or on one GPU. The engine, the model and the sampler are the
// same code on both; the differences are here, in the ops, and in transfers.h.
//
// Owns:   the GPU's stream.
// Thread: any may ask; the stream is the loop's.
#pragma once

#include "base/isa.h"
#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/thread_pool.h"
#include "tp_worker/device/arena.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

enum class DeviceKind : std::uint8_t {
    kAuto,  // a GPU if one can be used, else the CPU
    kCpu,
    kCuda,
};
// Accepts auto, cpu and cuda. Errors: kInvalidArgument names what is accepted.
[[nodiscard]] Result<DeviceKind> parse_device_kind(std::string_view name);

// Whether a row's bits may depend on its batch. On the CPU they never do (P6).
enum class Determinism : std::uint8_t { kFast, kBatchInvariant };

struct DeviceOptions {
    DeviceKind kind = DeviceKind::kCpu;
    int gpu = 0;  // its index, as the driver counts
    IsaLevel isa = IsaLevel::kScalar;
    Determinism determinism = Determinism::kFast;
    std::string why{};  // the reason for `kind`, if it was chosen before
};

class Device {
  public:
    // Errors with kCuda: kUnsupported (a build without CUDA, an old GPU), kUnavailable (no driver),
    // kNotFound (no such GPU, no cuBLASLt), kResourceExhausted (other processes use the GPU). With
    // kAuto only the last is an error; the others choose the CPU, and why() gives the reason.
    // `threads` outlives the device.
    static Result<Device> open(const DeviceOptions& options, kernels::ThreadPool& threads);
    // Without `threads` the calling thread works alone.
    static Device on_cpu(IsaLevel isa, kernels::ThreadPool* threads);

    [[nodiscard]] bool is_cuda() const { return stream_owner_.stream().handle != nullptr; }
    [[nodiscard]] const std::string& name() const { return name_; }  // "cpu avx2", "NVIDIA H200"
    // Returns "GPU-5b3f...", as nvidia-smi prints it; empty on the CPU.
    [[nodiscard]] const std::string& uuid() const { return uuid_; }
    // Returns NVIDIA's libraries that were found, with version and file; none on the CPU.
    [[nodiscard]] const std::vector<std::string>& libraries() const { return libraries_; }
    // Returns why kAuto chose this device; empty if it was asked for by name.
    [[nodiscard]] const std::string& why() const { return why_; }

    [[nodiscard]] const kernels::Ops& ops() const { return *ops_; }
    [[nodiscard]] kernels::Stream stream() const { return stream_; }
    // The ops for host memory, for either kind of device: used to load and to stage.
    [[nodiscard]] const kernels::Ops& host_ops() const { return *host_ops_; }
    [[nodiscard]] digest::AddRun add_run() const { return add_run_; }  // digests in host memory
    [[nodiscard]] kernels::Stream host_stream() const { return host_stream_; }

    // Reserves an arena in the device's memory.
    [[nodiscard]] Result<Arena> reserve(std::string tag, std::int64_t bytes) const;

    // Copies from the device's memory to the host's, and waits for the copy; ordered after
    // everything enqueued on stream().
    void read(void* to_host, const void* from, std::int64_t bytes) const;
    // Copies from the host's memory to the device's, and waits for the copy.
    void write(void* to, const void* from_host, std::int64_t bytes) const;
    // Fills the device's memory with zeros, ordered after everything enqueued on stream().
    void clear(void* to, std::int64_t bytes) const;

  private:
    Device() = default;
    static Result<Device> open_cuda(const DeviceOptions& options, kernels::ThreadPool& threads);

    std::string name_{};
    std::string uuid_{};
    std::vector<std::string> libraries_{};
    std::string why_{};
    const kernels::Ops* ops_ = nullptr;
    const kernels::Ops* host_ops_ = nullptr;
    digest::AddRun add_run_ = nullptr;
    kernels::Stream stream_{};
    kernels::Stream host_stream_{};
    kernels::DeviceStream stream_owner_{};  // empty on the CPU
};

}  // namespace pitstop::tp_worker
