#include "http_proc/format/grammar_fields.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/ordered_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kAnyObject = R"({"type": "object"})";

// Returns the JSON text of the member at `path`, with objects' members in the body's order. If the
// path is not found, because the body has a name twice, returns the text of `sorted`: the member
// as it was parsed before.
std::string text_at(
    std::string_view body, std::initializer_list<std::string_view> path, const Json& sorted
) {
    const Result<OrderedJson> whole = parse_ordered_json(body);
    if (!whole) return sorted.dump();
    const OrderedJson* at = &*whole;
    for (const std::string_view name : path) {
        if (name.empty()) continue;
        const auto place = at->find(std::string(name));
        if (!at->is_object() || place == at->end()) return sorted.dump();
        at = &*place;
    }
    return at->dump();
}

// Sets the request's only grammar. Refuses it if tools may be called: calls would not match it.
void set(FieldReader& fields, std::string_view name, std::string& grammar, std::string text) {
    const Json* const tools = fields.find("tools");
    const Json* const choice = fields.find("tool_choice");
    if (tools != nullptr && !asks_for_nothing(*tools) && (choice == nullptr || *choice != "none"))
        return fields.refuse(
            name, "tools are offered, but no call would match the grammar: set tool_choice to none"
        );
    if (text.empty()) return fields.fail(name, "a text that is not empty");
    if (!grammar.empty()) return fields.refuse(name, "the request has another grammar");
    grammar = std::move(text);
}

bool is_schema(const Json* schema) {
    return schema != nullptr && (schema->is_object() || schema->is_boolean());
}

const Json* member(const Json& object, std::string_view name) {
    if (!object.is_object()) return nullptr;
    const auto place = object.find(std::string(name));
    return place == object.end() || place->is_null() ? nullptr : &*place;
}

bool is_choice(const Json& choices) {
    return choices.is_array() && !choices.empty() &&
           std::ranges::all_of(choices, [](const Json& each) { return each.is_string(); });
}

// Returns a grammar that matches one of several texts.
std::string ebnf_of_choices(const Json& choices) {
    std::string ebnf = "root ::= ";
    for (const Json& choice : choices) {
        if (&choice != &choices.front()) ebnf += " | ";
        ebnf += choice.dump();
    }
    return ebnf;
}

constexpr std::string_view kFormats =
    "an object whose type is text, json_object, json_schema (with json_schema.schema, an object) "
    "or structural_tag (with format)";

}  // namespace

void read_response_format(
    FieldReader& fields, std::string_view body, messages::SamplingParams& params
) {
    constexpr std::string_view kName = "response_format";
    const Json* const given = fields.find(kName);
    if (given == nullptr) return;
    const Json* const type = member(*given, "type");
    if (type == nullptr) return fields.fail(kName, kFormats);
    if (*type == "text") return;
    if (*type == "json_object")
        return set(fields, kName, params.json_schema, std::string(kAnyObject));
    if (*type == "structural_tag")
        return set(fields, kName, params.structural_tag, text_at(body, {kName}, *given));
    const Json* const wrapped = member(*given, "json_schema");
    if (*type != "json_schema" || wrapped == nullptr || !is_schema(member(*wrapped, "schema")))
        return fields.fail(kName, kFormats);
    set(fields,
        kName,
        params.json_schema,
        text_at(body, {kName, "json_schema", "schema"}, *member(*wrapped, "schema")));
}

void read_structured_outputs(
    FieldReader& fields,
    std::string_view body,
    std::string_view inside,
    messages::SamplingParams& params
) {
    constexpr std::string_view kName = "structured_outputs";
    const Json* const given = fields.find(kName);
    if (given == nullptr || asks_for_nothing(*given)) return;
    if (!given->is_object()) return fields.fail(kName, "an object");
    constexpr auto kOptions = std::to_array<std::string_view>(
        {"disable_any_whitespace",
         "disable_additional_properties",
         "whitespace_pattern",
         "disable_fallback"}
    );
    // Absent only if null: {} and false are schemas.
    constexpr auto kGrammars =
        std::to_array<std::string_view>({"json", "regex", "choice", "grammar", "structural_tag"});
    for (const auto& [key, value] : given->items()) {
        const bool is_grammar = std::ranges::find(kGrammars, key) != kGrammars.end();
        if (is_grammar ? value.is_null() : asks_for_nothing(value)) continue;
        const bool is_option = std::ranges::find(kOptions, key) != kOptions.end();
        if (is_option && key != "disable_fallback")
            return fields.refuse(kName, fmt::format("{} is not served", key));
        if (is_option) continue;
        if (key == "json") {
            std::string text = value.is_string() ? value.get<std::string>()
                                                 : text_at(body, {inside, kName, "json"}, value);
            set(fields, kName, params.json_schema, std::move(text));
        } else if (key == "json_object") {
            set(fields, kName, params.json_schema, std::string(kAnyObject));
        } else if (key == "regex" && value.is_string()) {
            set(fields, kName, params.regex, value.get<std::string>());
        } else if (key == "grammar" && value.is_string()) {
            set(fields, kName, params.ebnf, value.get<std::string>());
        } else if (key == "structural_tag" && value.is_string()) {
            set(fields, kName, params.structural_tag, value.get<std::string>());
        } else if (key == "choice" && is_choice(value)) {
            set(fields, kName, params.ebnf, ebnf_of_choices(value));
        } else {
            return fields.fail(
                kName,
                "an object with one of json, json_object, regex, choice (a list of at least one "
                "text), grammar and structural_tag"
            );
        }
    }
}

void read_inner_format(
    FieldReader& fields,
    std::string_view body,
    std::string_view outer,
    messages::SamplingParams& params
) {
    const Json* const given = fields.find(outer);
    const Json* const format = given == nullptr ? nullptr : member(*given, "format");
    if (format == nullptr) return;
    const Json* const type = member(*format, "type");
    if (type != nullptr && *type == "text") return;
    if (type != nullptr && *type == "json_object")
        return set(fields, outer, params.json_schema, std::string(kAnyObject));
    if (type == nullptr || *type != "json_schema" || !is_schema(member(*format, "schema"))) {
        return fields.fail(
            outer,
            "an object whose format has a type of text, json_object or json_schema (with schema, "
            "an object)"
        );
    }
    set(fields,
        outer,
        params.json_schema,
        text_at(body, {outer, "format", "schema"}, *member(*format, "schema")));
}

bool has_grammar(const messages::SamplingParams& params) {
    return !params.json_schema.empty() || !params.regex.empty() || !params.ebnf.empty() ||
           !params.structural_tag.empty();
}

void refuse_response_format(FieldReader& fields, std::string_view why) {
    const Json* const format = fields.find("response_format");
    if (format != nullptr && !asks_for_nothing(*format) &&
        (!format->is_object() || format->value("type", Json()) != "text"))
        fields.refuse("response_format", why);
}

void refuse_formats(FieldReader& fields, std::string_view why) {
    refuse_response_format(fields, why);
    const Json* const outputs = fields.find("structured_outputs");
    if (outputs != nullptr && !asks_for_nothing(*outputs)) fields.refuse("structured_outputs", why);
}

}  // namespace pitstop::http
