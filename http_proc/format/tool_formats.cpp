#include "http_proc/format/tool_formats.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop::http {
namespace {

using Grammar = ToolFormatRow::Grammar;

constexpr ToolFormatRow glm_row(ToolFormat format) {
    return {
        .format = format,
        .grammar = Grammar::kTagged,
        .open = "<tool_call>",
        .close = "</tool_call>",
        .key_open = "<arg_key>",
        .key_close = "</arg_key>",
        .value_open = "<arg_value>",
        .value_close = "</arg_value>",
        .untyped = ToolFormatRow::Untyped::kJsonOrText,
        .begins_any = "<tool_call>",
        .begins_named = "<tool_call>{}"};
}

constexpr std::array kFormatRows{
    ToolFormatRow{
        .format = ToolFormat::kHermes,
        .grammar = Grammar::kObject,
        .open = "<tool_call>",
        .close = "</tool_call>",
        .begins_any = "<tool_call>\n{\"name\":",
        .begins_named = "<tool_call>\n{\"name\": {q}, \"arguments\":"},
    ToolFormatRow{
        .format = ToolFormat::kLlama3,
        .grammar = Grammar::kObjects,
        .open = "<|python_tag|>",
        .start = '{',
        .begins_any = "{\"name\":",
        .begins_named = "{\"name\": {q}, \"parameters\":"},
    ToolFormatRow{
        .format = ToolFormat::kMistral,
        .grammar = Grammar::kMistral,
        .open = "[TOOL_CALLS]",
        .begins_any = "[TOOL_CALLS]",
        .begins_named = "[TOOL_CALLS][{\"name\": {q}, \"arguments\":",
        .has_short_ids = true},
    ToolFormatRow{
        .format = ToolFormat::kQwen3Coder,
        .grammar = Grammar::kTagged,
        .open = "<tool_call>",
        .short_open = "<function=",
        .close = "</tool_call>",
        .name_open = "<function=",
        .name_close = ">",
        .call_close = "</function>",
        .key_open = "<parameter=",
        .key_close = ">",
        .value_close = "</parameter>",
        .value_has_lines = true,
        .begins_any = "<tool_call>\n<function=",
        .begins_named = "<tool_call>\n<function={}>"},
    glm_row(ToolFormat::kGlm45),
    glm_row(ToolFormat::kGlm47),
    ToolFormatRow{
        .format = ToolFormat::kKimiK2,
        .grammar = Grammar::kNamedJson,
        .open = "<|tool_calls_section_begin|>",
        .close = "<|tool_calls_section_end|>",
        .call_open = "<|tool_call_begin|>",
        .name_prefix = "functions.",
        .args_open = "<|tool_call_argument_begin|>",
        .call_close = "<|tool_call_end|>",
        .begins_any = "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        .begins_named = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{}:{n}"
                        "<|tool_call_argument_begin|>"},
    ToolFormatRow{
        .format = ToolFormat::kDeepseekV3,
        .grammar = Grammar::kNamedJson,
        .open = "<｜tool▁calls▁begin｜>",
        .close = "<｜tool▁calls▁end｜>",
        .call_open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        .args_open = "\n```json\n",
        .args_close = "```",
        .call_close = "<｜tool▁call▁end｜>",
        .begins_any = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        .begins_named =
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n"},
    ToolFormatRow{
        .format = ToolFormat::kDeepseekV31,
        .grammar = Grammar::kNamedJson,
        .open = "<｜tool▁calls▁begin｜>",
        .close = "<｜tool▁calls▁end｜>",
        .call_open = "<｜tool▁call▁begin｜>",
        .args_open = "<｜tool▁sep｜>",
        .call_close = "<｜tool▁call▁end｜>",
        .begins_any = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        .begins_named = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁sep｜>"},
    ToolFormatRow{
        .format = ToolFormat::kPythonic,
        .grammar = Grammar::kPythonic,
        .open = "<|python_start|>",
        .start = '[',
        .close = "<|python_end|>",
        .begins_any = "[",
        .begins_named = "[{}("},
    ToolFormatRow{
        .format = ToolFormat::kHarmony,
        .grammar = Grammar::kHarmony,
        .begins_any = "<|channel|>commentary to=functions.",
        .begins_named = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"},
};

}  // namespace

const ToolFormatRow& row_of(ToolFormat format) {
    const auto row = std::ranges::find(kFormatRows, format, &ToolFormatRow::format);
    CHECK(row != kFormatRows.end());
    return *row;
}

std::optional<ToolFormat> tool_format_named(std::string_view name) {
    const auto found = std::ranges::find(kToolFormats, name, &ToolFormatName::name);
    if (found == kToolFormats.end()) return std::nullopt;
    return found->format;
}

std::string tool_format_names() {
    std::string names;
    for (const ToolFormatName& one : kToolFormats) {
        if (!names.empty()) names += ", ";
        names += one.name;
    }
    return names;
}

std::optional<ToolFormat> tool_format_in(std::string_view chat_template) {
    // The first row whose texts all occur in the template decides. So if two formats share a
    // marker, the more specific row comes first.
    struct Shown {
        std::string_view text{};
        std::string_view other{};
        ToolFormat format{};
    };
    constexpr std::array kShown{
        Shown{"<|channel|>", "to=functions.", ToolFormat::kHarmony},
        Shown{"<tool_call>", "<function=", ToolFormat::kQwen3Coder},
        Shown{"<arg_key>", "</arg_key>\\n<arg_value>", ToolFormat::kGlm45},
        Shown{"<arg_key>", "</arg_key>\n<arg_value>", ToolFormat::kGlm45},
        Shown{"<arg_key>", "<arg_value>", ToolFormat::kGlm47},
        Shown{"<|tool_calls_section_begin|>", "<|tool_call_begin|>", ToolFormat::kKimiK2},
        Shown{"<｜tool▁calls▁begin｜>", "```json", ToolFormat::kDeepseekV3},
        Shown{"<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", ToolFormat::kDeepseekV31},
        Shown{"[TOOL_CALLS]", "", ToolFormat::kMistral},
        Shown{"<|python_start|>", "", ToolFormat::kPythonic},
        Shown{"<|python_tag|>", "", ToolFormat::kLlama3},
        Shown{"<tool_call>", "\"name\"", ToolFormat::kHermes},
        Shown{"<tool_call>", "\\\"name\\\"", ToolFormat::kHermes},
    };
    const auto is_shown = [&](const Shown& shown) {
        return chat_template.find(shown.text) != std::string_view::npos &&
               chat_template.find(shown.other) != std::string_view::npos;
    };
    const auto found = std::ranges::find_if(kShown, is_shown);
    if (found == kShown.end()) return std::nullopt;
    return found->format;
}

}  // namespace pitstop::http
