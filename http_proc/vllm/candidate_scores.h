// The candidates that a caller names for each prompt token, and their log-probabilities: vLLM's
// prompt_logprob_token_ids, for distillation from a teacher.
//
// Row i has the candidates for prompt token `start + i + 1`. Rows may differ in length; -1 is no
// candidate. The answer is a matrix of float32, [rows, longest row], as an .npy file in base64;
// where there is no candidate it has -inf.
//
// The engine is asked for all candidates at each prompt token, so a request names at most
// messages::kLogprobIdsMax different ones.
//
// Bounded: a matrix has at most 2^24 places (kPlacesMax), however often a row repeats an id.
#pragma once

#include "http_proc/format/json_body.h"
#include "http_proc/format/json_writer.h"
#include "messages/generation.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace pitstop::http {

class CandidateScores {
  public:
    // Reads `prompt_logprob_token_ids` and `prompt_logprob_start`. Problems go into `fields`.
    // `num_ids_max`: bounds the number of different candidates.
    static std::optional<CandidateScores> read(
        FieldReader& fields, std::int64_t prompt_len, std::size_t num_ids_max
    );

    // Requests the scores, besides what `asked` requests already.
    void request(messages::LogprobOptions& asked);
    // Returns how many of the requested ids, the last ones, are candidates.
    [[nodiscard]] std::size_t num_ids() const { return ids_.size(); }
    // Writes the matrix; null if the prompt was not scored.
    void write(JsonWriter& json, const std::optional<messages::PromptLogprobs>& prompt) const;

  private:
    using Row = std::vector<std::optional<TokenId>>;

    std::int64_t start_ = 0;
    std::vector<Row> rows_{};
    std::vector<TokenId> ids_{};  // the candidates of all rows, each once, ascending
    std::size_t first_id_ = 0;    // index of ids_[0] among the requested ids
    std::size_t num_requested_ = 0;
};

}  // namespace pitstop::http
