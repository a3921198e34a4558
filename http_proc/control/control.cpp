#include "http_proc/control/control.h"

#include "base/utf8.h"
#include "http_proc/format/versions.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace pitstop::http::control {

Task<Result<messages::StatusReply>> status(Exchange& exchange) {
    co_return co_await exchange.tree().call(messages::Status{});
}

bool is_paused(const messages::StatusReply& status) {
    return std::ranges::any_of(status.replicas, [](const messages::ReplicaStatus& replica) {
        return !replica.pause_mode.empty();
    });
}

bool is_released(const messages::StatusReply& status) {
    return std::ranges::any_of(status.replicas, [](const messages::ReplicaStatus& replica) {
        return std::ranges::any_of(replica.memory, [](const messages::TagMemory& memory) {
            return memory.state != messages::MemoryState::kResident;
        });
    });
}

Task<Result<messages::PauseReply>> pause(
    Exchange& exchange, messages::PauseMode mode, double max_pause_s
) {
    messages::PauseGeneration call;
    call.mode = mode;
    call.max_pause_s = max_pause_s;
    Result<messages::PauseReply> reply =
        checked(co_await exchange.tree().call(std::move(call), kTimeout));
    if (!reply || mode != messages::PauseMode::kAbort) co_return reply;
    const Result<messages::AbortReply> aborted = co_await abort_all(exchange);
    if (!aborted) co_return aborted.error();
    if (!reply->parts.empty()) reply->parts.front().num_aborted += num_aborted(*aborted);
    co_return reply;
}

Task<Result<messages::ContinueReply>> go_on(Exchange& exchange) {
    co_return checked(co_await exchange.tree().call(messages::ContinueGeneration{}));
}

void add_update(
    nlohmann::ordered_json& answer, const std::optional<messages::CollectedVersion>& update
) {
    if (!update) return;
    answer["update"] = {
        {"epoch", raw(update->epoch)},
        {"weight_version", version_name(update->epoch, update->label)},
        {"digest", update->digest},
        {"calls", update->calls},
        {"bytes", update->bytes}};
}

Task<Result<messages::FlushReply>> flush(Exchange& exchange, std::chrono::milliseconds wait) {
    messages::FlushCache call;
    call.wait_idle = wait.count() > 0;
    const auto timeout = call.wait_idle ? wait : Client::kCallTimeout;
    co_return checked(co_await exchange.tree().call(std::move(call), timeout));
}

Task<Result<messages::FlushReply>> flush_with_running(Exchange& exchange) {
    messages::FlushCache call;
    call.reset_running = true;
    co_return checked(co_await exchange.tree().call(std::move(call)));
}

Task<Result<messages::AbortReply>> abort(Exchange& exchange, Aborting aborting) {
    Tree& tree = exchange.tree();
    if (aborting.all) aborting.names.clear();
    if (aborting.names.empty() && !aborting.all) co_return messages::AbortReply{.ok = true};
    co_await tree.preparations().over(aborting.names);
    messages::Abort call;
    for (const std::string& name : aborting.names) {
        for (std::string& rid : tree.rids_named(name)) call.rids.push_back(std::move(rid));
    }
    call.all = aborting.all;
    call.message = std::move(aborting.message);
    co_return checked(co_await tree.call(std::move(call)));
}

Task<Result<messages::AbortReply>> abort_all(Exchange& exchange) {
    Aborting aborting;
    aborting.all = true;
    co_return co_await abort(exchange, std::move(aborting));
}

std::int64_t num_aborted(const messages::AbortReply& reply) {
    return std::ranges::count(
        reply.results, messages::AbortOutcome::kAborted, &messages::AbortResult::outcome
    );
}

Task<Result<messages::MemoryReply>> release(
    Exchange& exchange, std::vector<messages::MemoryTag> tags, bool keep_weights
) {
    messages::ReleaseMemory call;
    call.tags = std::move(tags);
    call.keep_weights = keep_weights;
    co_return checked(co_await exchange.tree().call(std::move(call), kTimeout));
}

Task<Result<messages::MemoryReply>> resume(
    Exchange& exchange, std::vector<messages::MemoryTag> tags
) {
    messages::ResumeMemory call;
    call.tags = std::move(tags);
    co_return checked(co_await exchange.tree().call(std::move(call), kTimeout));
}

