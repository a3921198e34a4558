#include "tp_worker/device/device.h"

#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/nccl.h"

#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

std::string nccl_line() {
    const Result<kernels::NcclLibrary> nccl = kernels::load_nccl();
    if (nccl) return fmt::format("NCCL {}: {}", nccl->version_text(), nccl->path);
    const bool is_missing = nccl.error().code == ErrorCode::kNotFound;
    return fmt::format("NCCL: {}", is_missing ? "none was found" : nccl.error().message);
}

}  // namespace

Result<DeviceKind> parse_device_kind(std::string_view name) {
    if (name == "auto") return DeviceKind::kAuto;
    if (name == "cpu") return DeviceKind::kCpu;
    if (name == "cuda") return DeviceKind::kCuda;
    return make_error(
        ErrorCode::kInvalidArgument, "--device takes auto, cpu or cuda, not '{}'", name
    );
}

Device Device::on_cpu(IsaLevel isa, kernels::ThreadPool* threads) {
    Device device;
    device.ops_ = device.host_ops_ = kernels::cpu_ops(isa);
    device.add_run_ = digest::add_run_on(isa);
    device.stream_ = device.host_stream_ = kernels::Stream{threads};
    device.name_ = device.ops_->name;
    return device;
}

Result<Device> Device::open(const DeviceOptions& options, kernels::ThreadPool& threads) {
    Device cpu = on_cpu(options.isa, &threads);
    cpu.why_ = options.why;
    if (options.kind == DeviceKind::kCpu) return cpu;
    Result<Device> device = open_cuda(options, threads);
    if (options.kind == DeviceKind::kCuda) return device;
    if (device) {
        device->why_ = fmt::format("GPU {} can be used", options.gpu);
        return device;
    }
    // A worker that shares its GPU with a trainer must not silently use a CPU, which is a hundred
    // times slower.
    if (device.error().code == ErrorCode::kResourceExhausted) return device;
    cpu.why_ = device.error().message;
    return cpu;
}

Result<Device> Device::open_cuda(const DeviceOptions& options, kernels::ThreadPool& threads) {
    ASSIGN_OR_RETURN(const kernels::CudaDeviceInfo info, kernels::open_cuda_device(options.gpu));
    Device device = on_cpu(options.isa, &threads);
    device.ops_ = options.determinism == Determinism::kBatchInvariant
                      ? kernels::cuda_deterministic_ops()
                      : kernels::cuda_ops();
    CHECK(device.ops_ != nullptr);  // a device exists, so there is CUDA
    ASSIGN_OR_RETURN(
        device.stream_owner_, kernels::DeviceStream::create(kernels::StreamPriority::kStep)
    );
    device.stream_ = device.stream_owner_.stream();
    device.name_ = info.name;
    device.uuid_ = info.uuid;
    device.libraries_ = {
        fmt::format("cuBLASLt {}: {}", info.cublas_lt_version, info.cublas_lt_path), nccl_line()};
    if (options.determinism == Determinism::kBatchInvariant) device.name_ += ", deterministic";
    return device;
}

Result<Arena> Device::reserve(std::string tag, std::int64_t bytes) const {
    return is_cuda() ? Arena::reserve_on_gpu(std::move(tag), bytes)
                     : Arena::reserve(std::move(tag), bytes);
}

void Device::read(void* to_host, const void* from, std::int64_t bytes) const {
    if (!is_cuda()) {
        std::memcpy(to_host, from, static_cast<std::size_t>(bytes));
        return;
    }
    kernels::copy_to_host(to_host, from, bytes, stream_);
    stream_owner_.wait();
}

void Device::write(void* to, const void* from_host, std::int64_t bytes) const {
    if (is_cuda()) return kernels::copy_and_wait(to, from_host, bytes);
    std::memcpy(to, from_host, static_cast<std::size_t>(bytes));
}

void Device::clear(void* to, std::int64_t bytes) const {
    if (is_cuda()) return kernels::fill_device(to, 0, bytes, stream_);
    std::memset(to, 0, static_cast<std::size_t>(bytes));
}

}  // namespace pitstop::tp_worker
