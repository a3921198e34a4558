#include "tp_worker/sources/cuda_mappings.h"

#include "tp_worker/sources/cuda_memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

// CUDA reports any handle that it cannot open as invalid, so the error gets the state of the
// sender's process. Runs of expandable segments need no such addition: they are copied from the
// process itself, and those errors include its state.
Error with_sender(Error error, const std::string& handle, pid_t pid) {
    if (error.code != ErrorCode::kUnavailable || is_segment_run(handle) || pid == 0) return error;
    const Result<PeerDescriptors> sender = PeerDescriptors::open(pid);
    if (!sender) {
        error.message += "; " + sender.error().message;
    } else if (sender->has_ended()) {
        error.message += fmt::format("; the sender, process {}, has ended", pid);
    } else {
        error.message += fmt::format(
            "; the sender, process {}, runs: it freed the memory, or never had it", pid
        );
    }
    return error;
}

}  // namespace

void CudaMappings::close_where(const std::function<bool(const Entry&)>& is_over) {
    std::erase_if(entries_, [&](const auto& entry) { return is_over(entry.second); });
}

void CudaMappings::begin_message() {
    ++message_;
    close_where([](const Entry& entry) { return entry.sender && entry.sender->has_ended(); });
}

void CudaMappings::end_message() {
    close_where([](const Entry& entry) { return !entry.is_kept; });
    while (entries_.size() > kMax) {
        const auto oldest = std::ranges::min_element(entries_, {}, [](const auto& entry) {
            return entry.second.last_message;
        });
        entries_.erase(oldest);
    }
}

void CudaMappings::end_push() {
    close_where([](const Entry& entry) { return entry.is_pushers; });
}

Result<kernels::DeviceImport> CudaMappings::open(const std::string& handle, pid_t pid) {
    Result<kernels::DeviceImport> opened = open_cuda_memory(handle, pid);
    const auto is_idle = [&](const Entry& entry) { return entry.last_message != message_; };
    const bool may_be_stale =
        !opened && opened.error().code == ErrorCode::kUnavailable &&
        std::ranges::any_of(entries_, [&](const auto& entry) { return is_idle(entry.second); });
    if (!may_be_stale) return opened;
    close_where(is_idle);
    return open_cuda_memory(handle, pid);
}

Result<const kernels::DeviceImport*> CudaMappings::find(
    const std::string& handle, const Sender& sender
) {
    const std::pair<std::string, std::string> key(handle, sender.counters);
    if (const auto found = entries_.find(key); found != entries_.end()) {
        ++num_found_open_;
        found->second.last_message = message_;
        return &found->second.import;
    }
    Result<kernels::DeviceImport> import = open(handle, sender.pid);
    if (!import) return with_sender(import.error(), handle, sender.pid);
    ++num_opened_;
    Entry& entry = entries_[key];
    entry.import = *std::move(import);
    entry.last_message = message_;
    if (sender.pid == 0) {
        entry.is_kept = true;
        entry.is_pushers = true;
        return &entry.import;
    }
    // A process that cannot be watched may end unnoticed.
    Result<PeerDescriptors> process = PeerDescriptors::open(sender.pid);
    entry.is_kept = process.has_value() && !is_segment_run(handle);
    if (process) entry.sender.emplace(*std::move(process));
    return &entry.import;
}

}  // namespace pitstop::tp_worker
