#include "http_proc/format/call_body.h"

#include "base/check.h"
#include "http_proc/format/value_reader.h"

#include <utility>

namespace pitstop::http {

void CallBody::begin(std::string opening) {
    opening_ = std::move(opening);
    written_.clear();
    has_call_ = false;
    name_.reset();
    arguments_.clear();
    has_arguments_ = false;
}

void CallBody::end() {
    opening_.clear();
    written_.clear();
    arguments_.clear();
    name_.reset();
}

std::string CallBody::take_unread() {
    CHECK(num_unread_ <= written_.size());
    std::string bytes = written_.substr(written_.size() - num_unread_);
    written_.resize(written_.size() - std::exchange(num_unread_, 0));
    return bytes;
}

void CallBody::begin_call(std::string name, std::string id) {
    is_begun_ = true;
    name_ = name;
    pieces_.begin_call(std::move(name), std::move(id), opening_ + std::exchange(written_, {}));
    opening_.clear();
}

void CallBody::add_key(std::string_view key) {
    arguments_ += has_arguments_ ? ",\"" : "{\"";
    for (const char c : key) append_json_escaped(arguments_, c);
    arguments_ += "\":";
    has_arguments_ = true;
}

void CallBody::end_call() {
    if (!is_begun_) begin_call(*name_, {});
    if (!has_arguments_) arguments_ = "{}";
    pieces_.add_arguments(std::exchange(arguments_, {}), std::exchange(written_, {}));
    pieces_.end_call({});
    is_begun_ = false;
    has_call_ = true;
    has_calls_ = true;
    has_arguments_ = false;
    name_.reset();
}

void CallBody::break_call() {
    pieces_.add_arguments(std::exchange(arguments_, {}), std::exchange(written_, {}));
    pieces_.break_call({});
    is_begun_ = false;
}

std::string CallBody::take_opening() { return std::exchange(opening_, {}); }
std::string CallBody::take_written() { return std::exchange(written_, {}); }

void CallBody::flush() {
    if (is_begun_) pieces_.add_arguments(std::exchange(arguments_, {}), {});
}

TurnPieces CallBody::take_pieces() {
    flush();
    return std::exchange(pieces_, {});
}

}  // namespace pitstop::http
