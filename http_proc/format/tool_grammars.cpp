// The grammars of calls whose arguments are JSON: what ToolCallParser reads after a marker.
#include "http_proc/format/call_text.h"
#include "http_proc/format/tool_calls.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace pitstop::http {
namespace {

using Grammar = ToolFormatRow::Grammar;
using Language = ValueReader::Language;
using Status = ValueReader::Status;

constexpr std::string_view kMistralNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
constexpr std::string_view kMistralArgs = "[ARGS]";

// REQUIRES: a JSON string, as ValueReader writes it.
std::string unquoted(const std::string& json) {
    return nlohmann::json::parse(json).get<std::string>();
}

}  // namespace

// Reads the next byte of a marker; `marker_` is the part that was read. Skips white space before
// it.
ToolCallParser::Step ToolCallParser::match(char c, std::string_view marker, Step at_end) {
    if (marker_.empty() && is_call_space(c)) return Step::kMore;
    if (marker[marker_.size()] != c) return Step::kBroken;
    marker_ += c;
    if (marker_.size() < marker.size()) return Step::kMore;
    marker_.clear();
    return at_end;
}

// Reads arguments that are an object, into `arguments_`. Reports none of them before the text is
// known to be an object.
ToolCallParser::Step ToolCallParser::read_arguments(char c, Step at_end) {
    switch (value_->read(c, arguments_)) {
        case Status::kMore:
            has_arguments_ = true;
            return Step::kMore;
        case Status::kDone:
            has_arguments_ = true;
            value_.reset();
            return at_end;
        case Status::kDoneBefore:
        case Status::kBroken:
            break;
    }
    return Step::kBroken;
}

// Reads {"name": N, "arguments": {...}}, in which `parameters` means the same, members have any
// order, and others are left out. kCall: the object's last byte.
ToolCallParser::Step ToolCallParser::read_object(char c) {
    switch (phase_) {
        case Phase::kObject:
            if (is_call_space(c)) return Step::kMore;
            if (c == '}' && !has_comma_) return name_ ? Step::kCall : Step::kBroken;
            if (c != '"') return Step::kBroken;
            phase_ = Phase::kObjectKey;
            value_.emplace(Language::kJson);
            token_.clear();
            static_cast<void>(value_->read(c, token_));
            return Step::kMore;
        case Phase::kObjectKey: {
            const Status status = value_->read(c, token_);
            // A string's end in a value of its own is the value's.
            if (status == Status::kBroken) return Step::kBroken;
            if (status == Status::kDone) {
                key_ = unquoted(token_);
                phase_ = Phase::kObjectColon;
            }
            return Step::kMore;
        }
        case Phase::kObjectColon:
            if (is_call_space(c)) return Step::kMore;
            if (c != ':') return Step::kBroken;
            phase_ = Phase::kObjectValue;
            value_.reset();
            token_.clear();
            return Step::kMore;
        case Phase::kObjectValue:
            return read_value(c);
        default:
            break;
    }
    if (is_call_space(c)) return Step::kMore;
    if (c == '}') return name_ ? Step::kCall : Step::kBroken;
    if (c != ',') return Step::kBroken;
    has_comma_ = true;
    phase_ = Phase::kObject;
    return Step::kMore;
}

// Reads a member's value in an object.
ToolCallParser::Step ToolCallParser::read_value(char c) {
    const bool is_arguments = (key_ == "arguments" || key_ == "parameters") && !has_arguments_;
    if (!value_) {
        if (is_call_space(c)) return Step::kMore;
        value_.emplace(Language::kJson, /*depth=*/is_list_ ? 2 : 1);
        streams_value_ = is_arguments && c == '{';
        if (streams_value_) arguments_.clear();
    }
    std::string& json = streams_value_ ? arguments_ : token_;
    const Status status = value_->read(c, json);
    if (status == Status::kBroken) return Step::kBroken;
    if (streams_value_ && name_ && !is_begun_ && arguments_.size() >= 2) begin_call(*name_, {});
    if (status == Status::kMore) return Step::kMore;
    value_.reset();
    phase_ = Phase::kObjectAfter;
    if (streams_value_) {
        has_arguments_ = true;
        streams_value_ = false;
    } else if (is_arguments) {
        if (end_of_member() == Step::kBroken) return Step::kBroken;
    } else if (key_ == "name" && !is_begun_) {
        if (!token_.starts_with('"')) return Step::kBroken;
        name_ = unquoted(token_);
        if (has_arguments_) begin_call(*name_, {});
    }
    return status == Status::kDone ? Step::kMore : read_object(c);
}

