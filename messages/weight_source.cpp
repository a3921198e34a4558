#include "messages/weight_source.h"

#include "base/utf8.h"
#include "messages/checks.h"
#include "messages/weights.h"

#include <fmt/format.h>

#include <climits>

namespace pitstop::messages {
namespace {

using Problem = std::optional<std::string>;

// A line to the launcher has the path, between tabs.
Problem invalid_path(std::string_view path) {
    if (path.size() >= PATH_MAX) {
        return fmt::format(
            "source.path has {} bytes; at most {} are accepted", path.size(), PATH_MAX - 1
        );
    }
    if (has_control_character(path))
        return "source.path has a control character; name the directory otherwise";
    return std::nullopt;
}

Problem invalid_handles(const WeightSource& source) {
    if (source.handles.empty() || source.handles.size() > kHandlesMax) {
        return fmt::format(
            "source.handles has {} entries; an ipc source names 1 to {}, one per device",
            source.handles.size(),
            kHandlesMax
        );
    }
    for (const auto& [device, endpoint] : source.handles) {
        if (device.empty() || endpoint.size() > kHandleBytesMax ||
            !endpoint.starts_with("ipc://")) {
            return fmt::format(
                "source.handles['{}'] is '{}'; accepted is a local endpoint, ipc://...",
                utf8_prefix(device, 64),
                utf8_prefix(endpoint, 64)
            );
        }
    }
    return std::nullopt;
}

// Checks names and shapes. Code that knows the model checks the products of shapes.
Problem invalid_tensors(const WeightSource& source) {
    if (source.format == TensorFormat::kPickle) {
        if (source.tensors.empty()) return std::nullopt;
        return "source.tensors is given, but a pickle lists its tensors itself; leave it empty";
    }
    if (source.tensors.empty() || source.tensors.size() > kManifestMax) {
        return fmt::format(
            "source.tensors has {} entries; 1 to {} are accepted",
            source.tensors.size(),
            kManifestMax
        );
    }
    for (const TensorInfo& tensor : source.tensors) {
        if (tensor.name.empty()) return "source.tensors: a tensor without a name";
    }
    const bool is_sparse = source.format == TensorFormat::kSparse;
    if (source.num_updates.size() != (is_sparse ? source.tensors.size() : 0)) {
        return fmt::format(
            "source.num_updates has {} entries for {} tensors; a sparse source has one per tensor, "
            "another has none",
            source.num_updates.size(),
            source.tensors.size()
        );
    }
    for (const std::int64_t num : source.num_updates) {
        if (num < 0) return fmt::format("source.num_updates: {}; accepted is 0 or more", num);
    }
    return std::nullopt;
}

}  // namespace

Problem invalid(const WeightSource& source) {
    if (source.stall_ms < 1)
        return fmt::format("source.stall_ms is {}; accepted is 1 or more", source.stall_ms);
    if (auto problem = invalid_path(source.path)) return problem;
    switch (source.kind) {
        case SourceKind::kDisk:
            if (source.path.empty())
                return "source.path is empty; a disk source names a checkpoint directory";
            return std::nullopt;
        case SourceKind::kIpc:
            return invalid_handles(source);
        case SourceKind::kTensors:
            if (source.format == TensorFormat::kEach)
                return "source.format each is for broadcasts; tensors in a call are flattened, "
                       "sparse, pickle or vllm_ipc";
            if (source.payloads.empty())
                return "source.payloads is empty; one for all ranks or one per rank is accepted";
            return invalid_tensors(source);
        case SourceKind::kDistributed:
            if (source.group.empty() || source.group.size() > kGroupNameBytesMax)
                return fmt::format(
                    "source.group has {} bytes; 1 to {} are accepted",
                    source.group.size(),
                    kGroupNameBytesMax
                );
            if (source.format == TensorFormat::kPickle || source.format == TensorFormat::kVllmIpc)
                return "source.format: a broadcast is each, flattened or sparse";
            if (source.packed_bytes < 0)
                return fmt::format(
                    "source.packed_bytes is {}; accepted is 0 or more", source.packed_bytes
                );
            return invalid_tensors(source);
        case SourceKind::kBuckets:
            return std::nullopt;
    }
    return std::nullopt;
}

}  // namespace pitstop::messages
