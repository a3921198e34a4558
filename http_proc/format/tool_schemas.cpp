#include "http_proc/format/tool_schemas.h"

#include <nlohmann/json.hpp>

#include <array>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr int kSchemasNestedMax = 4;  // levels of anyOf

const Json* schema_member(const Json& object, const char* name) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
}

std::string type_name_of(const Json& value) {
    if (value.is_string()) return "string";
    if (value.is_boolean()) return "boolean";
    if (value.is_number()) return "number";
    if (value.is_null()) return "null";
    return value.is_array() ? "array" : "object";
}

void add_schema_types(const Json& schema, int num_nested, std::vector<std::string>& types) {
    if (const Json* type = schema_member(schema, "type"); type != nullptr) {
        if (type->is_string()) types.push_back(type->get<std::string>());
        if (!type->is_array()) return;
        for (const Json& one : *type) {
            if (one.is_string()) types.push_back(one.get<std::string>());
        }
        return;
    }
    if (const Json* values = schema_member(schema, "enum");
        values != nullptr && values->is_array()) {
        for (const Json& value : *values) types.push_back(type_name_of(value));
        return;
    }
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
        const Json* all = schema_member(schema, name);
        if (all == nullptr || !all->is_array() || num_nested == kSchemasNestedMax) continue;
        for (const Json& one : *all) add_schema_types(one, num_nested + 1, types);
    }
}

}  // namespace

ToolSchemas::ToolSchemas(const Json& tools) {
    if (!tools.is_array()) return;
    for (const Json& tool : tools) {
        const Json* inner = schema_member(tool, "function");
        const Json& function = inner != nullptr ? *inner : tool;
        const Json* name = schema_member(function, "name");
        const Json* schema = schema_member(function, "parameters");
        if (schema == nullptr) schema = schema_member(function, "input_schema");
        if (name == nullptr || !name->is_string() || schema == nullptr) continue;
        const Json* properties = schema_member(*schema, "properties");
        if (properties == nullptr || !properties->is_object()) continue;
        auto& types = types_[name->get<std::string>()];
        for (const auto& [key, value] : properties->items()) add_schema_types(value, 0, types[key]);
    }
}

const std::vector<std::string>* ToolSchemas::types_of(
    const std::string& tool, const std::string& parameter
) const {
    const auto known = types_.find(tool);
    if (known == types_.end()) return nullptr;
    const auto types = known->second.find(parameter);
    if (types == known->second.end() || types->second.empty()) return nullptr;
    return &types->second;
}

}  // namespace pitstop::http
