#include "http_proc/format/json_call_readers.h"

#include <string_view>

namespace pitstop::http {
namespace {

using Status = ValueReader::Status;

constexpr std::string_view kMistralNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
constexpr std::string_view kMistralArgs = "[ARGS]";

}  // namespace

std::optional<std::pair<std::string, std::string>> call_name_of(
    const ToolFormatRow& row, std::string_view written
) {
    std::string_view name = without_call_space(written);
    std::string id;
    if (!row.name_prefix.empty()) {
        id = name;
        if (name.starts_with(row.name_prefix)) name.remove_prefix(row.name_prefix.size());
        name = name.substr(0, name.rfind(':'));
    }
    if (!is_call_name(name)) return std::nullopt;
    return std::pair(std::string(name), std::move(id));
}

CallStep CallArguments::read(char c, CallBody& body, CallStep at_end) {
    switch (value_.read(c, body.arguments())) {
        case Status::kMore:
            body.set_has_arguments();
            return CallStep::kMore;
        case Status::kDone:
            body.set_has_arguments();
            value_ = ValueReader(ValueReader::Language::kJson);
            return at_end;
        case Status::kDoneBefore:
        case Status::kBroken:
            break;
    }
    return CallStep::kBroken;
}

CallStep ObjectCallReader::read(char c, CallBody& body) {
    switch (place_) {
        case Place::kBegin:
            if (is_call_space(c)) return CallStep::kMore;
            if (c != '{') return CallStep::kBroken;
            object_.begin();
            place_ = Place::kObject;
            return CallStep::kMore;
        case Place::kObject: {
            const CallStep step = object_.read(c, body);
            if (step != CallStep::kCall) return step;
            place_ = Place::kClose;
            return CallStep::kMore;
        }
        case Place::kClose:
            break;
    }
    return marker_.read(c, row_->close, CallStep::kBody);
}

CallStep ObjectsCallReader::read(char c, CallBody& body) {
    if (is_between_) {
        const bool is_space = is_call_space(c) || (body.has_call() && (c == ';' || c == ','));
        if (is_space && body.written().size() <= kCallSpaceBytesMax) return CallStep::kMore;
        if (c != '{') return CallStep::kBroken;
        object_.begin();
        is_between_ = false;
        return CallStep::kMore;
    }
    const CallStep step = object_.read(c, body);
    if (step == CallStep::kCall) is_between_ = true;
    return step;
}

CallStep MistralCallReader::read(char c, CallBody& body) {
    switch (place_) {
        case Place::kBegin:
            if (is_call_space(c) && body.written().size() <= kCallSpaceBytesMax)
                return CallStep::kMore;
            place_ = c == '[' ? Place::kBetween : Place::kName;
            return c == '[' ? CallStep::kMore : read_name(c, body);
        case Place::kName:
            return read_name(c, body);
        case Place::kArguments:
            return read_arguments(c, body);
        case Place::kBetween:
            return read_between(c, body);
        case Place::kObject:
            break;
    }
    const CallStep step = object_.read(c, body);
    if (step == CallStep::kCall) place_ = Place::kBetween;
    return step;
}

// Reads the text after the opening bracket, or after an object.
CallStep MistralCallReader::read_between(char c, CallBody& body) {
    if (is_call_space(c) && body.written().size() <= kCallSpaceBytesMax) return CallStep::kMore;
    if (c == ',' && !has_comma_) {
        has_comma_ = true;
        return CallStep::kMore;
    }
    if (c == ']' && body.has_call() && !has_comma_) return CallStep::kBody;
    if (c != '{' || !has_comma_) return CallStep::kBroken;
    has_comma_ = false;
    object_.begin();
    place_ = Place::kObject;
    return CallStep::kMore;
}

CallStep MistralCallReader::read_name(char c, CallBody& body) {
    const bool is_of_name = kMistralNameCharacters.find(c) != std::string_view::npos;
    if (marker_.empty() && is_of_name && name_.size() < kCallNameBytesMax) {
        name_ += c;
        return CallStep::kMore;
    }
    if (name_.empty()) return CallStep::kBroken;
    const bool is_marker = !marker_.empty() || c == kMistralArgs.front();
    if (is_marker) {
        const CallStep step = marker_.read(c, kMistralArgs, CallStep::kCall);
        if (step != CallStep::kCall) return step;
    }
    body.set_name(name_);
    place_ = Place::kArguments;
    return is_marker ? CallStep::kMore : read_arguments(c, body);
}

CallStep MistralCallReader::read_arguments(char c, CallBody& body) {
    if (body.arguments().empty() && !body.is_begun() && c != '{') return CallStep::kBroken;
    const CallStep step = arguments_.read(c, body, CallStep::kBody);
    if (step != CallStep::kBroken && body.may_begin()) body.begin_call(name_, {});
    return step;
}

CallStep NamedJsonCallReader::read(char c, CallBody& body) {
    switch (place_) {
        case Place::kBetween: {
            const CallStep step = section_.read(c, row_->call_open, row_->close, body);
            if (step != CallStep::kCall) return step;
            name_.clear();
            place_ = Place::kName;
            return CallStep::kMore;
        }
        case Place::kName:
            return read_name(c);
        case Place::kArguments:
            return read_arguments(c, body);
        case Place::kEnd:
            break;
    }
    return read_end(c);
}

CallStep NamedJsonCallReader::read_name(char c) {
    name_ += c;
    if (name_.ends_with(row_->args_open)) {
        name_.resize(name_.size() - row_->args_open.size());
        place_ = Place::kArguments;
        return is_call_name(without_call_space(name_)) ? CallStep::kMore : CallStep::kBroken;
    }
    if (!may_be_call_name_before(name_, row_->args_open)) return CallStep::kBroken;
    return name_.size() <= kCallNameBytesMax ? CallStep::kMore : CallStep::kBroken;
}

CallStep NamedJsonCallReader::read_arguments(char c, CallBody& body) {
    if (!body.is_begun() && body.arguments().empty() && !is_call_space(c) && c != '{')
        return CallStep::kBroken;
    const CallStep step = arguments_.read(c, body, CallStep::kCall);
    if (step == CallStep::kBroken) return step;
    if (body.may_begin()) {
        auto name = call_name_of(*row_, name_);
        if (!name) return CallStep::kBroken;
        body.begin_call(std::move(name->first), std::move(name->second));
    }
    if (step != CallStep::kCall) return step;
    marker_.clear();
    place_ = Place::kEnd;
    return CallStep::kMore;
}

// White space may surround the marker that closes the arguments.
CallStep NamedJsonCallReader::read_end(char c) {
    if (is_call_space(c) && (marker_.empty() || marker_ == row_->args_close))
        return CallStep::kMore;
    const std::size_t at = marker_.size();
    const std::string_view first = row_->args_close;
    const char expected = at < first.size() ? first[at] : row_->call_close[at - first.size()];
    if (c != expected) return CallStep::kBroken;
    marker_ += c;
    if (marker_.size() < first.size() + row_->call_close.size()) return CallStep::kMore;
    place_ = Place::kBetween;
    return CallStep::kCall;
}

bool NamedJsonCallReader::is_whole(const CallBody& body) const {
    if (place_ == Place::kEnd) return true;
    return place_ == Place::kBetween && body.has_call() && is_all_call_space(body.written());
}

}  // namespace pitstop::http
