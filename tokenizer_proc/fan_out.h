// Calls that every replica must answer: who asked, who has answered, and until when.
//
// A call gets a number of the door's own, so that callers' numbers never meet; its parts come back
// under it, in any order. It ends once: complete, or at its deadline naming who is missing.
//
// Pure: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: kCallsMax calls; a further one is refused.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

// Who asked at the admin door, and the number they gave their call.
struct AdminCaller {
    std::string peer{};
    CallId call{};
};

inline constexpr std::size_t kCallsMax = 1024;  // open at the admin door, of each kind

template <class Part>
class FanOut {
  public:
    struct Ended {
        AdminCaller caller{};
        std::vector<Part> parts{};     // complete: one per replica, in order
        std::optional<Error> error{};  // or why it is not
    };

    // `what` and `phase` are for the error of a late call: "pause_generation", "stop".
    FanOut(int num_replicas, std::string_view what, std::string_view phase)
        : num_replicas_(static_cast<std::size_t>(num_replicas)), what_(what), phase_(phase) {}

    [[nodiscard]] bool is_full() const { return calls_.size() >= kCallsMax; }

    // REQUIRES: !is_full(); no open call has this number.
    void begin(CallId id, AdminCaller caller, TimePoint deadline) {
        CHECK(!is_full());
        Call call{std::move(caller), deadline, {}};
        call.parts.resize(num_replicas_);
        CHECK(calls_.emplace(id, std::move(call)).second);
    }

    // A replica's part. Nothing: the call is not complete, or over, or that replica has answered.
    std::optional<Ended> add(CallId id, ReplicaId replica, Part part) {
        const auto place = calls_.find(id);
        const auto index = static_cast<std::size_t>(raw(replica));
        if (place == calls_.end() || index >= num_replicas_) return std::nullopt;
        Call& call = place->second;
        if (call.parts[index]) return std::nullopt;
        call.parts[index] = std::move(part);
        if (!std::ranges::all_of(call.parts, [](const auto& each) { return each.has_value(); })) {
            return std::nullopt;
        }
        Ended ended{std::move(call.caller), {}, {}};
        for (std::optional<Part>& each : call.parts) ended.parts.push_back(*std::move(each));
        calls_.erase(place);
        return ended;
    }

    // The calls whose deadline has come.
    std::vector<Ended> take_late(TimePoint now) {
        return take_if(
            [now](const Call& call) { return call.deadline <= now; },
            [&](const Call& c) {
                return make_error(
                    ErrorCode::kDeadlineExceeded,
                    "{}, phase {}: no answer in time from {}",
                    what_,
                    phase_,
                    missing(c)
                );
            }
        );
    }

    std::vector<Ended> take_all(const Error& error) {
        return take_if([](const Call&) { return true; }, [&](const Call&) { return error; });
    }

    [[nodiscard]] TimePoint next_deadline() const {
        TimePoint first = TimePoint::max();
        for (const auto& [id, call] : calls_) first = std::min(first, call.deadline);
        return first;
    }

  private:
    struct Call {
        AdminCaller caller{};
        TimePoint deadline{};
        std::vector<std::optional<Part>> parts{};  // by replica
    };

    template <class Which, class Why>
    std::vector<Ended> take_if(Which which, Why why) {
        std::vector<Ended> ended;
        for (auto place = calls_.begin(); place != calls_.end();) {
            if (!which(place->second)) {
                ++place;
                continue;
            }
            ended.push_back({place->second.caller, {}, why(place->second)});
            place = calls_.erase(place);
        }
        return ended;
    }

    static std::string missing(const Call& call) {
        std::string names;
        for (std::size_t i = 0; i < call.parts.size(); ++i) {
            if (call.parts[i]) continue;
            names += fmt::format("{}scheduler_proc[{}]", names.empty() ? "" : ", ", i);
        }
        return names;
    }

    std::size_t num_replicas_;
    std::string what_;
    std::string phase_;
    std::map<CallId, Call> calls_{};
};

}  // namespace pitstop::tokenizer
