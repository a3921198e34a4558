// Streams an answer of server-sent events. Events that are ready together are sent together: an
// event costs a system call here and one at its reader.
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

    // Returns whether anything was sent: until then, an error is an answer with a status.
    [[nodiscard]] bool has_begun() const { return has_begun_; }

    // Write the event's JSON to the result, then call end_event().
    // With a name, "event: NAME" precedes the data.
    [[nodiscard]] JsonWriter& begin_event(std::string_view name = {});
    void end_event() { events_.append("\n\n"); }
    // Adds a comment, which readers of events skip.
    void add_waiting(const std::string& why);
    void add_error(Dialect dialect, const Error& error);

    // Call after every step of the answer, even without an event: sends what waits, unless more is
    // ready and follows at once. co_await returns false if the client will not get it.
    [[nodiscard]] Exchange::Write send(bool more_is_ready);
    // Sends what waits, and "[DONE]".
    [[nodiscard]] Exchange::Write end();

  private:
    Exchange* exchange_;
    JsonWriter events_{};
    bool has_begun_ = false;
    std::string waited_{};  // why nothing has been sent yet
};

}  // namespace pitstop::http
