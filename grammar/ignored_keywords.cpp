#include "grammar/ignored_keywords.h"

#include "messages/structural_tag.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

namespace pitstop::grammar {
namespace {

using messages::GrammarKind;
using Json = nlohmann::ordered_json;

// Keywords that the compiler ignores, so that outputs may not match the schema.
constexpr auto kIgnored = std::to_array<std::string_view>(
    {"not",
     "if",
     "then",
     "else",
     "dependentRequired",
     "dependentSchemas",
     "dependencies",
     "uniqueItems",
     "contains",
     "minContains",
     "maxContains",
     "$dynamicRef",
     "$recursiveRef",
     "unevaluatedItems",
     "unevaluatedProperties"}
);
// Keywords that restrict values of one type. Without `type`, properties or additionalProperties
// make a schema one of objects, and items or prefixItems one of arrays; the compiler ignores the
// others.
struct Restriction {
    std::string_view keyword;
    std::string_view type;
};
constexpr auto kRestrictions = std::to_array<Restriction>({
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"properties", "object"},
    {"additionalProperties", "object"},
    {"patternProperties", "object"},
    {"propertyNames", "object"},
    {"required", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
});
// The compiler follows these values of `format`, and then ignores a pattern.
constexpr auto kFormats = std::to_array<std::string_view>(
    {"email",
     "date",
     "time",
     "date-time",
     "duration",
     "ipv4",
     "ipv6",
     "hostname",
     "uuid",
     "uri",
     "uri-reference",
     "uri-template",
     "json-pointer",
     "relative-json-pointer"}
);
// If a schema has one of kAlone, the compiler ignores all other keywords except kBeside.
constexpr auto kAlone = std::to_array<std::string_view>({"anyOf", "oneOf", "allOf", "$ref"});
constexpr auto kBeside = std::to_array<std::string_view>(
    {"type",
     "title",
     "description",
     "default",
     "examples",
     "deprecated",
     "readOnly",
     "writeOnly",
     "discriminator",
     "$schema",
     "$id",
     "$anchor",
     "$comment",
     "$defs",
     "definitions"}
);
// kNamed: keywords whose members are schemas under names that the user chooses. kValues: keywords
// that have values instead of schemas.
constexpr auto kNamed =
    std::to_array<std::string_view>({"properties", "patternProperties", "$defs", "definitions"});
constexpr auto kValues = std::to_array<std::string_view>(
    {"enum", "const", "default", "examples", "required", "discriminator"}
);

bool is_among(const auto& names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
}

// Returns whether the keyword restricts nothing with this value.
bool is_vacuous(std::string_view keyword, const Json& value) {
    return (keyword == "uniqueItems" && value == false) ||
           (keyword == "required" && value.is_array() && value.empty());
}

bool is_of_type(const Json& value, std::string_view type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "number") return value.is_number();
    if (type == "integer")
        return value.is_number_integer() ||
               (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
}

// Returns whether some type matches. `types`: the value of a schema's `type`: a name, or several.
bool has_type(const Json& types, auto matches) {
    const auto is_one = [&](const Json& type) {
        return type.is_string() && matches(type.get_ref<const std::string&>());
    };
    return types.is_array() ? std::ranges::any_of(types, is_one) : is_one(types);
}

bool has_type_named(const Json& types, std::string_view name) {
    return has_type(types, [&](std::string_view type) { return type == name; });
}

// Returns a keyword that the compiler would ignore in a schema because the schema has none of
// `type`, enum, const, anyOf and the like; empty: none.
std::string ignored_without_type(const Json& schema) {
    const bool is_object = schema.contains("properties") || schema.contains("additionalProperties");
    const bool is_array = schema.contains("items") || schema.contains("prefixItems");
    for (const auto& [keyword, type] : kRestrictions) {
        const bool is_scalar = type == "string" || type == "number";
        if (!is_scalar && (is_object || is_array)) continue;
        const auto place = schema.find(std::string(keyword));
        if (place != schema.end() && !is_vacuous(keyword, *place)) return std::string(keyword);
    }
    return {};
}

// Returns a keyword that the compiler would ignore in a schema that lists its values; empty: none.
// A restriction of other types than the values have is followed without the compiler.
std::string ignored_beside_values(const Json& schema) {
    const bool is_const = schema.contains("const");
    const Json values =
        is_const ? Json::array({schema["const"]}) : schema.value("enum", Json::array());
    const auto types = schema.find("type");
    for (const Json& value : values) {
        const auto is_of = [&](std::string_view type) { return is_of_type(value, type); };
        if (types != schema.end() && !has_type(*types, is_of)) return is_const ? "const" : "enum";
        for (const auto& [keyword, type] : kRestrictions) {
            if (keyword != "format" && schema.contains(std::string(keyword)) &&
                is_of_type(value, type))
                return std::string(keyword);
        }
    }
    const auto all = schema.find("enum");
    if (!is_const || all == schema.end()) return {};
    const bool has_const =
        std::ranges::any_of(*all, [&](const Json& each) { return each == values.front(); });
    return has_const ? std::string() : "enum";
}

bool has_followed_format(const Json& schema) {
    const auto format = schema.find("format");
    return format != schema.end() && format->is_string() &&
           is_among(kFormats, format->get_ref<const std::string&>());
}

// Returns whether the schema requires a property that it does not describe. The compiler does not
// generate such a property.
bool requires_unknown(const Json& schema) {
    const auto required = schema.find("required");
    if (required == schema.end()) return false;
    const Json properties = schema.value("properties", Json::object());
    return std::ranges::any_of(*required, [&](const Json& name) {
        return !name.is_string() || !properties.contains(name.get_ref<const std::string&>());
    });
}

// Returns a keyword that the compiler would ignore in a schema of strings or objects; empty: none.
std::string ignored_of_type(const Json& schema) {
    const auto types = schema.find("type");
    const bool is_typed = types != schema.end();
    if (is_typed && has_type_named(*types, "string") && schema.contains("pattern") &&
        has_followed_format(schema))
        return "pattern";
    const bool is_object =
        is_typed ? has_type_named(*types, "object")
                 : schema.contains("properties") || schema.contains("additionalProperties");
    return is_object && requires_unknown(schema) ? "required" : std::string();
}

// Returns a keyword that the compiler would ignore in this schema because of the schema's other
// keywords, or because it has no type; empty: none.
std::string ignored_beside(const Json& schema) {
    std::size_t num_alone = 0;
    for (const auto& [key, value] : schema.items()) {
        if (is_among(kAlone, key) && ++num_alone > 1) return key;
    }
    if (num_alone > 0) {
        for (const auto& [key, value] : schema.items()) {
            if (!is_among(kAlone, key) && !is_among(kBeside, key)) return key;
        }
        return {};
    }
    if (schema.contains("enum") || schema.contains("const")) return ignored_beside_values(schema);
    if (!schema.contains("type")) {
        if (auto found = ignored_without_type(schema); !found.empty()) return found;
    }
    return ignored_of_type(schema);
}

// Returns the first keyword that the compiler would ignore in a schema; empty: none. Bounded: by
// the depth of the text (messages/sampling.h).
std::string ignored_in(const Json& schema) {
    if (schema.is_array()) {
        for (const Json& each : schema) {
            if (auto found = ignored_in(each); !found.empty()) return found;
        }
    }
    if (!schema.is_object()) return {};
    if (auto found = ignored_beside(schema); !found.empty()) return found;
    for (const auto& [key, value] : schema.items()) {
        const auto* const place = std::ranges::find(kIgnored, key);
        if (place != kIgnored.end() && !is_vacuous(key, value)) return std::string(*place);
        if (is_among(kValues, key)) continue;
        if (!is_among(kNamed, key) || !value.is_object()) {
            if (auto found = ignored_in(value); !found.empty()) return found;
            continue;
        }
        for (const Json& each : value) {
            if (auto found = ignored_in(each); !found.empty()) return found;
        }
    }
    return {};
}

// Returns the first keyword that the compiler would ignore in a structural tag; empty: none.
std::string ignored_in_tag(const Json& tag) {
    if (!tag.is_object() && !tag.is_array()) return {};
    for (const auto& [key, value] : tag.items()) {
        auto found = key == "json_schema" ? ignored_in(value) : ignored_in_tag(value);
        if (!found.empty()) return found;
    }
    return {};
}

}  // namespace

std::string ignored_keyword(const messages::Grammar& grammar) {
    const bool is_schema = grammar.kind == GrammarKind::kJsonSchema;
    if (!is_schema && grammar.kind != GrammarKind::kStructuralTag) return {};
    Json given = Json::parse(grammar.text, nullptr, /*allow_exceptions=*/false);
    if (is_schema) return ignored_in(given);
    return ignored_in_tag(messages::in_present_form(std::move(given)));
}

}  // namespace pitstop::grammar
