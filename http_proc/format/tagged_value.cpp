#include "http_proc/format/tagged_value.h"

#include "http_proc/format/call_text.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::http {
namespace {

using Language = ValueReader::Language;

std::string json_string_of(std::string_view text) {
    std::string json = "\"";
    for (const char c : text) append_json_escaped(json, c);
    return json + '"';
}

}  // namespace

TaggedValue::TaggedValue(const ToolFormatRow& row, const std::vector<std::string>* types)
    : close_(row.value_close),
      has_lines_(row.value_has_lines),
      types_(types),
      skips_line_end_(row.value_has_lines) {
    if (types == nullptr) {
        if (row.untyped == ToolFormatRow::Untyped::kJsonOrText) typing_ = Typing::kJson;
        return;
    }
    const auto num_texts = std::ranges::count(*types, "string");
    if (num_texts == std::ssize(*types)) return;
    typing_ = num_texts == 0 ? Typing::kJson : Typing::kEither;
}

TaggedValue::Status TaggedValue::read(char c, std::string& json) {
    if (std::exchange(skips_line_end_, false) && c == '\n') return Status::kMore;
    if (is_text()) return read_text(c, json);
    const bool was_open = nesting_ == Nesting::kOpen;
    follow(c);
    if (was_open && nesting_ == Nesting::kNone && first_end_) return end_at_first_tag(json);
    token_ += c;
    if (!token_.ends_with(close_)) return Status::kMore;
    if (nesting_ == Nesting::kOpen) {
        if (!first_end_) first_end_ = token_.size();
        return Status::kMore;
    }
    write(json);
    return Status::kDone;
}

TaggedValue::Status TaggedValue::finish(std::string& json) {
    return first_end_ ? end_at_first_tag(json) : Status::kMore;
}

// Tracks the nesting of a value that may be an object or a list.
void TaggedValue::follow(char c) {
    if (nesting_ == Nesting::kUnknown) {
        if (is_call_space(c)) return;
        nesting_ = c == '{' || c == '[' ? Nesting::kOpen : Nesting::kNone;
        if (nesting_ == Nesting::kOpen) reader_.emplace(Language::kJson);
    }
    if (nesting_ != Nesting::kOpen) return;
    std::string unused;
    const ValueReader::Status status = reader_->read(c, unused);
    if (status == ValueReader::Status::kMore) return;
    nesting_ = Nesting::kNone;
    reader_.reset();
    // The value is complete JSON, so tags inside it belong to its strings.
    if (status == ValueReader::Status::kDone) first_end_.reset();
}

TaggedValue::Status TaggedValue::end_at_first_tag(std::string& json) {
    num_after_ = token_.size() - *first_end_;
    token_.resize(*first_end_);
    first_end_.reset();
    write(json);
    return Status::kDoneBefore;
}

// Withholds the possible start of the value's end.
TaggedValue::Status TaggedValue::read_text(char c, std::string& json) {
    marker_ += c;
    const auto may_end = [&](std::string_view text) {
        if (close_.starts_with(text)) return true;
        return has_lines_ && text.starts_with('\n') && close_.starts_with(text.substr(1));
    };
    std::size_t num_clear = 0;
    while (!may_end(std::string_view(marker_).substr(num_clear))) ++num_clear;
    for (std::size_t i = 0; i < num_clear; ++i) append_json_escaped(json, marker_[i]);
    marker_.erase(0, num_clear);
    if (!marker_.ends_with(close_)) return Status::kMore;
    json += '"';
    return Status::kDone;
}

// Decides the type of a value that may be a text or have another type: returns false if the value
// is JSON of another allowed type. REQUIRES: Typing::kEither.
bool TaggedValue::is_text_of_either() const {
    const auto json = json_of_value(token_, Language::kJson);
    if (!json) return true;
    const auto allows = [&](std::string_view type) {
        return std::ranges::count(*types_, type) > 0;
    };
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

// Writes `token_` without the closing tag at its end.
void TaggedValue::write(std::string& json) {
    token_.resize(token_.size() - close_.size());
    if (has_lines_ && token_.ends_with('\n')) token_.pop_back();
    std::optional<std::string> value;
    if (typing_ == Typing::kJson || !is_text_of_either()) {
        value = json_of_value(token_, Language::kJson);
        if (!value) value = json_of_value(token_, Language::kPython);
    }
    json += value ? *value : json_string_of(token_);
}

}  // namespace pitstop::http
