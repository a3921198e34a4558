// Streams an answer as server-sent events. Events that are ready at the same time are sent
// together, because each send costs a system call here and one at the client.
//
//   EventStream stream(exchange);
//   while (auto event = co_await generation.next()) {
//       write(stream.begin_event(), event->chunk);
//       stream.end_event();
//       if (!co_await stream.send(generation.has_more_now())) co_return Response::streamed();
//   }
//   co_await stream.end();
//   co_return Response::streamed();
//
// Thread:  the server's loop.
// Bounded: kJoinBytesMax and one event.
#pragma once

#include "base/result.h"
#include "http_proc/format/json_writer.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/router.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace pitstop::http {

class EventStream {
  public:
    static constexpr std::size_t kJoinBytesMax = 64 << 10;

    explicit EventStream(Exchange& exchange) : exchange_(&exchange) {}

    // Returns whether anything was sent. Before that, an error can still become a status.
    [[nodiscard]] bool has_begun() const { return has_begun_; }

    // Write the event's JSON to the result, then call end_event(). If `name` is not empty, "event:
    // NAME" precedes the data.
    [[nodiscard]] JsonWriter& begin_event(std::string_view name = {});
    void end_event() { events_.append("\n\n"); }
    // Adds a comment, which readers of events skip.
    void add_waiting(const std::string& why);
    void add_error(Dialect dialect, const Error& error);

    // Call after every step of the answer, even one without an event. Sends the waiting events,
    // unless more follow at once. co_await returns false if the client has left.
    [[nodiscard]] Exchange::Write send(bool more_is_ready);
    // Sends the waiting events, and "[DONE]".
    [[nodiscard]] Exchange::Write end();

  private:
    Exchange* exchange_;
    JsonWriter events_{};
    bool has_begun_ = false;
    std::string waited_{};  // the latest reason for which nothing was sent
};

}  // namespace pitstop::http
