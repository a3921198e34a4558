// The bytes of a whole tensor that fill a weight, in any memory or file.
#pragma once

#include "base/result.h"
#include "checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace pitstop::tp_worker {

// In memory, or read piece by piece.
struct TensorBytes {
    checkpoint::StoredDtype dtype = checkpoint::StoredDtype::kBf16;
    // row-major, any alignment; null: `read` fills `out` with whole rows, from byte `begin` of the
    // tensor on
    const std::byte* data = nullptr;
    std::function<Result<>(std::int64_t begin, std::span<std::byte> out)> read{};
    // If set, `data` is a mapping of a file that another process may truncate. Called after each
    // piece, which is read in a CutGuard.
    std::function<Result<>()> is_whole{};
    // Whether `data` is memory of the opened GPU, which kernels read in place.
    bool is_on_gpu = false;
};

// Borrows both arguments.
[[nodiscard]] TensorBytes stored_bytes(
    const checkpoint::Checkpoint& checkpoint, const checkpoint::StoredTensor& stored
);

}  // namespace pitstop::tp_worker
