// Every parser of http_proc that sees a client's bytes: bodies of the three dialects, targets,
// keys. What they accept must be valid for the engine, and must come out of the JSON writer as
// JSON.
#include "base/check.h"
#include "base/utf8.h"
#include "http_proc/json_body.h"
#include "http_proc/json_writer.h"
#include "http_proc/keys.h"
#include "http_proc/message.h"
#include "http_proc/openai_completions_request.h"
#include "http_proc/sglang_generate_request.h"
#include "http_proc/vllm_generate_request.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pitstop {
namespace {

void parse_as_target(std::string_view text) {
    Request request;
    if (!parse_target(text, request)) return;
    CHECK(!request.path.empty() && request.path.find('\0') == std::string::npos);
    for (const auto& [name, value] : request.query)
        CHECK(name.size() + value.size() <= text.size());
}

void parse_as_key(std::string_view text) {
    Request request;
    request.headers.push_back({"authorization", std::string(text)});
    const Keys keys{.api = "key", .admin = "other"};
    const Grant grant = grant_of(request, keys);
    if (grant == Grant::kData) CHECK(text.ends_with("key"));
    if (grant == Grant::kAdmin) CHECK(text.ends_with("other"));
}

void write_as_json(std::string_view text) {
    if (!is_utf8(text)) return;
    JsonWriter json;
    json.begin_array().string(text).end_array();
    CHECK(nlohmann::json::parse(json.text())[0] == text);
}

void fuzz(std::uint8_t which, std::string_view text) {
    switch (which % 6) {
        case 0:
            if (const auto call = parse_sglang_generate(text)) {
                CHECK(!call->prompts.empty());
                for (const Generate& prompt : call->prompts) CHECK(!invalid(prompt));
            }
            break;
        case 1:
            if (const auto call = parse_openai_completions(text))
                CHECK(!invalid(call->options.sampling));
            break;
        case 2:
            if (const auto call = parse_vllm_generate(text)) CHECK(!call->prompt.empty());
            break;
        case 3:
            parse_as_target(text);
            break;
        case 4:
            parse_as_key(text);
            break;
        default:
            write_as_json(text);
    }
}

}  // namespace
}  // namespace pitstop

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    pitstop::fuzz(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
    return 0;
}
