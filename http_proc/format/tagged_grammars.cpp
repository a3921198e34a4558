// The grammars of calls whose arguments are pairs of a key and a value, between tags or in
// brackets: what ToolCallParser reads after a marker.
#include "http_proc/format/call_text.h"
#include "http_proc/format/tool_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::http {
namespace {

using Language = ValueReader::Language;
using Status = ValueReader::Status;

bool is_identifier(std::string_view text) {
    return is_call_name(text) && text.find_first_of("-:/") == std::string_view::npos &&
           !(text.front() >= '0' && text.front() <= '9');
}

std::string json_string_of(std::string_view text) {
    std::string json = "\"";
    for (const char c : text) append_json_escaped(json, c);
    return json + '"';
}

}  // namespace

// A name ends with `name_close`; or, without one, where the first parameter begins or the call
// ends.
ToolCallParser::Step ToolCallParser::read_tagged_name(char c) {
    token_ += c;
    const auto ends_with = [&](std::string_view marker) {
        if (!token_.ends_with(marker)) return false;
        token_.resize(token_.size() - marker.size());
        return true;
    };
    if (!row_->name_close.empty() && ends_with(row_->name_close)) {
        phase_ = Phase::kNextKey;
        return begin_named_call() ? Step::kMore : Step::kBroken;
    }
    if (row_->name_close.empty() && ends_with(row_->key_open)) {
        if (!begin_named_call()) return Step::kBroken;
        token_.clear();
        phase_ = Phase::kKey;
        return Step::kMore;
    }
    if (row_->name_close.empty() && ends_with(row_->close))
        return begin_named_call() ? Step::kBody : Step::kBroken;
    const bool may_end = row_->name_close.empty()
                             ? may_be_call_name_before(token_, row_->key_open) ||
                                   may_be_call_name_before(token_, row_->close)
                             : may_be_call_name_before(token_, row_->name_close);
    return may_end && token_.size() <= kCallNameBytesMax ? Step::kMore : Step::kBroken;
}

// Returns how the value of `key_` is read.
ToolCallParser::Typing ToolCallParser::typing() const {
    const std::vector<std::string>* types =
        schemas_ && name_ ? schemas_->types_of(*name_, key_) : nullptr;
    if (types == nullptr) {
        return row_->untyped == ToolFormatRow::Untyped::kText ? Typing::kText : Typing::kJson;
    }
    const auto num_texts = std::ranges::count(*types, "string");
    if (num_texts == std::ssize(*types)) return Typing::kText;
    return num_texts == 0 ? Typing::kJson : Typing::kEither;
}

// For a value that may be text or another type: it is no text only if the other allowed types fit.
// REQUIRES: Typing::kEither.
bool ToolCallParser::is_text_of_either() const {
    const auto json = json_of_value(token_, Language::kJson);
    if (!json) return true;
    const std::vector<std::string>& types = *schemas_->types_of(*name_, key_);
    const auto allows = [&](std::string_view type) { return std::ranges::count(types, type) > 0; };
    switch (json->front()) {
        case 'n':
            return !allows("null");
        case 't':
        case 'f':
            return !allows("boolean");
        case '{':
            return !allows("object");
        case '[':
            return !allows("array");
        case '"':
            return true;
        default:
            return !allows("number") && !allows("integer");
    }
}

// Writes `key_` as the next member of the arguments.
void ToolCallParser::begin_member() {
    arguments_ += is_first_key_ ? "{" : ",";
    is_first_key_ = false;
    has_arguments_ = true;
    arguments_ += json_string_of(key_) + ":";
}

void ToolCallParser::begin_parameter() {
    begin_member();
    token_.clear();
    marker_.clear();
    skips_line_end_ = row_->value_has_lines;
    streams_value_ = typing() == Typing::kText;
    if (streams_value_) arguments_ += '"';
    phase_ = Phase::kValue;
}

void ToolCallParser::end_parameter() {
    phase_ = Phase::kNextKey;
    if (streams_value_) {
        arguments_ += '"';
        return;
    }
    std::optional<std::string> json;
    if (typing() == Typing::kJson || !is_text_of_either()) {
        json = json_of_value(token_, Language::kJson);
        if (!json) json = json_of_value(token_, Language::kPython);
    }
    arguments_ += json ? *json : json_string_of(token_);
}

// Between parameters: the next one begins, or the call ends.
ToolCallParser::Step ToolCallParser::read_next_key(char c) {
    const std::string_view end = row_->call_close.empty() ? row_->close : row_->call_close;
    if (marker_.empty() && is_call_space(c)) return Step::kMore;
    marker_ += c;
    if (marker_ == row_->key_open) {
        marker_.clear();
        token_.clear();
        phase_ = Phase::kKey;
        return Step::kMore;
    }
    if (marker_ == end) {
        if (has_arguments_) arguments_ += '}';
        if (row_->call_close.empty()) return Step::kBody;
        phase_ = needs_no_close_ ? Phase::kOptionalEnd : Phase::kBetween;
        return Step::kCall;
    }
    const bool may_follow = row_->key_open.starts_with(marker_) || end.starts_with(marker_);
    return may_follow ? Step::kMore : Step::kBroken;
}

