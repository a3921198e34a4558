// Reads safetensors checkpoints: one file, or the shards that model.safetensors.index.json lists.
// A header is bounded and checked in full before anything in it is believed. Tensor bytes are
// looked at in a mapping of their file, or read into the caller's memory where a file system maps
// none.
//
// Mapped is faster: what is copied out of the page cache and digested on the way goes at 16 GB/s on
// a thread, while pread alone, which copies too, has 14 and leaves the digest to come (AMD EPYC
// 9004; 2 threads: 21 and 17).
//
// Owns:    the open files and their mappings.
// Thread:  any; reading changes nothing here.
// Bounded: kHeaderBytesMax, kTensorsMax, kShardsMax, kIndexBytesMax.
// Source:  https://github.com/huggingface/safetensors#format
#pragma once

#include "base/mapped_file.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

inline constexpr std::int64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
inline constexpr std::size_t kTensorsMax = 1'000'000;
inline constexpr std::size_t kShardsMax = 10'000;
inline constexpr std::size_t kIndexBytesMax = std::size_t{256} << 20;
inline constexpr std::size_t kTensorDimsMax = 8;

// The element types of the format. A model takes the first three.
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

// What a source says of a tensor that it offers.
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

// One header, parsed and checked against the size of its file.
// `header` is the JSON text; `data_bytes` is what follows it in the file.
// Fills spec, bytes and file_offset (from the end of the header). kMalformed, kUnsupported (dtype),
// kDataLoss (the file is shorter than its header says); `path` is for the messages.
[[nodiscard]] Result<std::vector<StoredTensor>> parse_safetensors_header(
    std::string_view header, std::int64_t data_bytes, const std::string& path
);

class Checkpoint {
  public:
    // `directory` holds model.safetensors, or model.safetensors.index.json and its shards.
    // kNotFound names every missing shard; other errors name the file and the tensor.
    static Result<Checkpoint> open(const std::string& directory);

    Checkpoint(Checkpoint&& other) noexcept;
    Checkpoint& operator=(Checkpoint&& other) noexcept;
    ~Checkpoint();

    [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_; }
    [[nodiscard]] const StoredTensor* find(std::string_view name) const;  // null: none

    // The tensor's bytes where they are mapped; empty where they are not (read() them, then). Read
    // them inside a CutGuard, and ask is_whole() afterwards: the file may be cut short meanwhile.
    [[nodiscard]] std::span<const std::byte> mapped(const StoredTensor& tensor) const;
    // kDataLoss if the file now ends before the tensor does.
    Result<> is_whole(const StoredTensor& tensor) const;

    // Fills `out` with the tensor's bytes from `begin` on. kDataLoss if the file has become
    // shorter. REQUIRES: 0 <= begin, begin + out.size() <= tensor.bytes.
    Result<> read(const StoredTensor& tensor, std::int64_t begin, std::span<std::byte> out) const;

  private:
    struct File {
        std::string path{};
        int fd = -1;
        std::optional<MappedFile> mapping{};
    };
    Checkpoint() = default;
    Result<> add_file(const std::string& path);
    [[nodiscard]] Error data_loss(const StoredTensor& tensor, std::string_view why) const;

    std::vector<File> files_{};
    std::vector<StoredTensor> tensors_{};
    std::map<std::string, std::size_t, std::less<>> by_name_{};
};

}  // namespace pitstop
