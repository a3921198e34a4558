#include "tp_worker/update/adapter_bytes.h"

#include "tp_worker/weights/exact_bf16.h"

namespace pitstop::tp_worker {

Result<> AdapterBytes::read(std::int64_t begin, std::span<std::byte> out) const {
    const MutexLock lock(mutex_);
    if (memory_) {
        memory_->fetch(begin, out);
        return Ok{};
    }
    if (encoding_ == Encoding::kF32) return file_->read_at(begin, out);
    RETURN_IF_ERROR(file_->read_at(begin / 2, out.first(out.size() / 2)));
    widen(out);
    return Ok{};
}

void AdapterBytes::leave_memory(std::shared_ptr<const AdapterFile> file) {
    std::shared_ptr<const Adapter> memory;  // freed after the lock is released
    const MutexLock lock(mutex_);
    file_ = std::move(file);
    memory.swap(memory_);
}

}  // namespace pitstop::tp_worker
