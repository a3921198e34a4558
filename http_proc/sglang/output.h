// Writes one request's output in SGLang's shape. Parts that only grow (texts, ids, logprobs) are
// kept as JSON, so that an event with all output so far copies them instead of writing them anew.
//
// Bounded: by the request's output.
#pragma once

#include "base/time.h"
#include "http_proc/format/json_writer.h"
#include "http_proc/format/routed_experts.h"
#include "http_proc/server/token_texts.h"
#include "messages/generation.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::http {

class SglangOutput {
  public:
    struct Args {
        std::string rid{};
        messages::LogprobOptions logprobs{};
        bool shows_logprobs_mode = false;
        std::vector<TokenId> prompt_ids{};  // only if the answer shows them or their logprobs
        std::optional<std::int64_t> max_new_tokens{};
        RoutesAsked routes{};
        std::optional<messages::RouteShape> route_shape{};  // the model's
        bool shows_prompt_ids = false;
        bool is_turn = false;  // a turn of a session
        bool is_incremental = false;
        std::optional<std::size_t> index{};  // the request's place in its batch, for events
        const TokenTexts* texts = nullptr;   // null: no text in logprobs
        TimePoint start{};
    };
    explicit SglangOutput(Args args)
        : args_(std::move(args)), routes_(args_.routes, args_.route_shape) {}

    void append(messages::OutputChunk chunk);
    // Writes all output so far; with is_incremental, the output since the last write(). REQUIRES:
    // the request did not end with an error.
    void write(JsonWriter& json);

    [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
    [[nodiscard]] bool is_done() const { return finish_.has_value(); }
    // True after an abort before the first token: the caller asks the tree which version serves.
    [[nodiscard]] bool lacks_version() const { return is_done() && spans_.empty(); }
    void set_version(messages::Span current) { current_ = std::move(current); }

  private:
    // A list of JSON values that grows at its end.
    struct List {
        std::string json{};
        std::string& next() {
            if (!json.empty()) json += ',';
            return json;
        }
    };
    void append_entry(List& list, std::optional<float> logprob, TokenId id) const;
    void append_entries(
        List& list,
        const std::vector<float>& logprobs,
        const std::vector<TokenId>& ids,
        std::size_t begin,
        std::size_t count
    ) const;
    void append_prompt(const messages::PromptLogprobs& prompt);
    void write_meta(JsonWriter& json);
    void write_drafts(JsonWriter& json, const messages::DraftCounts& drafts) const;
    void write_turn(JsonWriter& json) const;
    void write_finish(JsonWriter& json) const;
    void write_versions(JsonWriter& json) const;

    Args args_;
    RoutesOutput routes_;
    std::string text_{};
    List ids_{};
    List logprobs_{};
    List top_{};
    List of_ids_{};
    List masks_{};  // lists of ids, one per token
    List mask_logprobs_{};
    List input_logprobs_{};
    List input_top_{};
    List input_of_ids_{};
    std::vector<messages::Span> spans_{};
    messages::Span current_{};
    messages::RequestCounts counts_{};
    std::optional<messages::AdapterVersion> adapter_{};
    std::int64_t num_tokens_ = 0;
    std::optional<messages::Finish> finish_{};
};

}  // namespace pitstop::http
