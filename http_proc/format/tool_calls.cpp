#include "http_proc/format/tool_calls.h"

#include "http_proc/format/call_text.h"

#include <utility>

namespace pitstop::http {
namespace {

using Grammar = ToolFormatRow::Grammar;

bool is_all_call_space(std::string_view text) {
    return text.find_first_not_of(kCallSpace) == std::string_view::npos;
}

}  // namespace

TurnPieces ToolCallParser::append(std::string_view piece) {
    for (const char c : piece) {
        feed(c);
        drain();
    }
    flush();
    return std::exchange(pieces_, {});
}

TurnPieces ToolCallParser::finish() {
    while (state_ == State::kBody) {
        if (is_whole_at_end()) {
            end_body();
        } else if (is_begun_) {
            break_call();
            state_ = State::kRest;
        } else {
            give_up({});
            drain();
        }
    }
    if (state_ == State::kStart && !(has_calls_ && marker_.empty())) text_of_space();
    pieces_.add_text(std::exchange(marker_, {}));
    return std::exchange(pieces_, {});
}

void ToolCallParser::feed(char c) {
    switch (state_) {
        case State::kStart:
        case State::kText:
            return feed_text(c);
        case State::kBody:
            return feed_body(c);
        case State::kRest:
            pieces_.add_text(std::string_view(&c, 1));
    }
}

void ToolCallParser::drain() {
    while (!pending_.empty()) {
        const char c = pending_.back();
        pending_.pop_back();
        feed(c);
    }
}

// White space before a marker, without a word in between, is left out.
void ToolCallParser::feed_text(char c) {
    if (state_ == State::kStart && marker_.empty()) {
        if (is_call_space(c)) {
            space_ += c;
            if (space_.size() > kCallSpaceBytesMax) text_of_space();
            return;
        }
        if (row_->start != '\0' && c == row_->start && !has_calls_) {
            begin_body(Phase::kBegin);
            return feed_body(c);
        }
    }
    marker_ += c;
    const auto may_become = [&](std::string_view marker) { return marker.starts_with(marker_); };
    while (!marker_.empty() && !may_become(row_->open) &&
           (row_->short_open.empty() || !may_become(row_->short_open))) {
        text_of_space();
        pieces_.add_text(std::string_view(marker_).substr(0, 1));
        marker_.erase(0, 1);
    }
    if (marker_ == row_->open) {
        begin_body(Phase::kBegin);
    } else if (!row_->short_open.empty() && marker_ == row_->short_open) {
        begin_body(Phase::kName);
        needs_no_close_ = true;
    }
}

void ToolCallParser::text_of_space() {
    pieces_.add_text(std::exchange(space_, {}));
    state_ = State::kText;
}

void ToolCallParser::begin_body(Phase phase) {
    opening_ = std::exchange(space_, {}) + std::exchange(marker_, {});
    written_.clear();
    state_ = State::kBody;
    phase_ = phase;
    has_call_ = false;
    is_list_ = false;
    needs_no_close_ = false;
    token_.clear();
    name_.reset();
    is_first_key_ = true;
    has_arguments_ = false;
}

void ToolCallParser::feed_body(char c) {
    switch (step(c)) {
        case Step::kMore:
            written_ += c;
            return;
        case Step::kCall:
            written_ += c;
            return end_call();
        case Step::kEndOfCalls:
            return written_.clear();
        case Step::kBody:
            written_ += c;
            return end_body();
        case Step::kBroken:
            return give_up(std::string_view(&c, 1));
    }
}

// The output does not continue as a call: its unreported part is text, and is read again.
void ToolCallParser::give_up(std::string_view rest) {
    const bool is_last = row_->grammar == Grammar::kObjects || row_->grammar == Grammar::kPythonic;
    const bool is_after_call = has_call_ && !is_begun_ && opening_.empty();
    state_ = is_last ? State::kRest : is_after_call ? State::kStart : State::kText;
    pending_.append(rest.rbegin(), rest.rend());
    marker_.clear();
    if (is_begun_) {
        break_call();
    } else {
        pieces_.add_text(std::exchange(opening_, {}));
        pending_.append(written_.rbegin(), written_.rend());
        written_.clear();
    }
    arguments_.clear();
    value_.reset();
    name_.reset();
}

void ToolCallParser::break_call() {
    pieces_.add_arguments(std::exchange(arguments_, {}), std::exchange(written_, {}));
    pieces_.break_call({});
    is_begun_ = false;
    marker_.clear();
}

void ToolCallParser::end_body() {
    if (is_begun_ || name_) end_call();
    const bool is_last = row_->grammar == Grammar::kPythonic;
    state_ = is_last ? State::kRest : State::kStart;
    marker_.clear();
    written_.clear();
    opening_.clear();
}

void ToolCallParser::begin_call(std::string name, std::string id) {
    is_begun_ = true;
    pieces_.begin_call(std::move(name), std::move(id), opening_ + std::exchange(written_, {}));
    opening_.clear();
}

void ToolCallParser::end_call() {
    if (!is_begun_) begin_call(*name_, {});
    if (!has_arguments_) arguments_ = "{}";
    pieces_.add_arguments(std::exchange(arguments_, {}), std::exchange(written_, {}));
    pieces_.end_call({});
    is_begun_ = false;
    has_call_ = true;
    has_calls_ = true;
    name_.reset();
    token_.clear();
    marker_.clear();
    has_arguments_ = false;
    is_first_key_ = true;
}

// Reports the arguments that have arrived.
void ToolCallParser::flush() {
    if (!is_begun_ || arguments_.empty()) return;
    pieces_.add_arguments(std::exchange(arguments_, {}), std::exchange(written_, {}));
}

// Whether the output's end may be that of the body, and of its call if one is open.
bool ToolCallParser::is_whole_at_end() {
    switch (row_->grammar) {
        case Grammar::kObject:
            return phase_ == Phase::kEnd;
        case Grammar::kObjects:
        case Grammar::kMistral:
        case Grammar::kPythonic:
            return phase_ == Phase::kOptionalEnd;
        case Grammar::kNamedJson:
            return phase_ == Phase::kAfterArguments ||
                   (phase_ == Phase::kBetween && has_call_ && is_all_call_space(written_));
        case Grammar::kTagged:
            return phase_ == Phase::kOptionalEnd ||
                   (phase_ == Phase::kBetween && has_call_ && is_all_call_space(written_));
    }
    return false;
}

ToolCallParser::Step ToolCallParser::step(char c) {
    switch (row_->grammar) {
        case Grammar::kObject:
            return step_object(c);
        case Grammar::kObjects:
            return step_objects(c);
        case Grammar::kMistral:
            return step_mistral(c);
        case Grammar::kNamedJson:
            return step_named_json(c);
        case Grammar::kTagged:
            return step_tagged(c);
        case Grammar::kPythonic:
            break;
    }
    return step_python(c);
}

}  // namespace pitstop::http
