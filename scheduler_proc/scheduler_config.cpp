#include "scheduler_proc/scheduler_config.h"

#include "base/digest.h"
#include "base/log.h"
#include "messages/checks.h"
#include "messages/drafts.h"
#include "messages/ranks.h"
#include "messages/steps.h"
#include "messages/weights.h"

#include <charconv>
#include <system_error>

namespace pitstop::scheduler {
namespace {

// Larger values of these flags are mistakes.
constexpr int kTpMax = 1024;
constexpr std::int64_t kPageSizeMax = 4096;
constexpr std::int64_t kAdaptersMax = 4096;
constexpr std::int64_t kAdapterMemoryMax = std::int64_t{1} << 50;
constexpr std::int64_t kSpareTokensMax = std::int64_t{1} << 24;
constexpr std::int64_t kAutoDrafts = 16;  // the most per row
constexpr std::int64_t kDraftMemoryMax = std::int64_t{1} << 40;
constexpr std::int64_t kQueueLenMax = std::int64_t{1} << 24;
constexpr std::int64_t kTokensPerStepMax =
    static_cast<std::int64_t>(messages::StepPlan::kTokensMax - messages::StepPlan::kRowsMax);

std::optional<Error> out_of_range(
    std::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high
) {
    if (value >= low && value <= high) return std::nullopt;
    return make_error(
        ErrorCode::kInvalidArgument, "{} is {}; accepted is [{}, {}]", flag, value, low, high
    );
}

}  // namespace

Result<> set_speculation(std::string_view text, SchedulerConfig& config) {
    config.has_draft_budget = text == "auto";
    config.drafts_max = config.has_draft_budget ? kAutoDrafts : 0;
    if (text == "off" || config.has_draft_budget) return Ok{};
    std::int64_t& num = config.drafts_max;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), num);
    if (error == std::errc{} && end == text.data() + text.size() && num >= 1 &&
        num <= messages::kDraftedMax)
        return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "--speculate is '{}'; accepted are off, auto, and 1 to {} drafts per row",
        printable(text),
        messages::kDraftedMax
    );
}

std::optional<Error> problem_of(const SchedulerConfig& config) {
    if (auto e = out_of_range("--replica", raw(config.replica), 0, kTpMax)) return e;
    if (auto e = out_of_range("--tp", config.tp, 1, kTpMax)) return e;
    if (auto e = out_of_range("--nodes", config.nodes, 1, messages::kNodesMax)) return e;
    if (config.tp % config.nodes != 0) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--tp {} with --nodes {}; --tp must be a multiple of --nodes",
            config.tp,
            config.nodes
        );
    }
    if (auto e = out_of_range("--page-size", config.page_size, 1, kPageSizeMax)) return e;
    if (auto e = out_of_range(
            "--chunked-prefill-size", config.tokens_per_step_max, 1, kTokensPerStepMax
        ))
        return e;
    if (auto e = out_of_range(
            "--max-running-requests", config.running_max, 1, messages::StepPlan::kRowsMax
        ))
        return e;
    if (auto e = out_of_range("--max-adapters", config.adapters_max, 1, kAdaptersMax)) return e;
    if (auto e = out_of_range("--adapter-memory", config.adapter_memory, 0, kAdapterMemoryMax))
        return e;
    if (auto e = out_of_range("--state-checkpoint-tokens", config.spare_tokens, 1, kSpareTokensMax))
        return e;
    if (auto e = out_of_range("--speculate", config.drafts_max, 0, messages::kDraftedMax)) return e;
    if (auto e = out_of_range("--draft-memory", config.draft_memory, 0, kDraftMemoryMax)) return e;
    if (!(config.session_memory >= 0 && config.session_memory <= 1)) {  // also a NaN
        return make_error(
            ErrorCode::kInvalidArgument,
            "--session-memory is {}; accepted is [0, 1]",
            config.session_memory
        );
    }
    if (auto e = out_of_range("--epoch", raw(config.epoch), 1, raw(messages::kEpochMax))) return e;
    if (const auto problem = messages::invalid_label(config.label))
        return Error{ErrorCode::kInvalidArgument, "--" + *problem};
    if (!config.digest.empty() && !digest_from_hex(config.digest)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--digest is '{}'; accepted are 32 lower-case hex digits",
            printable(config.digest)
        );
    }
    return out_of_range("--max-queued-requests", config.queue_len_max, 1, kQueueLenMax);
}

}  // namespace pitstop::scheduler
