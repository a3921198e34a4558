#include "http_proc/format/versions.h"

#include "messages/chunks.h"

#include <utility>

namespace pitstop::http {

const std::string& version_name(const std::string& label) {
    static const std::string kDefault = "default";
    return label.empty() ? kDefault : label;
}

void append_spans(std::vector<messages::Span>& spans, std::vector<messages::Span> next) {
    messages::OutputChunk whole;
    whole.spans = std::move(spans);
    messages::OutputChunk more;
    more.spans = std::move(next);
    messages::append_chunk(whole, std::move(more));
    spans = std::move(whole.spans);
}

void write_weight_versions(JsonWriter& json, std::span<const messages::Span> spans) {
    json.begin_array();
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < spans.size();) {
        std::int64_t end = begin;
        std::size_t next = i;
        for (; next < spans.size() && spans[next].label == spans[i].label; ++next)
            end += spans[next].tokens;
        json.begin_object().key("version").string(version_name(spans[i].label));
        json.key("start").integer(begin).key("end").integer(end).end_object();
        begin = end;
        i = next;
    }
    json.end_array();
}

void write_version_spans(JsonWriter& json, std::span<const messages::Span> spans) {
    json.begin_array();
    std::int64_t begin = 0;
    for (const messages::Span& span : spans) {
        json.begin_object().key("version").string(version_name(span.label));
        json.key("epoch").integer(raw(span.epoch)).key("digest").string(span.digest);
        json.key("start").integer(begin).key("end").integer(begin + span.tokens);
        json.key("kv_min_epoch").integer(raw(span.kv_min_epoch));
        json.key("kv_max_epoch").integer(raw(span.kv_max_epoch)).end_object();
        begin += span.tokens;
    }
    json.end_array();
}

void write_version_members(JsonWriter& json, std::span<const messages::Span> spans) {
    json.key("weight_version").string(version_name(spans.empty() ? "" : spans.back().label));
    json.key("weight_versions");
    write_weight_versions(json, spans);
    json.key("weight_version_spans");
    write_version_spans(json, spans);
}

}  // namespace pitstop::http
