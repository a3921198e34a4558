#include "http_proc/format/versions.h"

#include "messages/chunks.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::http {

std::string version_name(Epoch epoch, const std::string& label) {
    return label.empty() ? fmt::format("epoch {}", raw(epoch)) : label;
}

namespace {

std::string name_of(const messages::Span& span) { return version_name(span.epoch, span.label); }

// Returns whether two neighbours are one run. Without labels, different epochs are different
// weights. Names are not compared, because a label may look like the name of another epoch.
bool is_same_version(const messages::Span& one, const messages::Span& next) {
    return one.label == next.label && (!one.label.empty() || one.epoch == next.epoch);
}

}  // namespace

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
        for (; next < spans.size() && is_same_version(spans[i], spans[next]); ++next)
            end += spans[next].tokens;
        json.begin_object().key("version").string(name_of(spans[i]));
        json.key("start").integer(begin).key("end").integer(end).end_object();
        begin = end;
        i = next;
    }
    json.end_array();
}

void write_adapter_version(JsonWriter& json, const messages::AdapterVersion& adapter) {
    json.begin_object().key("name").string(adapter.name);
    json.key("version").integer(raw(adapter.version));
    json.key("label").string(adapter.label).key("digest").string(adapter.digest).end_object();
}

void write_version_spans(JsonWriter& json, std::span<const messages::Span> spans) {
    json.begin_array();
    std::int64_t begin = 0;
    for (const messages::Span& span : spans) {
        json.begin_object().key("version").string(name_of(span));
        json.key("epoch").integer(raw(span.epoch)).key("digest").string(span.digest);
        json.key("start").integer(begin).key("end").integer(begin + span.tokens);
        json.key("kv_min_epoch").integer(raw(span.kv_min_epoch));
        json.key("kv_max_epoch").integer(raw(span.kv_max_epoch));
        if (span.adapter) {
            json.key("adapter");
            write_adapter_version(json, *span.adapter);
            json.key("kv_min_adapter").integer(raw(span.kv_min_adapter.value_or(Epoch{})));
        }
        json.end_object();
        begin += span.tokens;
    }
    json.end_array();
}

void write_version_members(JsonWriter& json, std::span<const messages::Span> spans) {
    json.key("weight_version").string(name_of(spans.empty() ? messages::Span{} : spans.back()));
    json.key("weight_versions");
    write_weight_versions(json, spans);
    json.key("weight_version_spans");
    write_version_spans(json, spans);
}

}  // namespace pitstop::http