namespace {

// Returns why the cache could not be cleared after an update, or nothing. Only a pause makes
// requests keep pages for that long.
std::optional<Error> problem_of_clearing(const messages::StatusReply& status) {
    for (const messages::ReplicaStatus& replica : status.replicas) {
        if (replica.pause_mode.empty() || replica.num_running == 0) continue;
        return make_error(
            ErrorCode::kFailedPrecondition,
            "flush_cache is set, but {} requests hold pages (replica {} is paused, {}); nothing "
            "was updated. Set flush_cache=false, or pause with retract",
            replica.num_running,
            raw(replica.replica),
            replica.pause_mode
        );
    }
    return std::nullopt;
}

// Returns whether the update will be only a part of a version (a bucket, or a collected call).
// Parts do not clear the cache.
bool is_part(const DiskUpdate& update, const messages::StatusReply& status) {
    if (update.is_unnamed && status.session && status.session->unnamed) return true;
    return update.partial && update.digest.empty() && (is_paused(status) || is_released(status));
}

messages::KvPolicy policy_for(const messages::StatusReply& status) {
    if (!is_paused(status)) return messages::KvPolicy::kDrain;
    const bool is_retracted =
        std::ranges::any_of(status.replicas, [](const messages::ReplicaStatus& replica) {
            return replica.pause_mode == name_of(messages::PauseMode::kRetract);
        });
    return is_retracted ? messages::KvPolicy::kRecompute : messages::KvPolicy::kKeep;
}

// Returns the directory of the bundled model with that name, otherwise an absolute path.
std::string checkpoint_path(const ServerOptions& options, const std::string& path) {
    std::error_code ignored;
    const bool is_name = path.find('/') == std::string::npos && !options.bundled_models.empty();
    const std::filesystem::path here(path);
    if (is_name && !std::filesystem::is_directory(here, ignored)) {
        const std::filesystem::path bundled = std::filesystem::path(options.bundled_models) / path;
        if (std::filesystem::is_directory(bundled, ignored)) return bundled.string();
    }
    return absolute_path(path);
}

}  // namespace

std::string absolute_path(const std::string& path) {
    std::error_code ignored;
    const std::filesystem::path whole = std::filesystem::absolute(path, ignored);
    return whole.empty() ? path : whole.string();
}

Task<Result<messages::UpdateReply>> update_from_disk(Exchange& exchange, DiskUpdate update) {
    const Result<messages::StatusReply> before = co_await status(exchange);
    if (!before) co_return before.error();
    if (update.clears_cache && !update.aborts_all && !is_part(update, *before)) {
        if (auto problem = problem_of_clearing(*before)) co_return *std::move(problem);
    }
    messages::UpdateWeights call;
    call.unnamed = update.is_unnamed;
    call.update.partial = update.partial;
    if (update.source) {
        call.update.source = *std::move(update.source);
    } else {
        call.update.source.path = checkpoint_path(exchange.server().options(), update.path);
    }
    call.update.label = std::move(update.label);
    call.update.mode = update.mode;
    call.update.digest = std::move(update.digest);
    // The commit aborts running requests; later ones are aborted after it. A refusal aborts none.
    const bool ends_started = update.aborts_all && !is_paused(*before);
    call.update.kv_policy =
        ends_started ? messages::KvPolicy::kAbort : update.kv_policy.value_or(policy_for(*before));
    exchange.set_known_to_tree();
    Result<messages::UpdateReply> reply =
        checked(co_await exchange.tree().call(std::move(call), kTimeout));
    if (reply && update.aborts_all) {
        const Result<messages::AbortReply> aborted = co_await abort_all(exchange);
        if (!aborted) co_return aborted.error();
    }
    if (!reply || !update.clears_cache) co_return reply;
    // The new version does not serve yet. A flush would commit the collected calls before all of
    // them have arrived.
    if (reply->state == messages::UpdateState::kCollecting ||
        reply->state == messages::UpdateState::kOpen)
        co_return reply;
    // A flush may fail because new requests hold pages. By default that is harmless: no request
    // finds prefixes of older versions (P9).
    const Result<messages::FlushReply> flushed = co_await flush(exchange);
    if (!flushed && is_paused(*before)) {
        reply->verdict.message =
            "the weights are in effect, but the cache was not cleared: " + flushed.error().message;
    }
    co_return reply;
}

Result<std::vector<messages::MemoryTag>> tags_named(
    const std::vector<std::string>& names, std::string_view also
) {
    std::vector<messages::MemoryTag> tags;
    for (const std::string& name : names) {
        if (name == "cuda_graph" || name == also) continue;
        const auto known = std::ranges::find_if(
            messages::kAllMemoryTags, [&](messages::MemoryTag tag) { return name_of(tag) == name; }
        );
        if (known == messages::kAllMemoryTags.end()) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "no memory is tagged '{}'; accepted are weights, kv_cache and cuda_graph",
                utf8_prefix(name, 64)
            );
        }
        if (std::ranges::find(tags, *known) == tags.end()) tags.push_back(*known);
    }
    return tags;
}

}  // namespace pitstop::http::control