// Takes arguments that are no object: none, or an object that was written as a string.
ToolCallParser::Step ToolCallParser::end_of_member() {
    if (token_ == "null") return Step::kMore;
    if (!token_.starts_with('"')) return Step::kBroken;
    const auto inner = json_of_value(unquoted(token_), Language::kJson);
    if (!inner || !inner->starts_with('{')) return Step::kBroken;
    arguments_ = *inner;
    has_arguments_ = true;
    if (name_) begin_call(*name_, {});
    return Step::kMore;
}

ToolCallParser::Step ToolCallParser::step_object(char c) {
    if (phase_ == Phase::kBegin) {
        if (is_call_space(c)) return Step::kMore;
        if (c != '{') return Step::kBroken;
        phase_ = Phase::kObject;
        has_comma_ = false;
        return Step::kMore;
    }
    if (phase_ == Phase::kEnd) return match(c, row_->close, Step::kBody);
    const Step step = read_object(c);
    if (step != Step::kCall) return step;
    phase_ = Phase::kEnd;
    return Step::kMore;
}

ToolCallParser::Step ToolCallParser::step_objects(char c) {
    if (phase_ == Phase::kBegin || phase_ == Phase::kOptionalEnd) {
        const bool is_between = is_call_space(c) || (has_call_ && (c == ';' || c == ','));
        if (is_between && written_.size() <= kCallSpaceBytesMax) return Step::kMore;
        if (c != '{') return Step::kBroken;
        phase_ = Phase::kObject;
        has_comma_ = false;
        return Step::kMore;
    }
    const Step step = read_object(c);
    if (step == Step::kCall) phase_ = Phase::kOptionalEnd;
    return step;
}

ToolCallParser::Step ToolCallParser::step_mistral(char c) {
    switch (phase_) {
        case Phase::kBegin:
            if (is_call_space(c) && written_.size() <= kCallSpaceBytesMax) return Step::kMore;
            if (c == '[') {
                is_list_ = true;
                phase_ = Phase::kBetween;
                has_comma_ = true;
                return Step::kMore;
            }
            phase_ = Phase::kName;
            [[fallthrough]];
        case Phase::kName: {
            const bool is_of_name = kMistralNameCharacters.find(c) != std::string_view::npos;
            if (marker_.empty() && is_of_name && token_.size() < kCallNameBytesMax) {
                token_ += c;
                return Step::kMore;
            }
            if (token_.empty()) return Step::kBroken;
            if (!marker_.empty() || c == kMistralArgs.front()) {
                const Step step = match(c, kMistralArgs, Step::kCall);
                if (step != Step::kCall) return step;
                phase_ = Phase::kArguments;
                name_ = token_;
                value_.emplace(Language::kJson);
                return Step::kMore;
            }
            name_ = token_;
            value_.emplace(Language::kJson);
            phase_ = Phase::kArguments;
            [[fallthrough]];
        }
        case Phase::kArguments: {
            if (arguments_.empty() && !is_begun_ && c != '{') return Step::kBroken;
            const Step step = read_arguments(c, Step::kBody);
            if (step != Step::kBroken && !is_begun_ && arguments_.size() >= 2)
                begin_call(*name_, {});
            return step;
        }
        case Phase::kBetween:
            if (is_call_space(c) && written_.size() <= kCallSpaceBytesMax) return Step::kMore;
            if (c == ',' && !has_comma_) {
                has_comma_ = true;
                return Step::kMore;
            }
            if (c == ']' && has_call_ && !has_comma_) return Step::kBody;
            if (c != '{' || !has_comma_) return Step::kBroken;
            phase_ = Phase::kObject;
            has_comma_ = false;
            return Step::kMore;
        default:
            break;
    }
    const Step step = read_object(c);
    if (step != Step::kCall) return step;
    phase_ = Phase::kBetween;
    has_comma_ = false;
    return Step::kCall;
}

