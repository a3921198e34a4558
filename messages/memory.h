// Calls that free the memory of the weights or the KV, by tags, while another program needs it.
// Others allocate the memory again at the same addresses (design section 6).
//
// Released memory and paused requests are independent of each other. But requests must not
// use the memory that a release frees, and nothing is generated while some memory is
// released. Order: a replica handles these calls together with control calls, in the order
// sent. A call in the wrong state is refused and changes nothing. Weights that were
// released without being kept are lost: the replica generates nothing until the next
// complete update.
#pragma once

#include "base/ids.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/verdict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

enum class MemoryTag : std::uint8_t { kWeights, kKvCache };
template <>
struct EnumNames<MemoryTag> {
    static constexpr std::array<std::string_view, 2> kNames{"weights", "kv_cache"};
};
inline constexpr std::array kAllMemoryTags{MemoryTag::kWeights, MemoryTag::kKvCache};

enum class MemoryState : std::uint8_t { kResident, kReleasing, kReleased, kResuming };
template <>
struct EnumNames<MemoryState> {
    static constexpr std::array<std::string_view, 4> kNames{
        "resident", "releasing", "released", "resuming"};
};

// A rank's memory under a tag; in a status, the memory of all ranks of a replica.
struct TagMemory {
    MemoryTag tag = MemoryTag::kWeights;
    MemoryState state = MemoryState::kResident;
    std::int64_t resident_bytes = 0;
    std::int64_t host_bytes = 0;
    std::int64_t freed_bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("tag", tag, "weights (every copy of them) or kv_cache");
        f("state", state, "resident, releasing, released or resuming");
        f("resident_bytes", resident_bytes, "physical memory under the tag, at the last measurement"
        );
        f("host_bytes",
          host_bytes,
          "host memory with versions of the weights: those kept while released, and those that "
          "--update-mode host has staged or retained");
        f("freed_bytes", freed_bytes, "in an answer to release_memory: the bytes measured as freed"
        );
    }
    friend bool operator==(const TagMemory&, const TagMemory&) = default;
};

struct ReleaseMemory {
    static constexpr std::string_view kType = "release_memory";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: free memory. Refused while requests are open and "
        "generation is not paused, while requests hold pages (kv_cache) and during an update "
        "(weights). Frees cached prefixes with kv_cache, and the retained version with weights. "
        "Answered by `memory_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::vector<MemoryTag> tags{};
    bool keep_weights = false;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("tags", tags, "weights, kv_cache; empty: all that are resident");
        f("keep_weights",
          keep_weights,
          "keep the live weights in host memory, and restore them on resume; false: they are "
          "discarded");
    }
};

struct ResumeMemory {
    static constexpr std::string_view kType = "resume_memory";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: allocate released memory again, at the same "
        "addresses. Answered by `memory_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::vector<MemoryTag> tags{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("tags", tags, "weights, kv_cache; empty: all that are released");
    }
};

struct MemoryPart {
    static constexpr std::string_view kType = "memory_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica has released or resumed, or why not.";
    static constexpr std::string_view kReplyType = "memory_reply";
    static constexpr std::string_view kReplyAbout =
        "admin door -> client: every replica has released or resumed, or which replica has not. "
        "Replicas that were in that state before the call are no error if another replica "
        "succeeds. So a call that failed on one replica can be repeated.";
    static constexpr bool kLetsGenerationGoOn = true;
    CallId call{};
    ReplicaId replica{};
    Verdict verdict{};
    bool was_done = false;
    std::vector<TagMemory> tags{};
    bool has_weights = true;

    template <class F>
    void fields(F&& f) {
        part_fields(f, *this);
        f("was_done", was_done, "refused because every requested tag was in that state already");
        f("tags", tags, "the replica's memory now");
        f("has_weights",
          has_weights,
          "false: the weights are gone; only a complete update lets generation continue");
    }
};

using MemoryReply = ReplyOf<MemoryPart>;

// ---- scheduler <-> workers ----

enum class MemoryAction : std::uint8_t { kRelease, kResume };
template <>
struct EnumNames<MemoryAction> {
    static constexpr std::array<std::string_view, 2> kNames{"release", "resume"};
};

struct WorkerMemory {
    static constexpr std::string_view kType = "worker_memory";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker, with no step in flight: release or resume. A tag that is "
        "already in that state stays unchanged. Answered by `worker_memory_done`.";
    CallId call{};
    MemoryAction action = MemoryAction::kRelease;
    std::vector<MemoryTag> tags{};
    bool keep_weights = false;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the scheduler's number");
        f("action", action, "release or resume");
        f("tags", tags, "which memory");
        f("keep_weights", keep_weights, "release: keep the live weights in host memory");
    }
};

struct WorkerMemoryDone {
    static constexpr std::string_view kType = "worker_memory_done";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: this rank's memory is as ordered, or why it is not.";
    CallId call{};
    Rank rank{};
    Verdict verdict{};
    std::vector<TagMemory> tags{};
    std::int64_t graph_bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the answered order; 0: a report without an order");
        f("rank", rank, "the sender");
        verdict.fields_in(f);
        f("tags", tags, "every tag of this rank, measured");
        f("graph_bytes",
          graph_bytes,
          "in a report without an order: bytes of its GPU for graphs of steps");
    }
};

std::optional<std::string> invalid(const ReleaseMemory& message);
std::optional<std::string> invalid(const ResumeMemory& message);

}  // namespace pitstop::messages
