// Where a source's bytes are. A handle to memory is invalid on another machine, or names other
// memory there.
#pragma once

#include "messages/weight_source.h"

#include <string>
#include <string_view>

namespace pitstop::messages {

// The sources that another machine can read.
inline constexpr std::string_view kSourcesThatTravel =
    "disk, distributed, and tensors in the call itself (each, flattened, sparse)";

// Returns the name of the source or format if its tensors are in the memory of the sender's
// machine; empty if another machine can read them.
[[nodiscard]] inline std::string_view shared_memory_of(const WeightSource& source) {
    const bool is_handles =
        source.kind == SourceKind::kTensors &&
        (source.format == TensorFormat::kPickle || source.format == TensorFormat::kVllmIpc);
    if (is_handles) return name_of(source.format);
    return source.kind == SourceKind::kIpc ? name_of(source.kind) : std::string_view();
}

// Returns the directory that has the bytes; empty: the source is no directory.
[[nodiscard]] inline std::string directory_of(const WeightSource& source) {
    return source.kind == SourceKind::kDisk ? source.path : std::string();
}

}  // namespace pitstop::messages
