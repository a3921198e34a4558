#include "http_proc/format/call_object.h"

#include "http_proc/format/call_text.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

using Language = ValueReader::Language;
using Status = ValueReader::Status;

// REQUIRES: `json` is a JSON string, as ValueReader writes one.
std::string unquoted(const std::string& json) {
    return nlohmann::json::parse(json).get<std::string>();
}

}  // namespace

void CallObject::begin() {
    place_ = Place::kFirst;
    has_comma_ = false;
    token_.clear();
    value_.reset();
}

CallStep CallObject::read(char c, CallBody& body) {
    const bool is_between = place_ != Place::kKey && place_ != Place::kValue;
    if (is_between && is_call_space(c)) return CallStep::kMore;
    switch (place_) {
        case Place::kFirst:
            if (c == '}' && !has_comma_) return body.name() ? CallStep::kCall : CallStep::kBroken;
            if (c != '"') return CallStep::kBroken;
            value_.emplace(Language::kJson);
            token_.clear();
            place_ = Place::kKey;
            return read_key(c);
        case Place::kKey:
            return read_key(c);
        case Place::kColon:
            if (c != ':') return CallStep::kBroken;
            place_ = Place::kValue;
            value_.reset();
            token_.clear();
            return CallStep::kMore;
        case Place::kValue:
            return read_value(c, body);
        case Place::kAfter:
            break;
    }
    if (c == '}') return body.name() ? CallStep::kCall : CallStep::kBroken;
    if (c != ',') return CallStep::kBroken;
    has_comma_ = true;
    place_ = Place::kFirst;
    return CallStep::kMore;
}

CallStep CallObject::read_key(char c) {
    const Status status = value_->read(c, token_);
    if (status == Status::kBroken) return CallStep::kBroken;
    if (status == Status::kDone) {
        key_ = unquoted(token_);
        place_ = Place::kColon;
    }
    return CallStep::kMore;
}

CallStep CallObject::read_value(char c, CallBody& body) {
    if (!value_) {
        if (is_call_space(c)) return CallStep::kMore;
        value_.emplace(Language::kJson, depth_);
        const bool is_named = key_ == "arguments" || key_ == "parameters";
        is_arguments_ = is_named && !body.has_arguments() && c == '{';
        if (is_arguments_) body.arguments().clear();
    }
    const Status status = value_->read(c, is_arguments_ ? body.arguments() : token_);
    if (status == Status::kBroken) return CallStep::kBroken;
    if (is_arguments_ && body.name() && body.may_begin()) body.begin_call(*body.name(), {});
    if (status == Status::kMore) return CallStep::kMore;
    value_.reset();
    place_ = Place::kAfter;
    if (is_arguments_) {
        body.set_has_arguments();
    } else if (end_of_value(body) == CallStep::kBroken) {
        return CallStep::kBroken;
    }
    return status == Status::kDone ? CallStep::kMore : read(c, body);
}

// Handles a complete value: a name, null arguments, or an object that was written as a string.
CallStep CallObject::end_of_value(CallBody& body) {
    if ((key_ == "arguments" || key_ == "parameters") && !body.has_arguments()) {
        if (token_ == "null") return CallStep::kMore;
        if (!token_.starts_with('"')) return CallStep::kBroken;
        const auto inner = json_of_value(unquoted(token_), Language::kJson);
        if (!inner || !inner->starts_with('{')) return CallStep::kBroken;
        body.arguments() = *inner;
        body.set_has_arguments();
        if (body.name()) body.begin_call(*body.name(), {});
    } else if (key_ == "name" && !body.is_begun()) {
        if (!token_.starts_with('"')) return CallStep::kBroken;
        body.set_name(unquoted(token_));
        if (body.has_arguments()) body.begin_call(*body.name(), {});
    }
    return CallStep::kMore;
}

}  // namespace pitstop::http
