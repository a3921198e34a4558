// The sessions that accept a sparse bucket. The door, the scheduler and the workers check it.
#pragma once

#include "messages/weights.h"

#include <optional>
#include <string>

namespace pitstop::messages {

// Returns why the session accepts no bucket from this source, or nothing.
[[nodiscard]] inline std::optional<std::string> problem_of_bucket(
    const UpdateSpec& session, const WeightSource& bucket
) {
    if (bucket.format != TensorFormat::kSparse) return std::nullopt;
    if (session.base_digest.empty()) {
        return "a sparse bucket changes the version it was made for; the session named no "
               "base_digest";
    }
    if (session.adapter.empty() || session.partial) return std::nullopt;
    return "a sparse bucket changes the adapter's version that serves; the session is not partial";
}

}  // namespace pitstop::messages
