// Drafts: guesses at a request's next tokens, which a pass verifies. Drafts do not change tokens;
// they only reduce the number of passes (P11).
#pragma once

#include "messages/fields.h"

#include <cstddef>
#include <cstdint>

namespace pitstop::messages {

inline constexpr std::int64_t kDraftedMax = 32;  // drafts per row
// The most drafts in a step of a model with recurrent state. Until the step has sampled, the
// workers keep the inputs of the recurrence for all drafts.
inline constexpr std::int64_t kStateDraftsMax = 256;
inline constexpr std::size_t kDraftIdsMax = std::size_t{1} << 17;  // of one request
inline constexpr std::size_t kDraftKeyBytesMax = 256;

// The counts of drafts of a request or of a replica.
struct DraftCounts {
    std::int64_t passes = 0;
    std::int64_t rows = 0;
    std::int64_t drafted = 0;
    std::int64_t accepted = 0;

    template <class F>
    void fields(F&& f) {
        f("passes", passes, "passes that sampled for a request, with drafts or without");
        f("rows", rows, "passes that sampled for a request with drafts");
        f("drafted", drafted, "draft tokens that passes verified");
        f("accepted", accepted, "verified draft tokens that equalled the request's next tokens");
    }
    friend bool operator==(const DraftCounts&, const DraftCounts&) = default;
};

}  // namespace pitstop::messages
