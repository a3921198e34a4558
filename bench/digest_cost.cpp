#include "bench/digest_cost.h"

#include "base/isa.h"
#include "base/time.h"
#include "bench/program.h"
#include "checkpoint/safetensors.h"
#include "digest/digest_run.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pitstop::bench {
namespace {

constexpr int kRuns = 5;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // a stage copies pieces of this size
constexpr std::size_t kAlignment = std::size_t{2} << 20;

struct Piece {
    std::span<const std::byte> from{};
    std::byte* to = nullptr;
};
using Copy = void (*)(const Piece& piece);

#if defined(__x86_64__)
[[gnu::target("avx2")]] void copy_past_cache(const Piece& piece) {
    std::size_t i = 0;
    for (; i + 64 <= piece.from.size(); i += 64) {
        for (std::size_t half = i; half < i + 64; half += 32) {
            _mm256_stream_si256(
                reinterpret_cast<__m256i*>(piece.to + half),
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece.from.data() + half))
            );
        }
    }
    std::memcpy(piece.to + i, piece.from.data() + i, piece.from.size() - i);
    _mm_sfence();
}
#endif

void copy_plainly(const Piece& piece) {
#if defined(__x86_64__)
    if (best_isa() >= IsaLevel::kAvx2) return copy_past_cache(piece);
#endif
    std::memcpy(piece.to, piece.from.data(), piece.from.size());
}

void copy_and_digest(const Piece& piece) {
    static const digest::AddRun add_run = digest::add_run_on(best_isa());
    digest::DigestSum sum;
    add_run(
        {.data = piece.from.data(),
         .num_bytes = static_cast<std::int64_t>(piece.from.size()),
         .copy_to = piece.to},
        sum
    );
    asm volatile("" : : "m"(sum) : "memory");  // keeps the compiler from removing the digest
}

struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
};

// Every run maps the checkpoint again, as a stage does.
Result<double> seconds_of(
    const std::string& directory, Copy copy, int num_threads, std::byte* buffer
) {
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(
        const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::open(directory)
    );
    std::vector<Piece> pieces;
    for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
        std::span<const std::byte> bytes = checkpoint.mapped(tensor);
        if (bytes.size() != static_cast<std::size_t>(tensor.bytes)) {
            return make_error(ErrorCode::kUnsupported, "'{}' cannot be mapped", directory);
        }
        for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
            pieces.push_back({bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at)), buffer});
            buffer += (pieces.back().from.size() + 63) / 64 * 64;
        }
    }
    std::atomic<std::size_t> num_claimed{0};
    const auto work = [&] {
        while (true) {
            const std::size_t claim = num_claimed.fetch_add(1, std::memory_order_relaxed);
            if (claim >= pieces.size()) return;
            copy(pieces[claim]);
        }
    };
    std::vector<std::thread> helpers;
    for (int i = 1; i < num_threads; ++i) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
    return seconds_since(begin);
}

}  // namespace

Result<DigestCost> measure_digest_cost(const std::string& directory, int num_threads) {
    std::size_t bytes = 0;
    {
        ASSIGN_OR_RETURN(
            const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::open(directory)
        );
        for (const checkpoint::StoredTensor& tensor : checkpoint.tensors())
            bytes +=
                static_cast<std::size_t>(tensor.bytes) / kPieceBytes * kPieceBytes + kPieceBytes;
    }
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::unique_ptr<std::byte, Free> buffer(
        static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes))
    );
    if (buffer == nullptr)
        return make_error(
            ErrorCode::kResourceExhausted, "cannot allocate {} bytes to copy into", bytes
        );
    // Touches the pages before the runs; those of a stage's copy, too, were touched before.
    std::memset(buffer.get(), 1, bytes);
    DigestCost best{.copy_s = 1e30, .digested_s = 1e30};
    for (int run = 0; run < kRuns; ++run) {
        ASSIGN_OR_RETURN(
            const double copy, seconds_of(directory, copy_plainly, num_threads, buffer.get())
        );
        ASSIGN_OR_RETURN(
            const double digested, seconds_of(directory, copy_and_digest, num_threads, buffer.get())
        );
        best.copy_s = std::min(best.copy_s, copy);
        best.digested_s = std::min(best.digested_s, digested);
    }
    return best;
}

}  // namespace pitstop::bench
