#include "tokenizer_proc/session_calls.h"

namespace pitstop::tokenizer {

void SessionCalls::count(Names names) {
    if (names != Names::kSession) ++num_nameless_;
    if (names == Names::kNothing) ++num_unnamed_;
}

bool SessionCalls::name(const std::string& label) {
    if (label.empty() || label == called_label_) return false;
    called_label_ = label;
    return true;
}

void SessionCalls::label_bucket(std::string label) {
    if (!label.empty()) called_label_ = bucket_label_ = std::move(label);
}

Error SessionCalls::must_be_named(std::uint64_t number) const {
    return make_error(
        ErrorCode::kFailedPrecondition,
        "session {} took over from {}, whose calls might still arrive; so calls that name no "
        "session are refused. Name session {} in each call",
        number,
        took_over_,
        number
    );
}

Error SessionCalls::mixture(const std::string& label, std::string_view calls) const {
    return make_error(
        ErrorCode::kAborted,
        "a call for the version with label '{}' arrived among {} for the version with label '{}'; "
        "none of them takes effect",
        label,
        calls,
        called_label_
    );
}

Error SessionCalls::stranger(const std::string& label, std::string_view name) const {
    return make_error(
        ErrorCode::kFailedPrecondition,
        "a call for the version with label '{}' names no session, but {} is open for the version "
        "with label '{}'; if the call is a part of that session, name the session",
        label,
        name,
        called_label_
    );
}

}  // namespace pitstop::tokenizer
