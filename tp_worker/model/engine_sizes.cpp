#include "tp_worker/model/engine_sizes.h"

#include "base/log.h"
#include "messages/steps.h"
#include "tp_worker/device/host_room.h"

#include <algorithm>
#include <limits>

namespace pitstop::tp_worker {
namespace {

Result<> check_sizes(const EngineOptions& options, const ModelConfig& config) {
    if (options.page_size < 1 || options.page_size > kPageSizeMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "page size {}; accepted are 1 to {}",
            options.page_size,
            kPageSizeMax
        );
    }
    if (options.tokens_per_step_max < 1 ||
        options.tokens_per_step_max > static_cast<std::int64_t>(messages::StepPlan::kTokensMax)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} tokens per step; accepted are 1 to {}",
            options.tokens_per_step_max,
            messages::StepPlan::kTokensMax
        );
    }
    if (options.num_slots < 1 ||
        options.num_slots > static_cast<std::int64_t>(messages::StepPlan::kRowsMax)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} requests at once; accepted are 1 to {}",
            options.num_slots,
            messages::StepPlan::kRowsMax
        );
    }
    if (options.context_len < 0 || options.context_len > config.context_len) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a context of {} tokens; the model has {}",
            options.context_len,
            config.context_len
        );
    }
    if (!(options.mem_fraction > 0 && options.mem_fraction <= 1)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a memory fraction of {}; accepted is a number in (0, 1]",
            options.mem_fraction
        );
    }
    if (!(options.kv_share > 0 && options.kv_share <= 1)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a share of {} for KV; accepted is a number in (0, 1]",
            options.kv_share
        );
    }
    return Ok{};
}

// KV memory that is never written costs the machine nothing.
std::int64_t default_tokens(
    const EngineOptions& options,
    std::int64_t context,
    const RequestBytes& bytes,
    std::int64_t num_checkpoints
) {
    const std::int64_t total = total_host_bytes();
    const std::int64_t tokens = default_kv_tokens({
        .host_bytes = total == std::numeric_limits<std::int64_t>::max() ? 0 : total,
        .share = options.kv_share,
        .token_bytes = bytes.token,
        .states_bytes = (options.num_slots + num_checkpoints) * bytes.state,
        .page_size = options.page_size,
        .num_slots = options.num_slots,
        .context = context,
    });
    spdlog::info(
        "KV of {} tokens, {} bytes on all ranks: at most {} of the machine's {} bytes and at most "
        "the KV of {} requests of {} tokens (--max-total-tokens sets another number)",
        tokens,
        tokens * bytes.token,
        options.kv_share,
        total,
        options.num_slots,
        context
    );
    return tokens;
}

// Returns how many checkpoints of states are kept. KV's share of host memory first holds one state
// per slot; checkpoints get a part of the remaining bytes.
std::int64_t choose_num_checkpoints(const EngineOptions& options, std::int64_t state_bytes) {
    if (state_bytes == 0) return 0;
    if (options.num_checkpoints > 0) return options.num_checkpoints;
    const std::int64_t total = total_host_bytes();
    const std::int64_t host = total == std::numeric_limits<std::int64_t>::max() ? 0 : total;
    const auto share = static_cast<std::int64_t>(options.kv_share * static_cast<double>(host));
    const std::int64_t left = share - options.num_slots * state_bytes;
    return default_num_checkpoints(left, state_bytes, options.num_slots);
}

}  // namespace

std::int64_t default_num_checkpoints(
    std::int64_t left, std::int64_t state_bytes, std::int64_t num_slots
) {
    constexpr std::int64_t kLeast = 8;
    constexpr std::int64_t kPart = 4;
    constexpr std::int64_t kPerSlotMax = 2;
    return std::clamp(left / kPart / state_bytes, kLeast, kLeast + kPerSlotMax * num_slots);
}

std::int64_t default_kv_tokens(const KvFacts& facts) {
    const auto share = std::max<std::int64_t>(
        static_cast<std::int64_t>(facts.share * static_cast<double>(facts.host_bytes)) -
            facts.states_bytes,
        0
    );
    const std::int64_t filled = facts.context < kKvTokensMax / facts.num_slots
                                    ? facts.context * facts.num_slots
                                    : kKvTokensMax;
    const std::int64_t wanted = std::min(share / facts.token_bytes, filled);
    const std::int64_t least = std::max(kLeastKvBytes / facts.token_bytes, facts.page_size);
    return std::min(std::max(wanted, least), kKvTokensMax) / facts.page_size * facts.page_size;
}

Result<ModelSizes> choose_sizes(
    const EngineOptions& options, const ModelConfig& config, bool is_cuda, const RequestBytes& bytes
) {
    RETURN_IF_ERROR(check_sizes(options, config));
    const std::int64_t num_states = options.num_slots + options.num_checkpoints;
    if (const std::int64_t host = total_host_bytes(); !is_cuda && num_states * bytes.state > host) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "the recurrent states of {} requests and {} checkpoints take {} bytes each, and the "
            "machine has {} bytes; lower --max-running-requests or --state-checkpoints",
            options.num_slots,
            options.num_checkpoints,
            bytes.state,
            host
        );
    }
    ModelSizes sizes;
    sizes.num_checkpoints = choose_num_checkpoints(options, bytes.state);
    if (is_cuda) sizes.num_checkpoints = bytes.state > 0 ? options.num_checkpoints : 0;
    if (bytes.state > 0 && !is_cuda)
        sizes.state_drafts_max = std::min(messages::kStateDraftsMax, options.tokens_per_step_max);
    const std::int64_t context = options.context_len > 0 ? options.context_len : config.context_len;
    const bool is_open =
        is_cuda && options.max_total_tokens == 0 && options.load_format == LoadFormat::kAuto;
    std::int64_t tokens = options.max_total_tokens;
    if (tokens == 0 && !is_open)
        tokens = default_tokens(options, context, bytes, sizes.num_checkpoints);
    if (!is_open && (tokens < options.page_size || tokens > kKvTokensMax)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} tokens of KV; accepted are a page ({}) to {}",
            tokens,
            options.page_size,
            kKvTokensMax
        );
    }
    sizes.tokens_max = options.tokens_per_step_max;
    sizes.page_size = options.page_size;
    sizes.num_pages = is_open ? 0 : tokens / options.page_size;
    sizes.num_positions =
        is_open ? context : std::min(context, sizes.num_pages * options.page_size);
    sizes.adapter_rank_max = options.adapter_rank_max;
    const std::int64_t logit_bytes = is_cuda ? kGpuLogitBytesMax : kLogitBytesMax;
    sizes.logit_rows_max =
        std::clamp<std::int64_t>(logit_bytes / (4 * config.vocab_len), 1, kLogitRowsMax);
    return sizes;
}

}  // namespace pitstop::tp_worker
