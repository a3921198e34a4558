#include "http_proc/format/python_call_reader.h"

#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using Language = ValueReader::Language;
using Status = ValueReader::Status;

bool is_identifier(std::string_view text) {
    return is_call_name(text) && text.find_first_of("-:/") == std::string_view::npos &&
           !(text.front() >= '0' && text.front() <= '9');
}

}  // namespace

CallStep PythonCallReader::read(char c, CallBody& body) {
    switch (place_) {
        case Place::kBegin:
            if (is_call_space(c) && body.written().size() <= kCallSpaceBytesMax)
                return CallStep::kMore;
            if (c != '[') return CallStep::kBroken;
            place_ = Place::kBetween;
            return CallStep::kMore;
        case Place::kBetween:
            return read_between(c, body);
        case Place::kName:
            return read_name(c, body);
        case Place::kNextKey:
            return read_next_key(c, body);
        case Place::kKey:
            return read_key(c, body);
        case Place::kValue:
            return read_value(c, body);
        case Place::kOptionalEnd:
            break;
    }
    return end_.read(c, row_->close, body);
}

CallStep PythonCallReader::read_between(char c, CallBody& body) {
    if (is_call_space(c) && body.written().size() <= kCallSpaceBytesMax) return CallStep::kMore;
    if (c == ',' && !has_comma_) {
        has_comma_ = true;
        return CallStep::kMore;
    }
    if (c == ']' && body.has_call()) {
        place_ = Place::kOptionalEnd;
        return CallStep::kEndOfCalls;
    }
    if (!has_comma_) return CallStep::kBroken;
    token_.clear();
    place_ = Place::kName;
    return read_name(c, body);
}

CallStep PythonCallReader::read_name(char c, CallBody& body) {
    if (c != '(') {
        token_ += c;
        const bool is_name = is_identifier(token_) && token_.size() <= kCallNameBytesMax;
        return is_name ? CallStep::kMore : CallStep::kBroken;
    }
    if (!is_identifier(token_)) return CallStep::kBroken;
    body.set_name(std::exchange(token_, {}));
    place_ = Place::kNextKey;
    has_comma_ = true;
    return CallStep::kMore;
}

// Called after a call's opening bracket, or after an argument: reads up to the next key or the end.
CallStep PythonCallReader::read_next_key(char c, CallBody& body) {
    if (is_call_space(c)) return CallStep::kMore;
    if (c == ')') {
        if (body.has_arguments()) body.arguments() += '}';
        place_ = Place::kBetween;
        has_comma_ = false;
        return CallStep::kCall;
    }
    if (c == ',' && !has_comma_) {
        has_comma_ = true;
        return CallStep::kMore;
    }
    if (!has_comma_) return CallStep::kBroken;
    token_.clear();
    place_ = Place::kKey;
    return read_key(c, body);
}

CallStep PythonCallReader::read_key(char c, CallBody& body) {
    if (c != '=') {
        token_ += c;
        const bool is_key =
            is_identifier(without_call_space(token_)) && token_.size() <= kCallNameBytesMax;
        return is_key ? CallStep::kMore : CallStep::kBroken;
    }
    const std::string_view key = without_call_space(token_);
    if (key.empty()) return CallStep::kBroken;
    if (!body.is_begun()) body.begin_call(*body.name(), {});
    body.add_key(key);
    value_.emplace(Language::kPython, /*depth=*/1);
    place_ = Place::kValue;
    return CallStep::kMore;
}

CallStep PythonCallReader::read_value(char c, CallBody& body) {
    const Status status = value_->read(c, body.arguments());
    if (status == Status::kMore) return CallStep::kMore;
    if (status == Status::kBroken) return CallStep::kBroken;
    place_ = Place::kNextKey;
    has_comma_ = false;
    return status == Status::kDone ? CallStep::kMore : read_next_key(c, body);
}

}  // namespace pitstop::http
