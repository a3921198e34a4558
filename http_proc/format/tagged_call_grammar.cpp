#include "http_proc/format/tagged_call_grammar.h"

#include "http_proc/format/tool_schemas.h"
#include "messages/sampling.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kAlternativesNestedMax = 4;  // nested levels of anyOf and $ref
constexpr int kSchemasOfToolMax = 4096;    // parameters and alternatives of one tool
constexpr std::size_t kTypesMax = 7;       // JSON has seven types
constexpr std::size_t kDefinitionBytesMax = messages::kGrammarBytesMax;

Error unserved(std::string_view what) {
    return make_error(ErrorCode::kInvalidArgument, "{}", what);
}

// The remaining limits, which the parameters of one tool share.
struct Budget {
    int schemas = kSchemasOfToolMax;
    std::size_t definition_bytes = kDefinitionBytesMax;  // for copies of definitions
};

// Reads the schema of one parameter.
class ParameterForm {
  public:
    // `value_end`: the tag that ends each value.
    ParameterForm(
        const OrderedJson& root, std::string_view name, std::string_view value_end, Budget& budget
    )
        : root_(root), name_(name), value_end_(value_end), budget_(budget) {}

    // Returns the form of the parameter's value. `among_others`: the value may also be a non-text,
    // so a text must differ from those.
    Result<OrderedJson> value_of(
        const OrderedJson& schema, bool among_others = false, int num_nested = 0
    ) const {
        if (num_nested > kAlternativesNestedMax || --budget_.schemas <= 0) {
            return unserved(fmt::format(
                "parameter '{}' has alternatives that refer to each other too often", name_
            ));
        }
        if (schema == false)
            return unserved(fmt::format("the schema of parameter '{}' accepts no value", name_));
        if (schema.is_boolean() || schema.empty()) return text(among_others);
        const std::vector<std::string> types = types_of_schema(root_, schema, budget_.schemas);
        if (types.empty()) {
            return unserved(fmt::format("the schema of parameter '{}' names no type", name_));
        }
        const bool has_text = std::ranges::count(types, "string") > 0;
        if (!has_text) return json(schema);
        const bool has_others = among_others || std::ranges::any_of(types, [](const auto& type) {
                                    return type != "string" && type != "null" && type != "boolean";
                                });
        if (const OrderedJson* all = alternatives_of(schema)) {
            OrderedJson forms = OrderedJson::array();
            for (const OrderedJson& one : *all) {
                ASSIGN_OR_RETURN(OrderedJson form, value_of(one, has_others, num_nested + 1));
                forms.push_back(std::move(form));
            }
            return OrderedJson{{"type", "or"}, {"elements", std::move(forms)}};
        }
        if (schema.contains("type") && schema["type"].is_array())
            return value_of_types(schema, has_others, num_nested);
        if (const OrderedJson* definition = definition_of(root_, schema);
            definition != nullptr && schema.size() == 1 && !definition->contains("$ref"))
            return value_of(*definition, among_others, num_nested + 1);
        if (types.size() > 1 && !schema.contains("enum"))
            return unserved(fmt::format(
                "parameter '{}' may be a text or another value; list the types with type or anyOf",
                name_
            ));
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

    [[nodiscard]] Result<OrderedJson> value_of_types(
        const OrderedJson& schema, bool has_others, int num_nested
    ) const {
        OrderedJson forms = OrderedJson::array();
        if (schema["type"].size() > kTypesMax)
            return unserved(fmt::format("parameter '{}' has over {} types", name_, kTypesMax));
        for (const OrderedJson& type : schema["type"]) {
            if (!type.is_string())
                return unserved(
                    fmt::format("parameter '{}' has a type whose name is not a string", name_)
                );
            OrderedJson one = schema;
            one["type"] = type;
            ASSIGN_OR_RETURN(OrderedJson form, value_of(one, has_others, num_nested + 1));
            forms.push_back(std::move(form));
        }
        return OrderedJson{{"type", "or"}, {"elements", std::move(forms)}};
    }

    [[nodiscard]] OrderedJson text(bool among_others) const {
        if (among_others) return {{"type", "regex"}, {"pattern", "[A-Za-z_][^<]*"}};
        return {{"type", "any_text"}, {"excludes", OrderedJson::array({std::string(value_end_)})}};
    }

    // Returns a JSON value's form, with a copy of the definitions in the schema of all arguments.
    [[nodiscard]] Result<OrderedJson> json(OrderedJson schema) const {
        for (const char* name : {"$defs", "definitions"}) {
            if (!root_.contains(name) || schema.contains(name)) continue;
            const std::size_t num_bytes = dumped(root_[name]).size();
            if (num_bytes > budget_.definition_bytes) {
                return unserved(fmt::format(
                    "{} is too large: each parameter that is not a text has a copy of it, and at "
                    "most {} bytes in all are accepted",
                    name,
                    kDefinitionBytesMax
                ));
            }
            budget_.definition_bytes -= num_bytes;
            schema[name] = root_[name];
        }
        return OrderedJson{{"type", "json_schema"}, {"json_schema", std::move(schema)}};
    }

    static std::string dumped(const OrderedJson& json) {
        return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    }

    // Returns the form of one fixed value: `value` is a const, or an entry of an enum.
    [[nodiscard]] Result<OrderedJson> constant(const OrderedJson& value) const {
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        if (text.find(value_end_) != std::string::npos)
            return unserved(fmt::format("a value of parameter '{}' has {}", name_, value_end_));
        return OrderedJson{{"type", "const_string"}, {"value", text}};
    }

    [[nodiscard]] Result<OrderedJson> text_of(const OrderedJson& schema, bool among_others) const {
        if (schema.contains("const")) return constant(schema["const"]);
        if (schema.contains("enum")) {
            OrderedJson values = OrderedJson::array();
            for (const OrderedJson& value : schema["enum"]) {
                ASSIGN_OR_RETURN(OrderedJson one, constant(value));
                values.push_back(std::move(one));
            }
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
            return unserved(
                fmt::format("parameter '{}' may be a bounded text or another value", name_)
            );
        const OrderedJson least = schema.value("minLength", OrderedJson(0));
        const OrderedJson most = schema.value("maxLength", OrderedJson());
        if (!is_length(least) || !(most.is_null() || is_length(most)))
            return unserved(
                fmt::format("minLength or maxLength of parameter '{}' is not a number", name_)
            );
        const std::string pattern =
            fmt::format("[^<]{{{},{}}}", least.dump(), most.is_null() ? "" : most.dump());
        return OrderedJson{{"type", "regex"}, {"pattern", pattern}};
    }

    const OrderedJson& root_;
    std::string_view name_;
    std::string_view value_end_;
    Budget& budget_;
};

}  // namespace

Result<OrderedJson> tagged_arguments(const OrderedJson& schema, const ParameterTags& tags) {
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
    std::set<std::string> required;
    for (const OrderedJson& name : schema.value("required", OrderedJson::array())) {
        if (!name.is_string())
            return unserved(fmt::format("required names {}, which is not a property", name.dump()));
        required.insert(name.get<std::string>());
    }
    const OrderedJson properties = schema.value("properties", OrderedJson::object());
    if (!properties.is_object()) return unserved("properties is not an object");
    Budget budget;
    for (const auto& [name, value] : properties.items()) {
        if (name.find_first_of("<>\n") != std::string::npos)
            return unserved(fmt::format("the name of parameter '{}' has <, > or a line end", name));
        const ParameterForm parameter(schema, name, tags.value_end, budget);
        ASSIGN_OR_RETURN(OrderedJson form, parameter.value_of(value));
        OrderedJson part{
            {"type", "tag"},
            {"begin", fmt::format("{}{}{}", tags.before_key, name, tags.after_key)},
            {"content", std::move(form)},
            {"end", std::string(tags.after_value)}};
        if (required.erase(name) == 0) part = {{"type", "optional"}, {"content", std::move(part)}};
        parts.push_back(std::move(part));
    }
    if (!required.empty()) {
        return unserved(
            fmt::format("required names '{}', which is not a property", *required.begin())
        );
    }
    if (parts.empty()) return OrderedJson{{"type", "const_string"}, {"value", ""}};
    return OrderedJson{{"type", "sequence"}, {"elements", std::move(parts)}};
}

}  // namespace pitstop::http
