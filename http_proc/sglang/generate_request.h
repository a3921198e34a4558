// Parses the body of SGLang's /generate. Source: SGLang's GenerateReqInput and SamplingParams, in
// the versions that docs/http.md names.
//
// Has no coroutines, so that a fuzz target can run it.
#pragma once

#include "base/result.h"
#include "http_proc/format/given_routes.h"
#include "messages/generation.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {

inline constexpr std::size_t kBatchMax = 4096;     // prompts of one request
inline constexpr std::size_t kSamplesMax = 1024;   // per prompt
inline constexpr std::size_t kRequestsMax = 8192;  // prompts times samples

struct SglangGenerate {
    // Each prompt has its own rid; empty: the caller gave none.
    std::vector<messages::Generate> prompts{};
    bool is_batch = false;  // the request had lists, so the answer is a list, even of one entry
    std::int64_t samples = 1;
    std::string batch_rid{};  // the base of a batch's rids; empty: none
    bool is_streamed = false;
    bool is_incremental = false;  // events are deltas
    bool wants_text_in_logprobs = false;
    bool names_logprobs_mode = false;
    bool wants_prompt_token_ids = false;
    std::int64_t stream_interval = 1;
    std::string session_id{};  // names a session in which each request has the whole prompt
    bool streams_routes = false;
    // By prompt: the routes that it brings. Empty: no prompt brings routes.
    std::vector<std::optional<GivenRoutes>> given_routes{};
    // Tokens in fields without effect, by field.
    std::vector<std::pair<std::string_view, std::vector<TokenId>>> unused_ids{};

    [[nodiscard]] bool answers_list() const { return is_batch || samples > 1; }
};

// Errors: kInvalidArgument or kMalformed, which become status 400 with the text.
[[nodiscard]] Result<SglangGenerate> parse_sglang_generate(std::string_view body);

}  // namespace pitstop::http
