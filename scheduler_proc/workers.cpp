#include "scheduler_proc/workers.h"

#include "base/check.h"
#include "messages/version_digest.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

// Returns the first field that must be the same on two ranks but differs, or nothing.
std::optional<std::string> difference(
    const messages::WorkerHello& a, const messages::WorkerHello& b
) {
    const auto differ = [&](std::string_view field, const auto& x, const auto& y) {
        return fmt::format(
            "rank {} has {} {}, rank {} has {}", raw(a.rank), field, x, raw(b.rank), y
        );
    };
    if (a.model_type != b.model_type) return differ("model_type", a.model_type, b.model_type);
    if (a.context_len != b.context_len) return differ("context_len", a.context_len, b.context_len);
    if (a.vocab_size != b.vocab_size) return differ("vocab_size", a.vocab_size, b.vocab_size);
    if (a.compute != b.compute) return differ("compute", a.compute, b.compute);
    if (a.ep != b.ep) return differ("ep", a.ep, b.ep);
    if (a.has_weights != b.has_weights) return differ("has_weights", a.has_weights, b.has_weights);
    if (a.routes != b.routes || a.dense_layers != b.dense_layers)
        return fmt::format("ranks {} and {} differ in their routes", raw(a.rank), raw(b.rank));
    if ((a.state_bytes > 0) != (b.state_bytes > 0))
        return differ("state_bytes", a.state_bytes, b.state_bytes);
    if (a.eos_ids != b.eos_ids) return differ("num_eos_ids", a.eos_ids.size(), b.eos_ids.size());
    return std::nullopt;
}

}  // namespace

bool Workers::has(Rank rank) const {
    return hellos_.at(static_cast<std::size_t>(raw(rank))).has_value();
}

bool Workers::is_complete() const {
    return std::ranges::all_of(hellos_, [](const auto& hello) { return hello.has_value(); });
}

std::string Workers::who_is_missing() const {
    std::string names;
    for (std::size_t rank = 0; rank < hellos_.size(); ++rank) {
        if (!hellos_[rank]) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", rank);
    }
    return names;
}

Result<> Workers::handle_hello(messages::WorkerHello hello, std::int64_t page_size) {
    CHECK(!has(hello.rank));
    if (hello.tp != tp()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "rank {} is one of {} ranks; this scheduler has {} (--tp)",
            raw(hello.rank),
            hello.tp,
            tp()
        );
    }
    if (hello.page_size != page_size) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "rank {} has pages of {} tokens; this scheduler has {} (--page-size)",
            raw(hello.rank),
            hello.page_size,
            page_size
        );
    }
    for (const auto& other : hellos_) {
        if (!other) continue;
        if (auto text = difference(*other, hello))
            return Error{ErrorCode::kInvalidArgument, "ranks disagree: " + *text};
    }
    const auto at = static_cast<std::size_t>(raw(hello.rank));
    hellos_[at] = std::move(hello);
    return Ok{};
}

ModelLimits Workers::limits() const {
    return {
        .context_len = first().context_len,
        .vocab_size = first().vocab_size,
        .pool_tokens = num_pages() * first().page_size,
        .eos_ids = first().eos_ids,
        .routes = first().routes,
        .dense_layers = first().dense_layers,
        .no_supports = first().no_supports,
    };
}

std::int64_t Workers::num_pages() const {
    std::int64_t num = kPagesMax;
    for (const auto& hello : hellos_) num = std::min(num, hello->num_pages);
    return num;
}

std::int64_t Workers::num_checkpoints() const {
    std::int64_t num = kPagesMax;
    for (const auto& hello : hellos_) num = std::min(num, hello->num_checkpoints);
    return num;
}

std::string Workers::no_grammars() const { return hellos_.front()->no_grammars; }

std::int64_t Workers::drafted_max() const {
    std::int64_t num = messages::kDraftedMax;
    for (const auto& hello : hellos_) num = std::min(num, hello->drafted_max);
    return num;
}

std::int64_t Workers::num_slots() const {
    std::int64_t num = static_cast<std::int64_t>(messages::StepPlan::kRowsMax);
    for (const auto& hello : hellos_) num = std::min(num, hello->num_slots);
    return num;
}

Result<std::string> Workers::digest() const {
    std::vector<messages::RankParts> parts;
    bool is_computed = false;
    for (const auto& hello : hellos_) {
        parts.push_back({hello->rank, hello->digests});
        is_computed = is_computed || !hello->digests.empty();
    }
    if (!is_computed) return std::string();
    ASSIGN_OR_RETURN(const messages::VersionDigest version, messages::version_digest(parts));
    return to_hex(version.digest);
}

std::int64_t Workers::adapter_rank_max() const {
    std::int64_t rank_max = first().adapter_rank_max;
    for (const auto& hello : hellos_) rank_max = std::min(rank_max, hello->adapter_rank_max);
    return rank_max;
}

bool Workers::lend() const {
    return std::ranges::any_of(hellos_, [](const auto& hello) {
        return hello->update_mode == "lend";
    });
}

std::vector<messages::WorkerStatus> Workers::status() const {
    std::vector<messages::WorkerStatus> all;
    for (const auto& hello : hellos_) {
        if (!hello) continue;
        all.push_back({
            .rank = hello->rank,
            .pid = hello->pid,
            .device = hello->device,
            .device_uuid = hello->device_uuid,
            .device_why = hello->device_why,
            .libraries = hello->libraries,
            .weight_bytes = hello->weight_bytes,
            .kv_bytes = hello->kv_bytes,
            .graph_bytes_max = hello->graph_bytes_max,
            .update_mode = hello->update_mode,
            .update_mode_why = hello->update_mode_why,
            .state_bytes = hello->state_bytes,
            .num_checkpoints = hello->num_checkpoints,
            .ep = hello->ep,
        });
    }
    return all;
}

}  // namespace pitstop::scheduler
