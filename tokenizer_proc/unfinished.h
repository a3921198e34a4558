// The callers' unfinished work, so that the tree after a restart can tell them of its loss.
//
// Only the door knows about such work, and the door may be the process that dies. So the launcher
// keeps the door's last line about it, and passes the line to the next tree's door.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::tokenizer {

struct Unfinished {
    enum class Calls {
        kNone,
        kStandStill,  // generation is stopped: calls without a session would be collected
        kCollected,   // some were collected, and take no effect yet
    };
    Calls calls = Calls::kNone;
    std::uint64_t session = 0;   // the open session for calls that name none; 0: none is open
    std::string session_what{};  // its description

    friend bool operator==(const Unfinished&, const Unfinished&) = default;
};

[[nodiscard]] std::string line_of(const Unfinished& unfinished);  // empty: nothing unfinished
// Any other line means the worst: calls were collected.
[[nodiscard]] Unfinished read_unfinished(std::string_view line);

// Why this tree was started.
struct Restart {
    std::string why{};  // "the tree restarted at ..., as ... died"; empty: the first tree
    Unfinished before{};
};

}  // namespace pitstop::tokenizer
