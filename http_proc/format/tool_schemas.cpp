#include "http_proc/format/tool_schemas.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr int kSchemasNestedMax = 4;  // nested levels of anyOf and $ref

template <class AnyJson>
const AnyJson* schema_member(const AnyJson& object, const char* name) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
}

template <class AnyJson>
std::string type_name_of(const AnyJson& value) {
    if (value.is_string()) return "string";
    if (value.is_boolean()) return "boolean";
    if (value.is_number()) return "number";
    if (value.is_null()) return "null";
    return value.is_array() ? "array" : "object";
}

// Returns the value that a reference such as "#/a/b" names; null if there is none.
template <class AnyJson>
const AnyJson* referred(const AnyJson& root, const AnyJson& reference) {
    if (!reference.is_string()) return nullptr;
    std::string_view rest = reference.template get_ref<const std::string&>();
    if (!rest.starts_with('#')) return nullptr;
    rest.remove_prefix(1);
    const AnyJson* at = &root;
    while (at != nullptr && rest.starts_with('/')) {
        rest.remove_prefix(1);
        const std::string_view name = rest.substr(0, rest.find('/'));
        at = schema_member(*at, std::string(name).c_str());
        rest.remove_prefix(name.size());
    }
    return at;
}

// Reads the types of values from schemas. `num_left` limits how many schemas it reads.
template <class AnyJson>
class SchemaTypes {
  public:
    explicit SchemaTypes(int& num_left) : num_left_(num_left) {}

    // `root` has the definitions to which a schema may refer.
    std::vector<std::string> of(const AnyJson& root, const AnyJson& schema) {
        std::vector<std::string> types;
        add(root, schema, 0, types);
        if (num_left_ <= 0) types.clear();
        return types;
    }

  private:
    void add(
        const AnyJson& root, const AnyJson& schema, int num_nested, std::vector<std::string>& types
    ) {
        if (--num_left_ <= 0) return;
        if (const AnyJson* type = schema_member(schema, "type"); type != nullptr) {
            if (type->is_string()) types.push_back(type->template get<std::string>());
            if (!type->is_array()) return;
            for (const AnyJson& one : *type) {
                if (one.is_string() && --num_left_ > 0)
                    types.push_back(one.template get<std::string>());
            }
            return;
        }
        if (const AnyJson* values = schema_member(schema, "enum");
            values != nullptr && values->is_array()) {
            for (const AnyJson& value : *values) {
                if (--num_left_ > 0) types.push_back(type_name_of(value));
            }
            return;
        }
        if (const AnyJson* value = schema_member(schema, "const"); value != nullptr)
            return types.push_back(type_name_of(*value));
        if (num_nested == kSchemasNestedMax) return;
        if (const AnyJson* reference = schema_member(schema, "$ref"); reference != nullptr) {
            const AnyJson* const definition = referred(root, *reference);
            if (definition != nullptr) add(root, *definition, num_nested + 1, types);
            return;
        }
        for (const char* name : {"anyOf", "oneOf", "allOf"}) {
            const AnyJson* all = schema_member(schema, name);
            if (all == nullptr || !all->is_array()) continue;
            for (const AnyJson& one : *all) add(root, one, num_nested + 1, types);
        }
    }

    int& num_left_;
};

}  // namespace

const nlohmann::ordered_json* definition_of(
    const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema
) {
    const nlohmann::ordered_json* const reference = schema_member(schema, "$ref");
    return reference == nullptr ? nullptr : referred(root, *reference);
}

ToolSchemas::ToolSchemas(const Json& tools) {
    if (!tools.is_array()) return;
    int num_left = kSchemasMax;
    SchemaTypes<Json> reader(num_left);
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
        for (const auto& [key, value] : properties->items())
            std::ranges::copy(reader.of(*schema, value), std::back_inserter(types[key]));
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

std::vector<std::string> types_of_schema(
    const nlohmann::ordered_json& root, const nlohmann::ordered_json& schema, int& num_left
) {
    return SchemaTypes<nlohmann::ordered_json>(num_left).of(root, schema);
}

}  // namespace pitstop::http
