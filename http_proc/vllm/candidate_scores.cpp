#include "http_proc/vllm/candidate_scores.h"

#include "http_proc/format/base64.h"
#include "http_proc/format/npy.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRows = "prompt_logprob_token_ids";
constexpr std::string_view kStart = "prompt_logprob_start";
constexpr std::size_t kPlacesMax = std::size_t{1} << 24;  // of a matrix: 64 MiB

}  // namespace

std::optional<CandidateScores> CandidateScores::read(
    FieldReader& fields, std::int64_t prompt_len, std::size_t num_ids_max
) {
    CandidateScores scores;
    fields.read(kStart, scores.start_);
    const Json* given = fields.find(kRows);
    if (given == nullptr) {
        if (scores.start_ != 0) fields.refuse(kStart, "prompt_logprobs are of all its tokens");
        return std::nullopt;
    }
    if (scores.start_ < 0 || scores.start_ >= prompt_len) {
        fields.fail(kStart, fmt::format("a token of the prompt, [0, {})", prompt_len));
        return std::nullopt;
    }
    const std::int64_t num_rows = prompt_len - 1 - scores.start_;
    const auto wrong = [&] {
        fields.fail(
            kRows,
            fmt::format(
                "a list of {} lists of token ids or -1: the prompt's length - 1 - {}",
                num_rows,
                kStart
            )
        );
        return std::nullopt;
    };
    if (!given->is_array() || std::ssize(*given) != num_rows) return wrong();
    std::size_t width = 0;
    for (const Json& list : *given) {
        if (!list.is_array()) return wrong();
        width = std::max(width, list.size());
    }
    // Repeated ids and -1 cost the engine nothing, but one long row makes all rows as long.
    if (width > 0 && given->size() > kPlacesMax / width) {
        fields.fail(
            kRows,
            fmt::format("at most {} places: the rows times the longest row's length", kPlacesMax)
        );
        return std::nullopt;
    }
    for (const Json& list : *given) {
        Row& row = scores.rows_.emplace_back();
        for (const Json& value : list) {
            const auto id = integer_of(value);
            if (!id || *id < -1 || *id > std::numeric_limits<std::int32_t>::max()) return wrong();
            row.push_back(*id < 0 ? std::nullopt : std::optional(static_cast<TokenId>(*id)));
            if (*id >= 0) scores.ids_.push_back(static_cast<TokenId>(*id));
        }
    }
    std::ranges::sort(scores.ids_);
    scores.ids_.erase(std::unique(scores.ids_.begin(), scores.ids_.end()), scores.ids_.end());
    if (scores.ids_.size() > num_ids_max) {
        fields.fail(kRows, fmt::format("lists of at most {} different token ids", num_ids_max));
        return std::nullopt;
    }
    return scores;
}

void CandidateScores::request(messages::LogprobOptions& asked) {
    if (!asked.prompt_start) asked.prompt_start = start_ + 1;
    asked.enabled = true;
    first_id_ = asked.ids.size();
    asked.ids.insert(asked.ids.end(), ids_.begin(), ids_.end());
    num_requested_ = asked.ids.size();
}

void CandidateScores::write(JsonWriter& json, const std::optional<messages::PromptLogprobs>& prompt)
    const {
    static_assert(std::endian::native == std::endian::little);
    const std::int64_t before =
        prompt ? start_ + 1 - prompt->start : 0;  // positions that are scored
    const std::size_t num_wanted =
        (static_cast<std::size_t>(before) + rows_.size()) * num_requested_;
    const bool has_scores = prompt && before >= 0 && prompt->ids_logprobs.size() >= num_wanted;
    if (!rows_.empty() && !has_scores) {
        json.null();
        return;
    }
    std::size_t width = 0;
    for (const Row& row : rows_) width = std::max(width, row.size());
    std::vector<float> matrix(rows_.size() * width, -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const std::size_t position = static_cast<std::size_t>(before) + i;
        for (std::size_t k = 0; k < rows_[i].size(); ++k) {
            if (!rows_[i][k]) continue;
            const auto place = std::ranges::lower_bound(ids_, *rows_[i][k]) - ids_.begin();
            matrix[i * width + k] =
                prompt->ids_logprobs
                    [position * num_requested_ + first_id_ + static_cast<std::size_t>(place)];
        }
    }
    const std::array<std::int64_t, 2> shape{std::ssize(rows_), static_cast<std::int64_t>(width)};
    const std::string header = npy_header("<f4", shape);
    std::string text = "\"";
    append_base64(text, {reinterpret_cast<const std::uint8_t*>(header.data()), header.size()});
    append_base64(
        text, {reinterpret_cast<const std::uint8_t*>(matrix.data()), matrix.size() * sizeof(float)}
    );
    text += '"';
    json.raw(text);
}

}  // namespace pitstop::http
