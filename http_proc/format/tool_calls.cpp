#include "http_proc/format/tool_calls.h"

#include "http_proc/format/call_text.h"

#include <utility>

namespace pitstop::http {

using Grammar = ToolFormatRow::Grammar;

TurnPieces ToolCallParser::append(std::string_view piece) {
    for (const char c : piece) {
        feed(c);
        drain();
    }
    return body_.take_pieces();
}

TurnPieces ToolCallParser::finish() {
    while (state_ == State::kBody) {
        if (reader_->is_whole(body_)) {
            end_body();
        } else if (reader_->ends_earlier(body_)) {
            read_later(body_.take_unread());
            drain();
        } else if (body_.is_begun()) {
            body_.break_call();
            state_ = State::kRest;
        } else {
            give_up({});
            drain();
        }
    }
    if (state_ == State::kStart && !(body_.has_calls() && marker_.empty())) text_of_space();
    body_.pieces().add_text(std::exchange(marker_, {}));
    return body_.take_pieces();
}

void ToolCallParser::feed(char c) {
    switch (state_) {
        case State::kStart:
        case State::kText:
            return feed_text(c);
        case State::kBody:
            return feed_body(c);
        case State::kRest:
            body_.pieces().add_text(std::string_view(&c, 1));
    }
}

void ToolCallParser::drain() {
    while (!pending_.empty()) {
        const char c = pending_.back();
        pending_.pop_back();
        feed(c);
    }
}

void ToolCallParser::read_later(std::string_view bytes) {
    pending_.append(bytes.rbegin(), bytes.rend());
}

// Leaves out white space before a marker, unless a word is between them.
void ToolCallParser::feed_text(char c) {
    if (state_ == State::kStart && marker_.empty()) {
        if (is_call_space(c)) {
            space_ += c;
            if (space_.size() > kCallSpaceBytesMax) text_of_space();
            return;
        }
        if (row_->start != '\0' && c == row_->start && !body_.has_calls()) {
            begin_body(/*by_short_open=*/false);
            return feed_body(c);
        }
    }
    marker_ += c;
    const auto may_become = [&](std::string_view marker) { return marker.starts_with(marker_); };
    while (!marker_.empty() && !may_become(row_->open) &&
           (row_->short_open.empty() || !may_become(row_->short_open))) {
        text_of_space();
        body_.pieces().add_text(std::string_view(marker_).substr(0, 1));
        marker_.erase(0, 1);
    }
    if (marker_ == row_->open) {
        begin_body(/*by_short_open=*/false);
    } else if (!row_->short_open.empty() && marker_ == row_->short_open) {
        begin_body(/*by_short_open=*/true);
    }
}

void ToolCallParser::text_of_space() {
    body_.pieces().add_text(std::exchange(space_, {}));
    state_ = State::kText;
}

void ToolCallParser::begin_body(bool by_short_open) {
    body_.begin(std::exchange(space_, {}) + std::exchange(marker_, {}));
    reader_.emplace(*row_, schemas_, by_short_open);
    state_ = State::kBody;
}

void ToolCallParser::feed_body(char c) {
    const std::string_view byte(&c, 1);
    switch (reader_->read(c, body_)) {
        case CallStep::kMore:
            return body_.take(byte);
        case CallStep::kCall:
            body_.take(byte);
            return body_.end_call();
        case CallStep::kEndOfCalls:
            return body_.forget_written();
        case CallStep::kBody:
            body_.take(byte);
            return end_body();
        case CallStep::kBroken:
            return give_up(byte);
        case CallStep::kReread:
            read_later(byte);
            return read_later(body_.take_unread());
    }
}

// The output cannot continue as a call. Its unreported bytes are text; some are read again.
void ToolCallParser::give_up(std::string_view rest) {
    const bool is_last = row_->grammar == Grammar::kObjects || row_->grammar == Grammar::kPythonic;
    const bool is_after_call =
        body_.has_call() && !body_.is_begun() && !body_.is_right_after_opening();
    state_ = is_last ? State::kRest : is_after_call ? State::kStart : State::kText;
    read_later(rest);
    if (body_.is_begun()) {
        body_.break_call();
    } else {
        body_.pieces().add_text(body_.take_opening());
        read_later(body_.take_written());
    }
    body_.end();
}

void ToolCallParser::end_body() {
    if (body_.is_begun() || body_.name()) body_.end_call();
    state_ = row_->grammar == Grammar::kPythonic ? State::kRest : State::kStart;
    body_.end();
}

}  // namespace pitstop::http
