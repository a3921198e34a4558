#include "tp_worker/update/adapter_bytes.h"

namespace pitstop::tp_worker {

Result<> AdapterBytes::read(std::int64_t begin, std::span<std::byte> out) const {
    const MutexLock lock(mutex_);
    if (!memory_) return file_->read_at(begin, out);
    memory_->memory().fetch(begin, out);
    return Ok{};
}

void AdapterBytes::leave_memory(std::shared_ptr<const AdapterFile> file) {
    std::shared_ptr<const Adapter> memory;  // freed after the lock is released
    const MutexLock lock(mutex_);
    file_ = std::move(file);
    memory.swap(memory_);
}

}  // namespace pitstop::tp_worker
