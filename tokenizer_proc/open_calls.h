// Calls at the admin door that wait for answers: the caller, the deadline, the answers so far.
//
// Each call gets a number of the door's own, because callers' numbers may collide. Answers arrive
// under that number, in any order. A call ends once: with its answer, or at its deadline with an
// error that names its phase and the missing answers. One table serves all kinds of calls.
//
// Pure: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: kCallsMax open calls of each kind; further ones are refused.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/replica_calls.h"
#include "tokenizer_proc/gathered.h"
#include "tokenizer_proc/request_table.h"
#include "tokenizer_proc/weight_reads.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::tokenizer {

// The caller at the admin door, and the number that the caller gave its call.
struct AdminCaller {
    std::string peer{};
    CallId call{};
};

inline constexpr std::size_t kCallsMax = 1024;  // open calls of each kind at the admin door

// The last chunks of the requests that an abort ends; the abort waits for them.
struct LastChunks {
    std::map<OpenId, ReplicaId> ending{};  // each request, and its replica
    messages::AbortReply reply{};

    [[nodiscard]] std::string who_is_missing() const;
};

class OpenCalls {
  public:
    // The answers that a call waits for: of replicas, of ranks, or last chunks.
    template <class List>
    struct AwaitedOf;
    template <class... Parts>
    struct AwaitedOf<messages::MessageList<Parts...>> {
        using Type = std::variant<Gathered<Parts>..., TensorRead, LastChunks>;
    };
    using Awaited = typename AwaitedOf<decltype(
        messages::ReplicaParts{} +
        messages::MessageList<messages::WorkerDigests, messages::WorkerGrouped>{}
    )>::Type;
    struct Call {
        AdminCaller caller{};
        std::string_view what{};   // type of the call
        std::string adapter{};     // the adapter that the call names; empty: none
        std::string_view phase{};  // the current phase, for the error of a late call
        TimePoint deadline{};
        Awaited awaited;
    };

    // Returns the call's number, under which answers arrive. Errors: kResourceExhausted.
    Result<CallId> open(Call call);

    // Returns the answers that this call waits for; null if the call has ended, or waits for
    // answers of another kind.
    template <class Awaits>
    [[nodiscard]] Awaits* find(CallId id) {
        const auto place = calls_.find(id);
        return place == calls_.end() ? nullptr : std::get_if<Awaits>(&place->second.awaited);
    }
    // Removes the call and returns its caller. REQUIRES: the call is open.
    AdminCaller close(CallId id);

    // Adds a part of a call's answer. With the last part, closes the call and returns all parts.
    template <class Part>
    struct Complete {
        AdminCaller caller{};
        std::vector<Part> parts{};  // ordered by replica, then rank
    };
    template <class Part>
    [[nodiscard]] std::optional<Complete<Part>> handle_part(Part part) {
        const CallId id = part.call;
        auto* gathered = find<Gathered<Part>>(id);
        if (gathered == nullptr || !gathered->add(std::move(part))) return std::nullopt;
        std::vector<Part> parts = gathered->take();
        return Complete<Part>{close(id), std::move(parts)};
    }

    // Calls `visit(id, awaited)` for each call that waits for this kind of answer, in the order of
    // the calls' numbers.
    template <class Awaits, class Visit>
    void for_each(Visit visit) {
        for (auto place = calls_.begin(); place != calls_.end();) {
            const auto here = place++;  // `visit` may close the call
            if (auto* awaited = std::get_if<Awaits>(&here->second.awaited))
                visit(here->first, *awaited);
        }
    }

    // Returns whether some call waits for this kind of answer.
    template <class Awaits>
    [[nodiscard]] bool has() const {
        return std::ranges::any_of(calls_, [](const auto& entry) {
            return std::holds_alternative<Awaits>(entry.second.awaited);
        });
    }

    struct Late {
        AdminCaller caller{};
        std::string_view what{};
        std::string adapter{};
        Error error{};
    };
    // Removes and returns the calls whose deadline has passed.
    [[nodiscard]] std::vector<Late> take_late(TimePoint now);
    [[nodiscard]] std::vector<AdminCaller> take_all();
    [[nodiscard]] TimePoint next_deadline() const;  // max: none

  private:
    std::map<CallId, Call> calls_{};
    std::array<std::size_t, std::variant_size_v<Awaited>> num_open_{};  // by kind
    CallId next_id_{1};
};

}  // namespace pitstop::tokenizer
