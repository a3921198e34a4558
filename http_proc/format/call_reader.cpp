#include "http_proc/format/call_reader.h"

#include "base/check.h"

#include <utility>

namespace pitstop::http {

using Grammar = ToolFormatRow::Grammar;

CallReader::CallReader(
    const ToolFormatRow& row, std::shared_ptr<const ToolSchemas> schemas, bool by_short_open
)
    : reader_(std::in_place_type<ObjectsCallReader>) {
    switch (row.grammar) {
        case Grammar::kObject:
            reader_.emplace<ObjectCallReader>(row);
            break;
        case Grammar::kObjects:
            break;
        case Grammar::kMistral:
            reader_.emplace<MistralCallReader>();
            break;
        case Grammar::kNamedJson:
            reader_.emplace<NamedJsonCallReader>(row);
            break;
        case Grammar::kTagged:
            reader_.emplace<TaggedCallReader>(row, std::move(schemas), by_short_open);
            break;
        case Grammar::kPythonic:
            reader_.emplace<PythonCallReader>(row);
            break;
        case Grammar::kHarmony:
            CHECK(row.grammar != Grammar::kHarmony);  // HarmonyParser reads this format
    }
}

CallStep CallReader::read(char c, CallBody& body) {
    return std::visit([&](auto& reader) { return reader.read(c, body); }, reader_);
}

bool CallReader::is_whole(const CallBody& body) const {
    return std::visit([&](const auto& reader) { return reader.is_whole(body); }, reader_);
}

bool CallReader::ends_earlier(CallBody& body) {
    auto* const tagged = std::get_if<TaggedCallReader>(&reader_);
    return tagged != nullptr && tagged->ends_earlier(body);
}

}  // namespace pitstop::http
