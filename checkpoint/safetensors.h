// Reads safetensors checkpoints: one file, or the shards that model.safetensors.index.json lists.
// Of an adapter also a file of torch.save (torch_file.h). Tensor bytes are read through a mapping
// of their file, or copied into the caller's memory if the file system cannot map. Files that
// change meanwhile are noticed.
//
// Mapping is faster: a thread copies from the page cache and digests at 16 GB/s, while pread alone,
// without the digest, reaches 14 GB/s (AMD EPYC 9004; 2 threads: 21 and 17).
//
// Owns:    the open files and their mappings.
// Thread:  any; reading changes nothing here.
// Bounded: ReadLimits, kHeaderBytesMax, kShardsMax, kIndexBytesMax.
// Source:  https://github.com/huggingface/safetensors#format
#pragma once

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/string_map.h"
#include "checkpoint/open_file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/seen_files.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::checkpoint {

// The bound on an untrusted header: the format's own limit; ReadLimits lowers it if few tensors
// are accepted.
inline constexpr std::size_t kHeaderBytesMax = 100'000'000;
inline constexpr std::size_t kIndexBytesMax = std::size_t{256} << 20;
// bytes per tensor of a header or an index
inline constexpr std::size_t kEntryBytesMax = 2 * kTensorNameBytesMax;
inline constexpr std::size_t kMetadataBytesMax = std::size_t{16} << 20;

class Checkpoint {
  public:
    // `directory` contains model.safetensors, or model.safetensors.index.json and its shards.
    // kNotFound names every missing shard; other errors name the file and the tensor.
    static Result<Checkpoint> open(const std::string& directory, const ReadLimits& limits = {});
    // `directory` holds an adapter as PEFT writes it: adapter_config.json, and
    // adapter_model.safetensors or, as in PEFT, without that file adapter_model.bin. Errors:
    // kNotFound; those of read_torch_file().
    static Result<Checkpoint> open_adapter(
        const std::string& directory, const ReadLimits& limits = {}
    );

    Checkpoint(Checkpoint&& other) noexcept;
    Checkpoint& operator=(Checkpoint&& other) noexcept;
    ~Checkpoint();

    [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_; }
    [[nodiscard]] const StoredTensor* find(std::string_view name) const;  // null if absent

    // Returns the tensor's bytes if they are mapped, or nothing (then use read()). Read them inside
    // a CutGuard, and call is_whole() afterwards: the file may be truncated meanwhile.
    [[nodiscard]] std::span<const std::byte> mapped(const StoredTensor& tensor) const;
    // Errors: kDataLoss if the file now ends before the tensor does, or was written to since
    // it was opened.
    Result<> is_whole(const StoredTensor& tensor) const;
    // Errors: kDataLoss if a file of the checkpoint, or its config.json, was written to, replaced,
    // created or removed since open() began. Call it after reading everything: success means that
    // all bytes belong to one state.
    Result<> is_unchanged() const;

    // Fills `out` with the tensor's bytes from `begin` on. Errors: kDataLoss if the file became
    // shorter. REQUIRES: 0 <= begin, begin + out.size() <= tensor.bytes.
    Result<> read(const StoredTensor& tensor, std::int64_t begin, std::span<std::byte> out) const;

  private:
    struct File {
        std::string path{};
        int fd = -1;
        FileIdentity identity{};
        std::optional<MappedFile> mapping{};
    };
    Checkpoint() = default;
    // Returns a file's tensors, with `file` left 0.
    using ReadTensors = Result<std::vector<StoredTensor>> (*)(const OpenFile&);
    Result<> add_file(const std::string& path, const ReadLimits& limits, ReadTensors read_tensors);
    Result<> add_tensors(std::vector<StoredTensor> tensors, const std::string& path);
    Result<> open_shards(const std::string& directory, const ReadLimits& limits);
    [[nodiscard]] Error data_loss(const StoredTensor& tensor, std::string_view why) const;

    SeenFiles seen_{};
    std::vector<File> files_{};
    std::vector<StoredTensor> tensors_{};
    StringMap<std::size_t> by_name_{};
};

}  // namespace pitstop::checkpoint
