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
    const EngineOptions& options, std::int64_t context, std::int64_t token_bytes_all_ranks
) {
    const std::int64_t total = total_host_bytes();
    const std::int64_t tokens = default_kv_tokens({
        .host_bytes = total == std::numeric_limits<std::int64_t>::max() ? 0 : total,
        .share = options.kv_share,
        .token_bytes = token_bytes_all_ranks,
        .page_size = options.page_size,
        .num_slots = options.num_slots,
        .context = context,
    });
    spdlog::info(
        "KV of {} tokens, {} bytes on all ranks: at most {} of the machine's {} bytes, and what {} "
        "requests of {} tokens fill (--max-total-tokens sets another number)",
        tokens,
        tokens * token_bytes_all_ranks,
        options.kv_share,
        total,
        options.num_slots,
        context
    );
    return tokens;
}

}  // namespace

std::int64_t default_kv_tokens(const KvFacts& facts) {
    const auto share =
        static_cast<std::int64_t>(facts.share * static_cast<double>(facts.host_bytes));
    const std::int64_t filled = facts.context < kKvTokensMax / facts.num_slots
                                    ? facts.context * facts.num_slots
                                    : kKvTokensMax;
    const std::int64_t wanted = std::min(share / facts.token_bytes, filled);
    const std::int64_t least = std::max(kLeastKvBytes / facts.token_bytes, facts.page_size);
    return std::min(std::max(wanted, least), kKvTokensMax) / facts.page_size * facts.page_size;
}

Result<ModelSizes> choose_sizes(
    const EngineOptions& options,
    const ModelConfig& config,
    bool is_cuda,
    std::int64_t token_bytes_all_ranks
) {
    RETURN_IF_ERROR(check_sizes(options, config));
    const std::int64_t context = options.context_len > 0 ? options.context_len : config.context_len;
    const bool is_open =
        is_cuda && options.max_total_tokens == 0 && options.load_format == LoadFormat::kAuto;
    std::int64_t tokens = options.max_total_tokens;
    if (tokens == 0 && !is_open) tokens = default_tokens(options, context, token_bytes_all_ranks);
    if (!is_open && (tokens < options.page_size || tokens > kKvTokensMax)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} tokens of KV; accepted are a page ({}) to {}",
            tokens,
            options.page_size,
            kKvTokensMax
        );
    }
    ModelSizes sizes;
    sizes.tokens_max = options.tokens_per_step_max;
    sizes.page_size = options.page_size;
    sizes.num_pages = is_open ? 0 : tokens / options.page_size;
    sizes.num_positions =
        is_open ? context : std::min(context, sizes.num_pages * options.page_size);
    // No GPU computes adapters.
    if (!is_cuda) sizes.adapter_rank_max = options.adapter_rank_max;
    const std::int64_t logit_bytes = is_cuda ? kGpuLogitBytesMax : kLogitBytesMax;
    sizes.logit_rows_max =
        std::clamp<std::int64_t>(logit_bytes / (4 * config.vocab_len), 1, kLogitRowsMax);
    return sizes;
}

}  // namespace pitstop::tp_worker
