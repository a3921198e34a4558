#include "messages/structural_tag.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace pitstop::messages {

nlohmann::ordered_json in_present_form(nlohmann::ordered_json tag) {
    using Json = nlohmann::ordered_json;
    if (!tag.is_object() || !tag.contains("structures") || !tag.contains("triggers")) return tag;
    Json tags = Json::array();
    for (const Json& structure : tag["structures"]) {
        if (!structure.is_object()) return tag;
        tags.push_back(
            {{"begin", structure.value("begin", Json())},
             {"content",
              {{"type", "json_schema"}, {"json_schema", structure.value("schema", Json())}}},
             {"end", structure.value("end", Json())}}
        );
    }
    return {
        {"type", "structural_tag"},
        {"format",
         {{"type", "triggered_tags"}, {"triggers", tag["triggers"]}, {"tags", std::move(tags)}}}};
}

}  // namespace pitstop::messages
