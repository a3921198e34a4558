// The formats in which models write tool calls, each as one row of data. The parser (tool_calls.h)
// and forced calls (forced_call.h) use the rows. Harmony's calls are messages, which harmony.h
// reads.
//
// Source: the models' chat templates; names from SGLang's and vLLM's --tool-call-parser.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

enum class ToolFormat : std::uint8_t {
    kHermes,
    kLlama3,
    kMistral,
    kQwen3Coder,
    kGlm45,
    kGlm47,
    kKimiK2,
    kDeepseekV3,
    kDeepseekV31,
    kPythonic,
    kHarmony,
};

struct ToolFormatRow {
    // The text of calls after a marker. White space between the parts is ignored.
    enum class Grammar : std::uint8_t {
        kObject,     // OBJECT `close`
        kObjects,    // OBJECT, perhaps more with ; or , between them, and then no calls
        kMistral,    // [OBJECT, ...] or NAME{...} or NAME[ARGS]{...}
        kNamedJson,  // (`call_open` NAME `args_open` {...} `args_close` `call_close`)* `close`
        kTagged,     // (`name_open` NAME `name_close` PARAMETER* `call_close`)* `close`
        kPythonic,   // [NAME(KEY=LITERAL, ...), ...]
        kHarmony,    // messages to functions
    };
    // A PARAMETER is `key_open` KEY `key_close` `value_open` VALUE `value_close`. If the tool's
    // schema has the type string, VALUE is the text itself; without a schema, Untyped decides.
    enum class Untyped : std::uint8_t { kText, kJsonOrText };

    ToolFormat format{};
    Grammar grammar{};
    std::string_view open{};  // the marker before a call, or before a section of calls
    // Like `name_open`; some models write it in place of `open`.
    std::string_view short_open{};
    // A first character of an output that may begin a call without a marker; 0: no character.
    char start = '\0';
    std::string_view close{};
    std::string_view call_open{};
    std::string_view name_prefix{};  // a name is PREFIX NAME:INDEX, which is also the id
    std::string_view name_open{};
    std::string_view name_close{};  // empty: the first parameter, or `close`, ends the name
    std::string_view args_open{};
    std::string_view args_close{};
    std::string_view call_close{};
    std::string_view key_open{};
    std::string_view key_close{};
    std::string_view value_open{};
    std::string_view value_close{};
    bool value_has_lines = false;  // a line end follows `key_close`, another precedes `value_close`
    Untyped untyped = Untyped::kText;
    // The beginnings of a call of any function, and of a named function: {} stands for the name,
    // {q} for the name as JSON, {n} for the number of calls that the conversation had before. Each
    // beginning ends at a boundary of the model's tokens.
    std::string_view begins_any{};
    std::string_view begins_named{};
    bool has_short_ids = false;  // the model's template accepts only ids of nine letters and digits
};

[[nodiscard]] const ToolFormatRow& row_of(ToolFormat format);

// The values of --tool-call-parser; tool_format_named() returns nothing for any other value.
struct ToolFormatName {
    std::string_view name{};
    ToolFormat format{};
};
inline constexpr std::array kToolFormats{
    ToolFormatName{"hermes", ToolFormat::kHermes},
    ToolFormatName{"qwen", ToolFormat::kHermes},
    ToolFormatName{"qwen25", ToolFormat::kHermes},
    ToolFormatName{"llama3", ToolFormat::kLlama3},
    ToolFormatName{"llama3_json", ToolFormat::kLlama3},
    ToolFormatName{"mistral", ToolFormat::kMistral},
    ToolFormatName{"qwen3_coder", ToolFormat::kQwen3Coder},
    ToolFormatName{"qwen3_xml", ToolFormat::kQwen3Coder},
    ToolFormatName{"glm", ToolFormat::kGlm45},
    ToolFormatName{"glm45", ToolFormat::kGlm45},
    ToolFormatName{"glm47", ToolFormat::kGlm47},
    ToolFormatName{"kimi_k2", ToolFormat::kKimiK2},
    ToolFormatName{"deepseekv3", ToolFormat::kDeepseekV3},
    ToolFormatName{"deepseek_v3", ToolFormat::kDeepseekV3},
    ToolFormatName{"deepseekv31", ToolFormat::kDeepseekV31},
    ToolFormatName{"deepseek_v31", ToolFormat::kDeepseekV31},
    ToolFormatName{"pythonic", ToolFormat::kPythonic},
    ToolFormatName{"llama4_pythonic", ToolFormat::kPythonic},
    ToolFormatName{"gpt-oss", ToolFormat::kHarmony},
    ToolFormatName{"openai", ToolFormat::kHarmony},
};
[[nodiscard]] std::optional<ToolFormat> tool_format_named(std::string_view name);
[[nodiscard]] std::string tool_format_names();  // "hermes, qwen, ..."

// Finds the format in a model's chat template; nothing if the template shows no known format.
[[nodiscard]] std::optional<ToolFormat> tool_format_in(std::string_view chat_template);

}  // namespace pitstop::http
