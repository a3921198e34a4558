// Reads model.safetensors.index.json, which maps each tensor to its file in the directory.
//
// Bounded: ReadLimits, kShardsMax, kTensorNameBytesMax, kFileNameBytesMax, kIndexDepthMax.
#pragma once

#include "base/result.h"
#include "checkpoint/safetensors_header.h"

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace pitstop::checkpoint {

inline constexpr std::size_t kShardsMax = 10'000;
inline constexpr std::size_t kFileNameBytesMax = 255;  // the limit of file systems
inline constexpr std::size_t kIndexDepthMax = 16;      // metadata may be deeper than a weight_map

struct ShardIndex {
    std::set<std::string> shards{};                              // file names
    std::map<std::string, std::string, std::less<>> shard_of{};  // tensor -> file
};

// `path` is for error messages. Errors: kMalformed, kTooLarge, kAborted.
[[nodiscard]] Result<ShardIndex> parse_shard_index(
    std::string_view json, const std::string& path, const ReadLimits& limits
);

}  // namespace pitstop::checkpoint
