#include "http_proc/format/tagged_call_reader.h"

#include "http_proc/format/json_call_readers.h"

#include <string_view>
#include <utility>

namespace pitstop::http {

CallStep TaggedCallReader::read(char c, CallBody& body) {
    switch (place_) {
        case Place::kBetween: {
            const CallStep step = section_.read(c, row_->name_open, row_->close, body);
            if (step != CallStep::kCall) return step;
            token_.clear();
            place_ = Place::kName;
            return CallStep::kMore;
        }
        case Place::kName:
            return read_name(c, body);
        case Place::kNextKey:
            return read_next_key(c, body);
        case Place::kKey:
            return read_key(c, body);
        case Place::kValueOpen: {
            const CallStep step = value_open_.read(c, row_->value_open, CallStep::kCall);
            if (step != CallStep::kCall) return step;
            begin_parameter(body);
            return CallStep::kMore;
        }
        case Place::kValue:
            return read_value(c, body);
        case Place::kOptionalEnd:
            break;
    }
    return end_.read(c, row_->close, body);
}

// `name_close` ends a name. Without `name_close`, the first parameter or the end of the call ends
// the name.
CallStep TaggedCallReader::read_name(char c, CallBody& body) {
    token_ += c;
    const auto ends_with = [&](std::string_view marker) {
        if (!token_.ends_with(marker)) return false;
        token_.resize(token_.size() - marker.size());
        return true;
    };
    if (!row_->name_close.empty() && ends_with(row_->name_close)) {
        place_ = Place::kNextKey;
        return begin_call(body) ? CallStep::kMore : CallStep::kBroken;
    }
    if (row_->name_close.empty() && ends_with(row_->key_open)) {
        if (!begin_call(body)) return CallStep::kBroken;
        token_.clear();
        place_ = Place::kKey;
        return CallStep::kMore;
    }
    if (row_->name_close.empty() && ends_with(row_->close))
        return begin_call(body) ? CallStep::kBody : CallStep::kBroken;
    const bool may_end = row_->name_close.empty()
                             ? may_be_call_name_before(token_, row_->key_open) ||
                                   may_be_call_name_before(token_, row_->close)
                             : may_be_call_name_before(token_, row_->name_close);
    return may_end && token_.size() <= kCallNameBytesMax ? CallStep::kMore : CallStep::kBroken;
}

// Begins the call that `token_` names. Returns false if `token_` is no valid name.
bool TaggedCallReader::begin_call(CallBody& body) const {
    auto name = call_name_of(*row_, token_);
    if (!name) return false;
    body.begin_call(std::move(name->first), std::move(name->second));
    return true;
}

// Reads the text between parameters, up to the next parameter or the end of the call.
CallStep TaggedCallReader::read_next_key(char c, CallBody& body) {
    const std::string_view end = row_->call_close.empty() ? row_->close : row_->call_close;
    if (marker_.empty() && is_call_space(c)) return CallStep::kMore;
    marker_ += c;
    if (marker_ == row_->key_open) {
        marker_.clear();
        token_.clear();
        place_ = Place::kKey;
        return CallStep::kMore;
    }
    if (marker_ == end) {
        marker_.clear();
        if (body.has_arguments()) body.arguments() += '}';
        if (row_->call_close.empty()) return CallStep::kBody;
        place_ = needs_no_close_ ? Place::kOptionalEnd : Place::kBetween;
        return CallStep::kCall;
    }
    const bool may_follow = row_->key_open.starts_with(marker_) || end.starts_with(marker_);
    return may_follow ? CallStep::kMore : CallStep::kBroken;
}

CallStep TaggedCallReader::read_key(char c, CallBody& body) {
    token_ += c;
    if (token_.size() > kCallNameBytesMax) return CallStep::kBroken;
    if (!token_.ends_with(row_->key_close)) return CallStep::kMore;
    token_.resize(token_.size() - row_->key_close.size());
    key_ = without_call_space(token_);
    if (key_.empty()) return CallStep::kBroken;
    place_ = Place::kValueOpen;
    if (row_->value_open.empty()) begin_parameter(body);
    return CallStep::kMore;
}

// Writes `key_` as the next member of the arguments.
void TaggedCallReader::begin_parameter(CallBody& body) {
    body.add_key(key_);
    value_ = TaggedValue(*row_, schemas_ ? schemas_->types_of(*body.name(), key_) : nullptr);
    if (value_.is_text()) body.arguments() += '"';
    place_ = Place::kValue;
}

CallStep TaggedCallReader::read_value(char c, CallBody& body) {
    const TaggedValue::Status status = value_.read(c, body.arguments());
    if (status == TaggedValue::Status::kMore) return CallStep::kMore;
    place_ = Place::kNextKey;
    if (status == TaggedValue::Status::kDone) return CallStep::kMore;
    body.set_num_unread(value_.num_after());
    return CallStep::kReread;
}

bool TaggedCallReader::is_whole(const CallBody& body) const {
    if (place_ == Place::kOptionalEnd) return true;
    return place_ == Place::kBetween && body.has_call() && is_all_call_space(body.written());
}

bool TaggedCallReader::ends_earlier(CallBody& body) {
    if (place_ != Place::kValue) return false;
    if (value_.finish(body.arguments()) == TaggedValue::Status::kMore) return false;
    place_ = Place::kNextKey;
    body.set_num_unread(value_.num_after());
    return true;
}

}  // namespace pitstop::http
