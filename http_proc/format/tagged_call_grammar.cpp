#include "http_proc/format/tagged_call_grammar.h"

#include "http_proc/format/tool_schemas.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kValueEnd = "</parameter>";

Error unserved(std::string_view what) {
    return make_error(ErrorCode::kInvalidArgument, "{}", what);
}

// Reads the schema of one parameter.
class ParameterForm {
  public:
    ParameterForm(const OrderedJson& root, std::string_view name) : root_(root), name_(name) {}

    // Returns the form of its value. `among_others`: a text must not look like another value.
    Result<OrderedJson> value_of(const OrderedJson& schema, bool among_others = false) const {
        if (schema.is_boolean() || schema.empty()) return text(among_others);
        const std::vector<std::string> types = types_of_schema(root_, schema);
        if (types.empty()) {
            return unserved(
                fmt::format("parameter '{}' has no type that its text could show", name_)
            );
        }
        const bool has_text = std::ranges::count(types, "string") > 0;
        if (!has_text) return json(schema);
        const bool has_others = among_others || std::ranges::any_of(types, [](const auto& type) {
                                    return type != "string" && type != "null" && type != "boolean";
                                });
        if (const OrderedJson* all = alternatives_of(schema)) {
            OrderedJson forms = OrderedJson::array();
            for (const OrderedJson& one : *all) {
                ASSIGN_OR_RETURN(OrderedJson form, value_of(one, has_others));
                forms.push_back(std::move(form));
            }
            return OrderedJson{{"type", "or"}, {"elements", std::move(forms)}};
        }
        if (schema.contains("type") && schema["type"].is_array())
            return value_of_types(schema, has_others);
        if (const OrderedJson* definition = definition_of(root_, schema);
            definition != nullptr && schema.size() == 1 && !definition->contains("$ref"))
            return value_of(*definition, among_others);
        if (types.size() > 1 && !schema.contains("enum"))
            return unserved(fmt::format("parameter '{}' has texts among other values", name_));
        return text_of(schema, among_others);
    }

  private:
    static bool is_length(const OrderedJson& value) {
        return value.is_number_integer() && value.get<std::int64_t>() >= 0;
    }

    static const OrderedJson* alternatives_of(const OrderedJson& schema) {
        for (const char* name : {"anyOf", "oneOf"}) {
            const auto found = schema.find(name);
            if (found != schema.end() && found->is_array() && !found->empty()) return &*found;
        }
        return nullptr;
    }

    [[nodiscard]] Result<OrderedJson> value_of_types(const OrderedJson& schema, bool has_others)
        const {
        OrderedJson forms = OrderedJson::array();
        for (const OrderedJson& type : schema["type"]) {
            OrderedJson one = schema;
            one["type"] = type;
            ASSIGN_OR_RETURN(OrderedJson form, value_of(one, has_others));
            forms.push_back(std::move(form));
        }
        return OrderedJson{{"type", "or"}, {"elements", std::move(forms)}};
    }

    static OrderedJson text(bool among_others) {
        if (among_others) return {{"type", "regex"}, {"pattern", "[A-Za-z_][^<]*"}};
        return {{"type", "any_text"}, {"excludes", OrderedJson::array({std::string(kValueEnd)})}};
    }

    // JSON, which finds its definitions in the schema of all arguments.
    [[nodiscard]] OrderedJson json(OrderedJson schema) const {
        for (const char* name : {"$defs", "definitions"})
            if (root_.contains(name) && !schema.contains(name)) schema[name] = root_[name];
        return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
    }

    [[nodiscard]] Result<OrderedJson> text_of(const OrderedJson& schema, bool among_others) const {
        if (schema.contains("const"))
            return OrderedJson{{"type", "const_string"}, {"value", schema["const"]}};
        if (schema.contains("enum")) {
            OrderedJson values = OrderedJson::array();
            for (const OrderedJson& value : schema["enum"])
                values.push_back(
                    {{"type", "const_string"},
                     {"value", value.is_string() ? value : OrderedJson(value.dump())}}
                );
            return OrderedJson{{"type", "or"}, {"elements", std::move(values)}};
        }
        for (const char* name : {"pattern", "format", "$ref", "allOf"}) {
            if (schema.contains(name)) {
                return unserved(fmt::format(
                    "parameter '{}' is a text, for which {} is not served here", name_, name
                ));
            }
        }
        const bool is_bounded = schema.contains("minLength") || schema.contains("maxLength");
        if (!is_bounded) return text(among_others);
        if (among_others)
            return unserved(fmt::format("parameter '{}' has bounded texts among others", name_));
        const OrderedJson least = schema.value("minLength", OrderedJson(0));
        const OrderedJson most = schema.value("maxLength", OrderedJson());
        if (!is_length(least) || !(most.is_null() || is_length(most)))
            return unserved(fmt::format("parameter '{}' has lengths that are no numbers", name_));
        const std::string pattern =
            fmt::format("[^<]{{{},{}}}", least.dump(), most.is_null() ? "" : most.dump());
        return OrderedJson{{"type", "regex"}, {"pattern", pattern}};
    }

    const OrderedJson& root_;
    std::string_view name_;
};

}  // namespace

Result<OrderedJson> tagged_arguments(const OrderedJson& schema) {
    constexpr auto kServed = std::to_array<std::string_view>(
        {"type",
         "properties",
         "required",
         "additionalProperties",
         "title",
         "description",
         "$defs",
         "definitions",
         "$schema",
         "default",
         "examples"}
    );
    for (const auto& [key, value] : schema.items()) {
        if (std::ranges::find(kServed, key) == kServed.end())
            return unserved(fmt::format("{} is not served in this format of calls", key));
    }
    OrderedJson parts = OrderedJson::array();
    const OrderedJson required = schema.value("required", OrderedJson::array());
    const OrderedJson properties = schema.value("properties", OrderedJson::object());
    for (const auto& [name, value] : properties.items()) {
        ASSIGN_OR_RETURN(OrderedJson form, ParameterForm(schema, name).value_of(value));
        OrderedJson part{
            {"type", "tag"},
            {"begin", fmt::format("\n<parameter={}>\n", name)},
            {"content", std::move(form)},
            {"end", fmt::format("\n{}", kValueEnd)}};
        if (std::ranges::find(required, OrderedJson(name)) == required.end())
            part = {{"type", "optional"}, {"content", std::move(part)}};
        parts.push_back(std::move(part));
    }
    for (const OrderedJson& name : required) {
        if (!name.is_string() || !properties.contains(name.get<std::string>()))
            return unserved(fmt::format("required names {}, which is no property", name.dump()));
    }
    if (parts.empty()) return OrderedJson{{"type", "const_string"}, {"value", ""}};
    return OrderedJson{{"type", "sequence"}, {"elements", std::move(parts)}};
}

}  // namespace pitstop::http
