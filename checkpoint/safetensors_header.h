// Reads the header of a safetensors file: which tensors the file has, and where. The header is
// parsed as events, in time proportional to its bytes, and checked in full before anything in
// it is trusted.
//
// A DOM of the same JSON took 7 s for 20,000 tensors and more than 7 minutes for 300,000: with a
// callback, the parser searches the whole DOM after each entry.
//
// Thread:  any.
// Bounded: ReadLimits, kTensorDimsMax, kTensorNameBytesMax, kHeaderDepthMax.
// Source:  https://github.com/huggingface/safetensors#format
#pragma once

#include "base/interrupt.h"
#include "base/result.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::checkpoint {

inline constexpr std::size_t kTensorsMax = 1'000'000;
inline constexpr std::size_t kTensorDimsMax = 8;
inline constexpr std::size_t kTensorNameBytesMax = 1024;
inline constexpr std::size_t kHeaderDepthMax = 3;  // an object of objects of arrays

// The element types of the format. Models accept the first three.
enum class StoredDtype : std::uint8_t {
    kBf16,
    kF16,
    kF32,
    kBool,
    kU8,
    kI8,
    kF8E5m2,
    kF8E4m3,
    kF8E8m0,
    kI16,
    kU16,
    kI32,
    kU32,
    kF64,
    kI64,
    kU64,
    kC64,
};
[[nodiscard]] std::string_view name_of(StoredDtype dtype);  // as the format writes it: "BF16"
[[nodiscard]] std::int64_t bytes_of(StoredDtype dtype);     // of one element

// A tensor's name, dtype and shape, as a source offers it.
struct TensorSpec {
    std::string name{};
    StoredDtype dtype = StoredDtype::kBf16;
    std::vector<std::int64_t> shape{};  // outermost first, row-major
};
[[nodiscard]] std::string text_of(std::span<const std::int64_t> shape);  // "[2048, 128]"

struct StoredTensor {
    TensorSpec spec{};
    std::int64_t bytes = 0;
    std::size_t file = 0;          // index of its file
    std::int64_t file_offset = 0;  // of its first byte in that file
};

// Limits that end the reading of a checkpoint early.
struct ReadLimits {
    std::size_t tensors_max = kTensorsMax;  // in all files; the next one is kTooLarge
    // setting it, from any thread, ends the reading with kAborted
    const std::atomic<bool>* is_dropped = nullptr;

    [[nodiscard]] bool is_over() const {
        return is_dropped != nullptr && is_dropped->load(std::memory_order_relaxed);
    }
};
[[nodiscard]] Error reading_was_dropped(const std::string& path);
// Returns the function that checks `limits` while `path` is read.
[[nodiscard]] Interrupt interrupt_of(const std::string& path, const ReadLimits& limits);

struct HeaderArgs {
    std::string_view json{};
    std::int64_t data_bytes = 0;  // bytes after the header in the file
    const std::string& path;      // for error messages
    ReadLimits limits{};
};

// Fills spec, bytes and file_offset (from the end of the header), in the header's order. Errors:
// kMalformed, kUnsupported (dtype), kTooLarge, kAborted, kDataLoss (the file is shorter than its
// header says).
[[nodiscard]] Result<std::vector<StoredTensor>> parse_safetensors_header(const HeaderArgs& args);

}  // namespace pitstop::checkpoint
