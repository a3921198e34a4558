// Says what callers are amid, so that the tree that comes after a restart can tell them of its
// loss.
//
// The door alone knows it, and may be the process that dies. So the launcher keeps the last line
// that it said, and hands that to the next tree's door.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::tokenizer {

struct Unfinished {
    enum class Calls {
        kNone,
        kStandStill,  // generation stands still: calls without a session would be collected
        kCollected,   // some were, and take no effect yet
    };
    Calls calls = Calls::kNone;
    std::uint64_t session = 0;   // has calls that name none; 0: none is open
    std::string session_what{};  // describes it

    friend bool operator==(const Unfinished&, const Unfinished&) = default;
};

[[nodiscard]] std::string line_of(const Unfinished& unfinished);  // empty: nothing
// A line that is none of these means the worst: calls were collected.
[[nodiscard]] Unfinished read_unfinished(std::string_view line);

// How this tree came to be.
struct Restart {
    std::string why{};  // "the tree restarted at ..., as ... died"; empty: it is the first
    Unfinished before{};
};

}  // namespace pitstop::tokenizer