// After the last call: a closing marker, or text.
ToolCallParser::Step ToolCallParser::read_optional_end(char c) {
    if (marker_.empty() && is_call_space(c) && written_.size() <= kCallSpaceBytesMax)
        return Step::kMore;
    if (row_->close[marker_.size()] != c) return Step::kBroken;
    marker_ += c;
    return marker_ == row_->close ? Step::kBody : Step::kMore;
}

// Between calls of a section: the next one begins, or the section ends.
ToolCallParser::Step ToolCallParser::read_between(char c) {
    const std::string_view next =
        row_->grammar == Grammar::kTagged ? row_->name_open : row_->call_open;
    if (marker_.empty() && is_call_space(c)) {
        return written_.size() <= kCallSpaceBytesMax ? Step::kMore : Step::kBroken;
    }
    marker_ += c;
    if (marker_ == next) {
        marker_.clear();
        token_.clear();
        phase_ = Phase::kName;
        return Step::kMore;
    }
    if (marker_ == row_->close) return has_call_ ? Step::kBody : Step::kBroken;
    const bool may_follow = next.starts_with(marker_) || row_->close.starts_with(marker_);
    return may_follow ? Step::kMore : Step::kBroken;
}

// Takes the name in `token_`. Returns false if it is none.
bool ToolCallParser::begin_named_call() {
    const std::string_view written = without_call_space(token_);
    std::string_view name = written;
    std::string id;
    if (!row_->name_prefix.empty()) {
        id = written;
        if (name.starts_with(row_->name_prefix)) name.remove_prefix(row_->name_prefix.size());
        name = name.substr(0, name.rfind(':'));
    }
    if (!is_call_name(name)) return false;
    name_ = std::string(name);
    begin_call(*name_, std::move(id));
    return true;
}

ToolCallParser::Step ToolCallParser::step_named_json(char c) {
    switch (phase_) {
        case Phase::kBegin:
            phase_ = Phase::kBetween;
            [[fallthrough]];
        case Phase::kBetween:
            return read_between(c);
        case Phase::kName:
            token_ += c;
            if (token_.ends_with(row_->args_open)) {
                token_.resize(token_.size() - row_->args_open.size());
                phase_ = Phase::kArguments;
                value_.emplace(Language::kJson);
                return is_call_name(without_call_space(token_)) ? Step::kMore : Step::kBroken;
            }
            if (!may_be_call_name_before(token_, row_->args_open)) return Step::kBroken;
            return token_.size() <= kCallNameBytesMax ? Step::kMore : Step::kBroken;
        case Phase::kArguments: {
            if (!is_begun_ && arguments_.empty() && !is_call_space(c) && c != '{')
                return Step::kBroken;
            const Step step = read_arguments(c, Step::kCall);
            if (step == Step::kBroken) return step;
            if (!is_begun_ && arguments_.size() >= 2 && !begin_named_call()) return Step::kBroken;
            if (step != Step::kCall) return step;
            phase_ = Phase::kAfterArguments;
            return Step::kMore;
        }
        default:
            break;
    }
    // White space may be on either side of what closes the arguments.
    if (is_call_space(c) && (marker_.empty() || marker_ == row_->args_close)) return Step::kMore;
    const std::size_t at = marker_.size();
    const std::string_view first = row_->args_close;
    const char expected = at < first.size() ? first[at] : row_->call_close[at - first.size()];
    if (c != expected) return Step::kBroken;
    marker_ += c;
    if (marker_.size() < first.size() + row_->call_close.size()) return Step::kMore;
    phase_ = Phase::kBetween;
    return Step::kCall;
}

}  // namespace pitstop::http
