#include "tp_worker/weights/host_writer.h"

#include "tp_worker/weights/tensor_filler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>

namespace pitstop::tp_worker {
namespace {

// Merges the threads' problems and errors, in the tensors' order. The seconds are those of the
// slowest thread.
Filled sum_of(std::vector<Filled> of_threads) {
    Filled sum;
    for (Filled& of_thread : of_threads) {
        sum.num_tensors += of_thread.num_tensors;
        sum.bytes += of_thread.bytes;
        if (of_thread.time() > sum.time()) {
            sum.receive = of_thread.receive;
            sum.verify = of_thread.verify;
            sum.rest = of_thread.rest;
        }
        std::ranges::move(of_thread.problems, std::back_inserter(sum.problems));
        if (of_thread.error && (!sum.error || of_thread.error->first < sum.error->first))
            sum.error = std::move(of_thread.error);
    }
    std::ranges::sort(sum.problems);
    return sum;
}

}  // namespace

TaskPool& HostWriter::threads() {
    if (!threads_) threads_.emplace(args_.num_threads);
    return *threads_;
}

// Threads claim tensors one at a time, the largest first. The first thread always works, the others
// only while no pass runs.
Filled HostWriter::fill(std::vector<FillJob> jobs, Keep keep) {
    const std::span<const WeightTensor> tensors = args_.layout.tensors();
    const auto elements = [&](const FillJob& job) {
        return tensors[job.index].rows * tensors[job.index].cols;
    };
    std::ranges::stable_sort(jobs, [&](const FillJob& a, const FillJob& b) {
        return elements(a) > elements(b);
    });
    std::int64_t num_elements = 0;
    for (const FillJob& job : jobs) num_elements += elements(job);
    // Waking a thread costs about 10 us, a tenth of the time for 1 MiB.
    constexpr std::int64_t kElementsPerThread = 512 << 10;
    const std::int64_t num_threads_max =
        std::clamp<std::int64_t>(std::ssize(jobs), 1, std::max(1, args_.num_threads));
    const auto num_threads = static_cast<std::size_t>(
        std::clamp<std::int64_t>(num_elements / kElementsPerThread, 1, num_threads_max)
    );
    std::atomic<std::size_t> num_claimed{0};
    std::atomic<bool> is_over{false};
    std::vector<Filled> filled(num_threads);
    const auto work = [&](std::size_t thread) {
        constexpr auto kLook = std::chrono::milliseconds(10);
        TensorFiller filler(args_);
        while (!is_over.load(std::memory_order_relaxed)) {
            if (thread != 0 && args_.pace.is_serving()) {
                if (num_claimed.load(std::memory_order_relaxed) >= jobs.size()) break;
                std::this_thread::sleep_for(kLook);
                continue;
            }
            const std::size_t claim = num_claimed.fetch_add(1, std::memory_order_relaxed);
            if (claim >= jobs.size()) break;
            if (claim == jobs.size() / 2) args_.at("stage_half");
            const FillJob& job = jobs[claim];
            const bool is_on = job.is_only_digested ? filler.digest_incoming(job)
                                                    : filler.fill(job, keep == Keep::kInPlace);
            if (!is_on) is_over.store(true, std::memory_order_relaxed);
        }
        filled[thread] = filler.filled();
        return Result<>(Ok{});
    };
    if (num_threads == 1) {
        static_cast<void>(work(0));
    } else {
        static_cast<void>(threads().run(num_threads, work));
    }
    return sum_of(std::move(filled));
}

Result<Duration> HostWriter::fill_target(std::span<const std::byte> bytes) {
    std::memcpy(args_.target, bytes.data(), bytes.size());
    return Duration{};
}

void HostWriter::copy_live(const WeightTensor& tensor) {
    std::memcpy(
        args_.target + tensor.offset,
        args_.live + tensor.offset,
        static_cast<std::size_t>(tensor.bytes())
    );
}

void HostWriter::write(const WeightTensor& tensor, const ShardElements& elements) {
    const std::int64_t size = bytes_of(tensor.encoding, 1);
    const std::byte* value = elements.values.data();
    for (const std::int64_t at : elements.at) {
        std::memcpy(args_.target + tensor.offset_of(at), value, static_cast<std::size_t>(size));
        value += size;
    }
}

std::int64_t HostWriter::count_different(
    const WeightTensor& tensor, const ShardElements& elements
) {
    const std::int64_t size = bytes_of(tensor.encoding, 1);
    const std::byte* value = elements.values.data();
    std::int64_t num = 0;
    for (const std::int64_t at : elements.at) {
        const std::byte* const held = args_.target + tensor.offset_of(at);
        num += std::memcmp(held, value, static_cast<std::size_t>(size)) != 0 ? 1 : 0;
        value += size;
    }
    return num;
}

}  // namespace pitstop::tp_worker