// The possible beginning of a value's end is held back.
ToolCallParser::Step ToolCallParser::read_tagged_value(char c) {
    if (std::exchange(skips_line_end_, false) && c == '\n') return Step::kMore;
    marker_ += c;
    const std::string_view close = row_->value_close;
    const auto may_end = [&](std::string_view text) {
        if (close.starts_with(text)) return true;
        return row_->value_has_lines && text.starts_with('\n') && close.starts_with(text.substr(1));
    };
    std::size_t num_clear = 0;
    while (!may_end(std::string_view(marker_).substr(num_clear))) ++num_clear;
    for (std::size_t i = 0; i < num_clear; ++i) {
        if (streams_value_) {
            append_json_escaped(arguments_, marker_[i]);
        } else {
            token_ += marker_[i];
        }
    }
    marker_.erase(0, num_clear);
    if (!marker_.ends_with(close)) return Step::kMore;
    marker_.clear();
    end_parameter();
    return Step::kMore;
}

ToolCallParser::Step ToolCallParser::step_tagged(char c) {
    switch (phase_) {
        case Phase::kBegin:
            token_.clear();
            phase_ = row_->name_open.empty() ? Phase::kName : Phase::kBetween;
            return phase_ == Phase::kName ? read_tagged_name(c) : read_between(c);
        case Phase::kBetween:
            return read_between(c);
        case Phase::kName:
            return read_tagged_name(c);
        case Phase::kNextKey:
            return read_next_key(c);
        case Phase::kKey:
            token_ += c;
            if (token_.size() > kCallNameBytesMax) return Step::kBroken;
            if (!token_.ends_with(row_->key_close)) return Step::kMore;
            token_.resize(token_.size() - row_->key_close.size());
            key_ = without_call_space(token_);
            if (key_.empty()) return Step::kBroken;
            marker_.clear();
            if (row_->value_open.empty()) {
                begin_parameter();
            } else {
                phase_ = Phase::kValueOpen;
            }
            return Step::kMore;
        case Phase::kValueOpen:
            if (match(c, row_->value_open, Step::kCall) == Step::kBroken) return Step::kBroken;
            if (marker_.empty() && !is_call_space(c)) begin_parameter();
            return Step::kMore;
        case Phase::kOptionalEnd:
            return read_optional_end(c);
        default:
            break;
    }
    return read_tagged_value(c);
}

// After a call's opening bracket, or after an argument: the next key, or the call's end.
ToolCallParser::Step ToolCallParser::read_python_key(char c) {
    if (phase_ == Phase::kNextKey) {
        if (is_call_space(c)) return Step::kMore;
        if (c == ')') {
            if (has_arguments_) arguments_ += '}';
            phase_ = Phase::kBetween;
            has_comma_ = false;
            return Step::kCall;
        }
        if (c == ',' && !has_comma_) {
            has_comma_ = true;
            return Step::kMore;
        }
        if (!has_comma_) return Step::kBroken;
        token_.clear();
        phase_ = Phase::kKey;
    }
    if (c != '=') {
        token_ += c;
        const bool is_key =
            is_identifier(without_call_space(token_)) && token_.size() <= kCallNameBytesMax;
        return is_key ? Step::kMore : Step::kBroken;
    }
    key_ = without_call_space(token_);
    if (key_.empty()) return Step::kBroken;
    if (!is_begun_) begin_call(*name_, {});
    begin_member();
    value_.emplace(Language::kPython, /*depth=*/1);
    phase_ = Phase::kValue;
    return Step::kMore;
}

ToolCallParser::Step ToolCallParser::step_python(char c) {
    switch (phase_) {
        case Phase::kBegin:
            if (is_call_space(c) && written_.size() <= kCallSpaceBytesMax) return Step::kMore;
            if (c != '[') return Step::kBroken;
            phase_ = Phase::kBetween;
            has_comma_ = true;
            return Step::kMore;
        case Phase::kBetween:
            if (is_call_space(c) && written_.size() <= kCallSpaceBytesMax) return Step::kMore;
            if (c == ',' && !has_comma_) {
                has_comma_ = true;
                return Step::kMore;
            }
            if (c == ']' && has_call_) {
                phase_ = Phase::kOptionalEnd;
                return Step::kEndOfCalls;
            }
            if (!has_comma_) return Step::kBroken;
            token_.clear();
            phase_ = Phase::kName;
            [[fallthrough]];
        case Phase::kName:
            if (c != '(') {
                token_ += c;
                return is_identifier(token_) && token_.size() <= kCallNameBytesMax ? Step::kMore
                                                                                   : Step::kBroken;
            }
            if (!is_identifier(token_)) return Step::kBroken;
            name_ = token_;
            token_.clear();
            phase_ = Phase::kNextKey;
            has_comma_ = true;
            return Step::kMore;
        case Phase::kNextKey:
        case Phase::kKey:
            return read_python_key(c);
        case Phase::kValue: {
            const Status status = value_->read(c, arguments_);
            if (status == Status::kMore) return Step::kMore;
            if (status == Status::kBroken) return Step::kBroken;
            value_.reset();
            phase_ = Phase::kNextKey;
            has_comma_ = false;
            return status == Status::kDone ? Step::kMore : step_python(c);
        }
        default:
            break;
    }
    return read_optional_end(c);
}

}  // namespace pitstop::http
