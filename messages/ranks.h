// The ranks of a replica meet over the bus. Each rank joins once. Then the ranks hold meetings: in
// each, every rank sends its part and receives all parts. Meetings exchange the id of NCCL's
// communicator and, if a replica spans machines, all data between ranks outside of GPUs.
//
// Order: a rank sends its part of meeting n + 1 after it has received the parts of meeting n. Loss:
// a rank whose connection ends is gone, and ends its replica. Nothing is sent twice.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/fields.h"
#include "messages/frames.h"
#include "messages/verdict.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

// Larger data is sent in several meetings, so that no meeting occupies the scheduler for long.
inline constexpr std::size_t kRankPartBytesMax = std::size_t{1} << 20;
inline constexpr int kNodesMax = 64;
// The longest time that a rank waits: small enough to be added to a time point.
inline constexpr std::int64_t kRankLimitMsMax = std::numeric_limits<std::int32_t>::max();

struct RankJoin {
    static constexpr std::string_view kType = "rank_join";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: a rank wants to join, before it loads anything. Answered "
        "by `rank_joined`.";
    static constexpr std::size_t kSettingsMax = 64;
    static constexpr std::size_t kSettingBytesMax = 8192;  // may have a path
    static constexpr std::size_t kNameBytesMax = 255;      // of a host (RFC 1035) or a build
    int protocol = kProtocolVersion;
    std::string build{};
    Rank rank{};
    int tp = 1;
    int node = 0;
    int nodes = 1;
    std::string host{};
    std::int64_t pid = 0;
    std::vector<std::string> settings{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "protocol version");
        f("build", build, "pitstop and its version: all ranks have the same");
        f("rank", rank, "tensor-parallel rank");
        f("tp", tp, "number of ranks");
        f("node", node, "the machine's number in the replica, from 0: the head");
        f("nodes", nodes, "how many machines the replica spans");
        f("host", host, "the machine's name");
        f("pid", pid, "process id there");
        f("settings", settings, "NAME=VALUE of the settings that must be equal on all ranks");
    }
};

struct RankJoined {
    static constexpr std::string_view kType = "rank_joined";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: the rank has joined. Or why it has not; then the rank's "
        "process ends.";
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        verdict.fields_in(f);
    }
};

struct RankPart {
    static constexpr std::string_view kType = "rank_part";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: the rank's part of a meeting. Answered by `rank_met` when "
        "all ranks have sent their parts.";
    std::int64_t meeting = 0;
    std::string what{};
    std::int64_t num_bytes = 0;
    std::int64_t limit_ms = 0;
    RawArray<std::uint8_t> data{};

    template <class F>
    void fields(F&& f) {
        f("meeting", meeting, "counted from 1; the same on all ranks");
        f("what", what, "the operation; the same on all ranks");
        f("num_bytes", num_bytes, "bytes of each part that is not empty; the same on all ranks");
        f("limit_ms", limit_ms, "milliseconds that the rank waits for the others");
        f("data", data, "the rank's part, or nothing");
    }
};

struct RankMet {
    static constexpr std::string_view kType = "rank_met";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> every tp_worker in the meeting: the parts of all ranks. Or why the "
        "ranks do not meet, with the rank at fault and its machine; then no later meeting takes "
        "place.";
    std::int64_t meeting = 0;
    Verdict verdict{};
    RawArray<std::uint8_t> data{};

    template <class F>
    void fields(F&& f) {
        f("meeting", meeting, "the meeting");
        verdict.fields_in(f);
        f("data", data, "the parts that are not empty, in rank order");
    }
};

struct RankEnd {
    static constexpr std::string_view kType = "rank_end";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker of another machine, which the head's launcher cannot tell: "
        "the replica ends. Or this worker cannot join: its settings differ from those of the "
        "head's ranks, which joined later, or its message is not one that a rank sends.";
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        verdict.fields_in(
            f, "why the replica, or this worker, cannot continue; absent: it was told to end"
        );
    }
};

std::optional<std::string> invalid(const RankJoin& message);
std::optional<std::string> invalid(const RankPart& message);

}  // namespace pitstop::messages
