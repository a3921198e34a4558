// Drafts: guesses at a request's next tokens, which a pass verifies. Drafts do not change tokens;
// they only reduce the number of passes (P11).
#pragma once

#include "messages/fields.h"

#include <cstddef>
#include <cstdint>

namespace pitstop::messages {

inline constexpr std::int64_t kDraftedMax = 32;  // drafts of a row
// The most drafts of a step of a model with recurrent state: the workers keep the drafts' inputs of
// the recurrence until the step has sampled.
inline constexpr std::int64_t kStateDraftsMax = 256;
inline constexpr std::size_t kDraftIdsMax = std::size_t{1} << 17;  // of one request
inline constexpr std::size_t kDraftKeyBytesMax = 256;

// Counts of drafts, of a request or of a replica.
struct DraftCounts {
    std::int64_t passes = 0;
    std::int64_t rows = 0;
    std::int64_t drafted = 0;
    std::int64_t accepted = 0;

    template <class F>
    void fields(F&& f) {
        f("passes", passes, "passes that sampled for a request, with drafts or without");
        f("rows", rows, "of these, passes over a row with drafts");
        f("drafted", drafted, "draft tokens that passes verified");
        f("accepted", accepted, "of these, drafts that were the request's next tokens");
    }
    friend bool operator==(const DraftCounts&, const DraftCounts&) = default;
};

}  // namespace pitstop::messages
