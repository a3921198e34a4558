#include "http_proc/generation/event_stream.h"

#include "http_proc/server/errors.h"

namespace pitstop::http {

JsonWriter& EventStream::begin_event(std::string_view name) {
    if (!name.empty()) {
        events_.append("event: ");
        events_.append(name);
        events_.append("\n");
    }
    events_.append("data: ");
    return events_;
}

void EventStream::add_waiting(const std::string& why) {
    if (!has_begun_) waited_ = why;
    events_.append(": waiting: ");
    events_.append(why);
    events_.append("\n\n");
}

void EventStream::add_error(Dialect dialect, const Error& error) {
    begin_event().raw(error_json(dialect, status_of(error.code), error));
    end_event();
}

Exchange::Write EventStream::send(bool more_is_ready) {
    if (more_is_ready && events_.text().size() < kJoinBytesMax) return exchange_->write({});
    if (events_.text().empty()) return exchange_->write({});
    if (!has_begun_) exchange_->begin_events(waited_);
    has_begun_ = true;
    const Exchange::Write write = exchange_->write(events_.text());
    events_.clear(kJoinBytesMax);
    return write;
}

Exchange::Write EventStream::end() {
    events_.append("data: [DONE]\n\n");
    return send(/*more_is_ready=*/false);
}

}  // namespace pitstop::http
