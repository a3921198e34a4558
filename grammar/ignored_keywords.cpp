#include "grammar/ignored_keywords.h"

#include "messages/structural_tag.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
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
     "uniqueItems",
     "contains",
     "minContains",
     "maxContains",
     "$dynamicRef",
     "unevaluatedItems",
     "unevaluatedProperties"}
);
// Keywords that the compiler ignores in a schema without a type.
constexpr auto kOfType = std::to_array<std::string_view>(
    {"minLength",
     "maxLength",
     "pattern",
     "minimum",
     "maximum",
     "exclusiveMinimum",
     "exclusiveMaximum",
     "multipleOf"}
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
constexpr auto kValues =
    std::to_array<std::string_view>({"enum", "const", "default", "examples", "required"});

bool is_among(const auto& names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
}

// Returns a keyword that the compiler would ignore in this schema because of the schema's other
// keywords, or because it has no type; empty: none.
std::string ignored_beside(const Json& schema) {
    const bool has_type =
        schema.contains("type") || schema.contains("enum") || schema.contains("const");
    const bool has_alone = std::ranges::any_of(kAlone, [&](std::string_view name) {
        return schema.contains(std::string(name));
    });
    std::size_t num_alone = 0;
    for (const auto& [key, value] : schema.items()) {
        if (!has_type && is_among(kOfType, key)) return key;
        if (is_among(kAlone, key) && ++num_alone > 1) return key;
        if (has_alone && !is_among(kAlone, key) && !is_among(kBeside, key)) return key;
    }
    return {};
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
        const bool is_vacuous = key == "uniqueItems" && value == false;
        if (place != kIgnored.end() && !is_vacuous) return std::string(*place);
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
