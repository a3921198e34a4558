#include "messages/steps.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::messages {
namespace {

// Positions are int32 in the kernels. Within this limit, the sum of a plan's position and a length
// cannot overflow.
constexpr std::int64_t kPositionsMax = (std::int64_t{1} << 31) - 1;

// Returns which counts of the row contradict each other, or nothing.
std::optional<std::string> problem_of_counts(const PlanRow& row, std::size_t i) {
    if (raw(row.slot) < 0 || row.begin < 0 || row.num_new < 1 || row.num_pages < 1 ||
        row.output_index.value_or(0) < 0) {
        return fmt::format("row {}: a negative or empty range", i);
    }
    if (row.num_scored < 0 || row.num_scored > row.num_new) {
        return fmt::format("row {}: scores {} of its {} positions", i, row.num_scored, row.num_new);
    }
    if (row.num_routed < 0 || row.num_routed > row.num_new) {
        return fmt::format(
            "row {}: reports routes of {} of its {} positions", i, row.num_routed, row.num_new
        );
    }
    if (row.num_brought < 0 || row.num_brought > row.num_new) {
        return fmt::format(
            "row {}: brings routes of {} of its {} positions", i, row.num_brought, row.num_new
        );
    }
    if (row.num_drafted &&
        (*row.num_drafted < 1 || *row.num_drafted > kDraftedMax ||
         *row.num_drafted >= row.num_new || !row.output_index || row.num_scored > 0)) {
        return fmt::format(
            "row {}: {} drafts of {} tokens, {}, {} scored; accepted are 1 to {} drafts after at "
            "least one token, in a row that samples and scores nothing",
            i,
            *row.num_drafted,
            row.num_new,
            row.output_index ? fmt::format("output {}", *row.output_index) : "no output",
            row.num_scored,
            kDraftedMax
        );
    }
    if (row.takes_sampled && row.num_new != 1) {
        return fmt::format("row {}: takes_sampled with {} new tokens", i, row.num_new);
    }
    return std::nullopt;
}

// Returns what is wrong with the checkpoints that the row names, or nothing. REQUIRES: begin +
// num_new does not overflow.
std::optional<std::string> problem_of_checkpoints(const PlanRow& row, std::size_t i) {
    for (const auto& id : {row.state_from, row.save_to}) {
        if (id && raw(*id) < 0)
            return fmt::format("row {}: checkpoint {}; checkpoints count from 0", i, raw(*id));
    }
    if (row.state_from && row.begin == 0)
        return fmt::format("row {}: a checkpoint for the state before the first token", i);
    if (!row.save_to && row.save_at != 0)
        return fmt::format("row {}: save_at is {} without save_to", i, row.save_at);
    if (row.save_to && (row.save_at <= row.begin || row.save_at > row.begin + row.num_new)) {
        return fmt::format(
            "row {}: save_at is {}, not in ({}, {}]",
            i,
            row.save_at,
            row.begin,
            row.begin + row.num_new
        );
    }
    return std::nullopt;
}

// Rows of a plan have no order among each other, so no row may use what another one saves.
std::optional<std::string> problem_of_order(const std::vector<PlanRow>& rows) {
    std::vector<CheckpointId> saved;
    for (const PlanRow& row : rows) {
        if (row.save_to) saved.push_back(*row.save_to);
    }
    if (saved.empty()) return std::nullopt;
    std::ranges::sort(saved);
    if (const auto twice = std::ranges::adjacent_find(saved); twice != saved.end())
        return fmt::format("two rows save to checkpoint {}", raw(*twice));
    for (const PlanRow& row : rows) {
        if (row.state_from && std::ranges::binary_search(saved, *row.state_from)) {
            return fmt::format(
                "rows restore from checkpoint {} and save to it", raw(*row.state_from)
            );
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid(const StepPlan& plan) {
    if (plan.rows.empty()) return "a plan has at least one row";
    if (plan.rows.size() > StepPlan::kRowsMax) {
        return fmt::format(
            "{} rows; at most {} are accepted", plan.rows.size(), StepPlan::kRowsMax
        );
    }
    if (plan.tokens.values.size() > StepPlan::kTokensMax) {
        return fmt::format(
            "{} tokens; at most {} are accepted", plan.tokens.values.size(), StepPlan::kTokensMax
        );
    }
    std::size_t num_tokens = 0;
    std::size_t num_pages = 0;
    std::size_t num_targets = 0;
    std::size_t num_brought = 0;
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const PlanRow& row = plan.rows[i];
        if (auto problem = problem_of_counts(row, i)) return problem;
        // The checks below limit each count by the array that it indexes, so no sum here can
        // overflow.
        if (row.num_new > static_cast<std::int64_t>(StepPlan::kTokensMax) ||
            row.num_pages > kPromptTokensMax) {
            return fmt::format("row {}: too many tokens or pages", i);
        }
        if (row.begin > kPositionsMax - row.num_new) {
            return fmt::format(
                "row {} begins at {}; it ends at {} at most", i, row.begin, kPositionsMax
            );
        }
        const std::int64_t output_max = kPositionsMax - row.num_drafted.value_or(0);
        if (row.output_index.value_or(0) > output_max) {
            return fmt::format(
                "row {}: output_index is {}, at most {}", i, *row.output_index, output_max
            );
        }
        if (auto problem = problem_of_checkpoints(row, i)) return problem;
        num_tokens += static_cast<std::size_t>(row.num_new);
        num_pages += static_cast<std::size_t>(row.num_pages);
        num_targets += static_cast<std::size_t>(row.num_scored);
        num_brought += static_cast<std::size_t>(row.num_brought);
    }
    if (num_tokens != plan.tokens.values.size()) {
        return fmt::format(
            "rows have {} tokens, the plan {}", num_tokens, plan.tokens.values.size()
        );
    }
    if (num_pages != plan.pages.values.size()) {
        return fmt::format("rows have {} pages, the plan {}", num_pages, plan.pages.values.size());
    }
    if (num_targets != plan.targets.values.size()) {
        return fmt::format(
            "rows score {} positions, the plan has {} targets",
            num_targets,
            plan.targets.values.size()
        );
    }
    const std::size_t num_bytes = plan.routes.values.size();
    if (num_brought == 0 ? num_bytes > 0 : num_bytes == 0 || num_bytes % num_brought != 0) {
        return fmt::format(
            "rows have routes of {} positions, the plan {} bytes of them", num_brought, num_bytes
        );
    }
    return problem_of_order(plan.rows);
}

std::optional<std::string> invalid(const WorkerHello& message) {
    if (message.protocol != kProtocolVersion) {
        return fmt::format("protocol {}; this is {}", message.protocol, kProtocolVersion);
    }
    if (message.tp < 1 || raw(message.rank) < 0 || raw(message.rank) >= message.tp) {
        return fmt::format("rank {} of {}", raw(message.rank), message.tp);
    }
    if (message.ep < 1 || message.tp % message.ep != 0)
        return fmt::format("ep is {}; accepted is a divisor of tp {}", message.ep, message.tp);
    if (message.context_len < 1 || message.vocab_size < 1 || message.num_pages < 1 ||
        message.page_size < 1 || message.num_slots < 1) {
        return "context_len, vocab_size, num_pages, page_size and num_slots must be positive";
    }
    if (message.state_bytes < 0 || message.num_checkpoints < 0)
        return "state_bytes and num_checkpoints must not be negative";
    if (message.state_bytes == 0 && message.num_checkpoints > 0)
        return fmt::format("{} checkpoints of a state of 0 bytes", message.num_checkpoints);
    if (message.drafted_max < 0 || message.drafted_max > kDraftedMax)
        return fmt::format(
            "drafted_max is {}; accepted is [0, {}]", message.drafted_max, kDraftedMax
        );
    if (!message.routes) return std::nullopt;
    if (auto problem = invalid(*message.routes)) return problem;
    return invalid_dense_layers(*message.routes, message.dense_layers);
}

}  // namespace pitstop::messages
