// The open requests and calls of one client, and when each is late.
//
// Thread:  one, the client's loop.
// Bounded: by its user, who asks is_open() and num_calls().
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/calls.h"
#include "messages/frames.h"
#include "messages/generation.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace pitstop {

// Distinguishes requests with the same rid: an earlier one, or one refused because the
// rid is in use.
enum class RequestNumber : std::uint64_t {};

class OpenWork {
  public:
    using Sink = std::function<void(messages::OutputChunk)>;         // runs on the loop's thread
    using OnFrames = std::function<void(Result<messages::Frames>)>;  // runs on the loop's thread

    struct Request {
        RequestNumber number{};
        // shared with a call in progress, which may end the request
        std::shared_ptr<const Sink> sink{};
        TimePoint deadline{};
    };
    struct Call {
        messages::Door door{};
        OnFrames on_reply{};
        TimePoint deadline{};
    };

    [[nodiscard]] bool is_open(const std::string& rid) const { return requests_.contains(rid); }
    [[nodiscard]] std::size_t num_calls() const { return calls_.size(); }
    [[nodiscard]] std::vector<std::string> rids() const;
    // Returns the calls that wait for this door.
    [[nodiscard]] std::vector<CallId> calls_at(messages::Door door) const;

    // REQUIRES: !is_open(rid).
    void add(const std::string& rid, Request request);
    // REQUIRES: no call has this id.
    void add(CallId id, Call call);

    // Returns where this chunk of output belongs, and removes the request with its last chunk.
    // Null: the request is not open, because it was late or lost meanwhile.
    [[nodiscard]] std::shared_ptr<const Sink> take_sink(const messages::OutputChunk& chunk);
    // Removes a call, and returns where its reply belongs; nothing: it was late, or is unknown.
    [[nodiscard]] std::optional<OnFrames> take_call(CallId id);
    // Drops further output of this request. Returns false if another one, or none, is open under
    // its rid.
    bool silence(const std::string& rid, RequestNumber number);

    using Id = std::variant<std::string, CallId>;
    // Returns the request or call whose deadline passed first, or nothing.
    [[nodiscard]] std::optional<Id> first_late(TimePoint now) const;
    [[nodiscard]] TimePoint first_deadline() const;  // max: none is open

  private:
    using Deadlines = std::multimap<TimePoint, Id>;
    template <class What>
    struct Entry {
        What what{};
        Deadlines::iterator deadline{};
    };

    std::unordered_map<std::string, Entry<Request>> requests_{};  // by rid
    std::map<CallId, Entry<Call>> calls_{};
    Deadlines deadlines_{};  // of all requests and calls
};

}  // namespace pitstop
