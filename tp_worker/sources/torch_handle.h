// Handles to tensors in a PyTorch peer's memory, as its pickles name them: parsed and checked, then
// opened if this build can.
//
//   CPU   torch.multiprocessing's file_system strategy: POSIX shared memory
//   CUDA  a handle of the allocation (cuda_memory.h), a counter to decrement, an event to wait for
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

// The fields that a receiver needs of rebuild_cuda_tensor's 15 arguments.
struct CudaHandle {
    std::string device_uuid{};  // without "GPU-"; empty: the sender gave its own index
    std::string memory{};       // for cuda_memory.h; empty: an empty storage
    std::int64_t storage_bytes = 0;
    std::int64_t storage_offset = 0;  // bytes from the base of the allocation
    std::string counter{};            // shared memory of the reference counters
    std::int64_t counter_index = 0;
    std::string event{};  // cudaIpcEventHandle_t, 64 bytes
    bool waits_for_event = false;
};

// A tensor in a peer's memory, contiguous or not.
struct TensorHandle {
    std::string dtype{};  // torch's name
    std::vector<std::int64_t> shape{};
    std::vector<std::int64_t> stride{};     // elements
    std::int64_t offset = 0;                // elements, in the storage
    const pickle::Node* storage = nullptr;  // its node: one reference of the sender's
    std::string segment{};                  // CPU: the shared memory's name
    std::int64_t segment_bytes = 0;         // CPU
    std::unique_ptr<CudaHandle> cuda{};
};

// Errors: kInvalidArgument; kUnsupported, with what to do instead.
Result<TensorHandle> read_handle(const pickle::Document& document, const pickle::Node& node);

// A storage's bytes, valid as long as the storages are.
struct StorageBytes {
    std::span<const std::byte> bytes{};
    std::function<Result<>()> is_whole{};  // empty if no process can truncate the bytes
    bool is_on_gpu = false;
};

// The means to open CUDA handles on a worker with a GPU.
struct CudaOpening {
    CudaMappings& mappings;
    std::string device_uuid{};
    CudaWait wait;
};

// Opens the storages of one message, each once: a storage that several tensors share was sent once.
//
// Owns: the storages, whose references it gives back at its end, and gathered copies.
class TorchStorages {
  public:
    // The most bytes of gathered copies, in multiples of their storage. The views of a flat buffer
    // together have its size, those of tied tensors twice that.
    static constexpr std::int64_t kGatheredTimesMax = 4;

    // Without `cuda` this worker computes on the CPU, and refuses CUDA handles.
    explicit TorchStorages(std::optional<CudaOpening> cuda = std::nullopt)
        : cuda_(std::move(cuda)), cuda_storages_(cuda_ ? &cuda_->mappings : nullptr) {}
    ~TorchStorages() { give_back(storages_); }
    TorchStorages(const TorchStorages&) = delete;
    TorchStorages& operator=(const TorchStorages&) = delete;

    // Returns the tensor's bytes, valid as long as this object: in place if they are contiguous,
    // otherwise gathered here, in host memory. kUnsupported for CUDA handles on a worker without a
    // GPU.
    // REQUIRES: the document of earlier handles still exists.
    Result<TensorBytes> open(const TensorHandle& handle, checkpoint::StoredDtype dtype);
    // Returns the storage of the tensor, for a buffer that is read repeatedly.
    Result<StorageBytes> storage(const TensorHandle& handle);
    // Takes over the reference of a handle that nothing will read, because the message has failed;
    // gives it back at the end.
    void hold(const TensorHandle& handle);

  private:
    Result<const TorchStorage*> host_storage(const TensorHandle& handle);
    // Errors: kInvalidArgument for views that are larger than their storage.
    Result<> count_gathered(
        const StorageBytes& storage, std::int64_t num_elements, std::int64_t element_bytes
    );
    // Gathers the elements of a view, row-major. `first` is the view's first element.
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
    std::map<const std::byte*, std::int64_t> gathered_bytes_{};  // by the storage's address
};

}  // namespace pitstop::tp_worker
