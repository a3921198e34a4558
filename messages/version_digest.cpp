#include "messages/version_digest.h"

#include "messages/dtypes.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace pitstop::messages {
namespace {

struct Part {
    Digest digest{};
    Rank rank{};
};

struct Tensor {
    std::vector<std::int64_t> shape{};
    std::string_view dtype{};
    std::int64_t num_parts = 0;
    Rank rank{};  // the first rank that named the tensor
    std::map<std::int64_t, Part> parts{};
};

Result<> add(const PartDigest& part, Rank rank, Tensor& tensor) {
    if (tensor.shape != part.shape || tensor.num_parts != part.parts ||
        tensor.dtype != dtype_or_usual(part.dtype)) {
        return make_error(
            ErrorCode::kDataLoss,
            "{}: ranks {} and {} disagree on its shape, dtype or parts",
            part.name,
            raw(tensor.rank),
            raw(rank)
        );
    }
    if (part.part < 0 || part.part >= part.parts) {
        return make_error(
            ErrorCode::kDataLoss,
            "{}: rank {} reports part {} of {}",
            part.name,
            raw(rank),
            part.part,
            part.parts
        );
    }
    const Part held{{part.lane0, part.lane1}, rank};
    const auto [copy, is_first] = tensor.parts.try_emplace(part.part, held);
    if (!is_first && copy->second.digest != held.digest) {
        return make_error(
            ErrorCode::kDataLoss,
            "{}: ranks {} and {} hold different copies of part {}",
            part.name,
            raw(copy->second.rank),
            raw(rank),
            part.part
        );
    }
    return Ok{};
}

}  // namespace

Result<VersionDigest> version_digest(std::span<const RankParts> ranks) {
    std::map<std::string_view, Tensor> tensors;
    for (const RankParts& from : ranks) {
        auto hint = tensors.begin();  // every rank lists names in order
        for (const PartDigest& part : from.parts) {
            const std::size_t num_before = tensors.size();
            const auto place = tensors.try_emplace(hint, part.name);
            hint = std::next(place);
            Tensor& tensor = place->second;
            if (tensors.size() > num_before) {
                tensor.shape = part.shape;
                tensor.dtype = dtype_or_usual(part.dtype);
                tensor.num_parts = part.parts;
                tensor.rank = from.rank;
            }
            RETURN_IF_ERROR(add(part, from.rank, tensor));
        }
    }
    VersionDigest version;
    for (const auto& [name, tensor] : tensors) {
        if (static_cast<std::int64_t>(tensor.parts.size()) != tensor.num_parts) {
            return make_error(
                ErrorCode::kDataLoss,
                "{}: {} of {} parts were reported by ranks; all must be",
                name,
                tensor.parts.size(),
                tensor.num_parts
            );
        }
        Digest sum;
        for (const auto& [index, part] : tensor.parts) sum += part.digest;
        version.tensors.push_back(
            {std::string(name), std::string(tensor.dtype), tensor.shape, to_hex(sum)}
        );
    }
    version.digest = version_digest_of(version.tensors);
    return version;
}

Digest version_digest_of(std::vector<TensorInfo> tensors) {
    std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return a.name < b.name;
    });
    std::string text;
    for (const TensorInfo& tensor : tensors) {
        text += fmt::format(
            "{} {} {} {}\n", tensor.name, tensor.dtype, fmt::join(tensor.shape, "x"), tensor.digest
        );
    }
    return digest_of(text);
}

}  // namespace pitstop::messages
