// Headers and indices of safetensors files. The first byte selects which; the next four bytes of a
// header's input are the number of data bytes behind it. The tensors of an accepted header cover
// that data without an overlap or a gap, and have distinct names.
#include "base/check.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shard_index.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop {
namespace {

const std::string kPath = "some.safetensors";
constexpr checkpoint::ReadLimits kLimits{.tensors_max = 1000};

void parse_header(std::string_view bytes) {
    std::uint32_t data_bytes = 0;
    if (bytes.size() < sizeof data_bytes) return;
    std::memcpy(&data_bytes, bytes.data(), sizeof data_bytes);
    bytes.remove_prefix(sizeof data_bytes);
    const auto tensors = checkpoint::parse_safetensors_header(
        {.json = bytes, .data_bytes = data_bytes, .path = kPath, .limits = kLimits}
    );
    if (!tensors) {
        CHECK(!tensors.error().message.empty());
        return;
    }
    CHECK(tensors->size() <= kLimits.tensors_max);
    std::set<std::string_view> names;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (const checkpoint::StoredTensor& tensor : *tensors) {
        CHECK(names.insert(tensor.spec.name).second);
        ranges.emplace_back(tensor.file_offset, tensor.file_offset + tensor.bytes);
    }
    std::ranges::sort(ranges);
    std::int64_t end = 0;
    for (const auto& [begin, stop] : ranges) CHECK(begin == std::exchange(end, stop));
    CHECK(end == data_bytes);
}

void parse_index(std::string_view json) {
    const auto index = checkpoint::parse_shard_index(json, kPath, kLimits);
    if (!index) {
        CHECK(!index.error().message.empty());
        return;
    }
    CHECK(!index->shards.empty() && index->shard_of.size() <= kLimits.tensors_max);
    for (const auto& [tensor, shard] : index->shard_of) {
        CHECK(index->shards.contains(shard));
        CHECK(shard.find('/') == std::string::npos);
    }
}

}  // namespace
}  // namespace pitstop

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
    if (data[0] % 2 == 0) {
        pitstop::parse_header(rest);
    } else {
        pitstop::parse_index(rest);
    }
    return 0;
}
