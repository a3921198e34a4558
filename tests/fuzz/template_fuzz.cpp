// Random templates: whatever the bytes, parsing and rendering end with a text or an error, within
// the limits. The first line, if it is JSON, has the variables.
#include "jinja/json.h"
#include "jinja/template.h"

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string_view>

namespace {

constexpr std::string_view kChat =
    R"({"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": null,)"
    R"( "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]}],)"
    R"( "tools": [{"function": {"name": "f", "parameters": {}}}], "add_generation_prompt": true,)"
    R"( "bos_token": "<s>"})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace pitstop::jinja;  // NOLINT: a program of one function
    std::string_view source(reinterpret_cast<const char*>(data), size);
    const std::size_t line = source.find('\n');
    auto variables = parse_json(source.substr(0, line));
    if (variables && variables->as_mapping() != nullptr && line != std::string_view::npos) {
        source.remove_prefix(line + 1);
    } else {
        variables = parse_json(kChat);
    }
    const auto parsed = Template::parse(source);
    if (!parsed) return 0;
    // Small, so that the fuzzer sees many templates a second and a leak of work stands out.
    const Limits limits{
        .steps_max = 20'000, .built_bytes_max = 4 << 20, .output_bytes_max = 1 << 20};
    const auto text = parsed->render(*variables->as_mapping(), std::tm{}, limits);
    if (text && text->size() > limits.output_bytes_max) __builtin_trap();
    return 0;
}
