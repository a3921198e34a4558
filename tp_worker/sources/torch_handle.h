// These are handles to tensors in a PyTorch peer's memory, as its pickles name them: parsed and
// checked, then opened where this build can.
//
//   CPU   torch.multiprocessing's file_system strategy: POSIX shared memory
//   CUDA  a handle of the allocation (cuda_memory.h), a counter to be lowered, an event to be
//   waited for
//
// Source: torch/multiprocessing/reductions.py; torch/csrc/StorageSharing.cpp.
#pragma once

#include "base/result.h"
#include "pickle/reader.h"
#include "tp_worker/sources/cuda_mappings.h"
#include "tp_worker/sources/cuda_storage.h"
#include "tp_worker/sources/torch_storage.h"
#include "tp_worker/weights/weight_stage.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

// Holds the 15 arguments of rebuild_cuda_tensor that matter to a receiver.
struct CudaHandle {
    std::string device_uuid{};  // without "GPU-"; empty: the sender gave its own index
    std::string memory{};       // cuda_memory.h opens it; empty: an empty storage
    std::int64_t storage_bytes = 0;
    std::int64_t storage_offset = 0;  // bytes from the base of the allocation
    std::string counter{};            // shared memory of the reference counters
    std::int64_t counter_index = 0;
    std::string event{};  // cudaIpcEventHandle_t, 64 bytes
    bool waits_for_event = false;
};

// Describes a tensor in a peer's memory, contiguous or not.
struct TensorHandle {
    std::string dtype{};  // torch's name
    std::vector<std::int64_t> shape{};
    std::vector<std::int64_t> stride{};     // elements
    std::int64_t offset = 0;                // elements, in the storage
    const pickle::Node* storage = nullptr;  // what made it: one reference of the sender's
    std::string segment{};                  // CPU: the shared memory's name
    std::int64_t segment_bytes = 0;         // CPU
    std::unique_ptr<CudaHandle> cuda{};
};

// Errors: kInvalidArgument, kUnsupported (what this engine never opens, and what to do instead).
Result<TensorHandle> read_handle(const pickle::Document& document, const pickle::Node& node);

// Holds a storage's bytes, valid as long as the storages are.
struct StorageBytes {
    std::span<const std::byte> bytes{};
    std::function<Result<>()> is_whole{};  // empty where nobody can cut them short
    bool is_on_gpu = false;
};

// Says what a worker on a GPU opens CUDA handles with.
struct CudaOpening {
    CudaMappings& mappings;
    std::string device_uuid{};
    CudaWait wait;
};

// Opens the storages of one message, each once: a storage that several tensors share was sent once.
//
// Owns: the storages, whose references it gives back at its end, and what was gathered.
class TorchStorages {
  public:
    // What is gathered of one storage may be so many times its bytes: a flat buffer's views are
    // once its bytes together, tied tensors twice.
    static constexpr std::int64_t kGatheredTimesMax = 4;

    // Without `cuda` this worker computes on the CPU, and refuses CUDA handles.
    explicit TorchStorages(std::optional<CudaOpening> cuda = std::nullopt)
        : cuda_(std::move(cuda)), cuda_storages_(cuda_ ? &cuda_->mappings : nullptr) {}
    ~TorchStorages() { give_back(storages_); }
    TorchStorages(const TorchStorages&) = delete;
    TorchStorages& operator=(const TorchStorages&) = delete;

    // Returns the tensor's bytes, valid as long as this is: where they are, if they are contiguous;
    // others are gathered here, in host memory. kUnsupported for CUDA handles on a worker without a
    // GPU.
    // REQUIRES: the document of handles from before is still there.
    Result<TensorBytes> open(const TensorHandle& handle, checkpoint::StoredDtype dtype);
    // Returns the storage behind it, for a buffer that is read again and again.
    Result<StorageBytes> storage(const TensorHandle& handle);
    // Gives its reference back at the end, too, though nobody reads it: the message has failed.
    void hold(const TensorHandle& handle);

  private:
    Result<const TorchStorage*> host_storage(const TensorHandle& handle);
    // Errors: kInvalidArgument, views that are larger than what they are views of.
    Result<> count_gathered(
        const StorageBytes& storage, std::int64_t num_elements, std::int64_t element_bytes
    );
    // Gathers the elements of a view, row-major. `first` is its first.
    const std::byte* gather(
        const TensorHandle& handle,
        std::int64_t num_elements,
        std::int64_t element_bytes,
        const std::byte* first
    );

    std::optional<CudaOpening> cuda_;
    CudaStorages cuda_storages_;
    std::vector<std::unique_ptr<TorchStorage>> storages_{};
    std::map<const pickle::Node*, const TorchStorage*> by_node_{};
    std::deque<std::vector<std::byte>> gathered_{};
    std::map<const std::byte*, std::int64_t> gathered_bytes_{};  // keyed by where the storage is
};

}  // namespace pitstop::tp_worker
