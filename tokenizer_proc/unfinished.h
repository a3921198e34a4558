// The callers' unfinished work, so that the next tree after a restart can tell callers of its loss.
//
// Only the door knows of such work, and the door may be the process that dies. So the launcher
// keeps the door's latest line about the work, and passes it to the next tree's door.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop::tokenizer {

struct Unfinished {
    enum class Calls {
        kNone,
        kStandStill,  // generation is stopped: calls without a session would be collected
        kCollected,   // calls were collected, and take no effect yet
    };
    Calls calls = Calls::kNone;
    std::uint64_t session = 0;      // the open session for unnamed calls; 0: no such session
    std::string session_adapter{};  // empty: a session of the model's weights
    std::string session_what{};     // the session's description

    friend bool operator==(const Unfinished&, const Unfinished&) = default;
};

[[nodiscard]] std::string line_of(const Unfinished& unfinished);  // empty: no unfinished work
// Any other line means the worst: calls were collected.
[[nodiscard]] Unfinished read_unfinished(std::string_view line);

// The reason for the start of this tree.
struct Restart {
    std::string why{};  // "the tree restarted at ..., as ... died"; empty: the first tree
    Unfinished before{};
};

}  // namespace pitstop::tokenizer
