#include "scheduler_proc/update_job.h"

#include "messages/source_reach.h"
#include "messages/version_digest.h"
#include "scheduler_proc/turn.h"

#include <algorithm>
#include <vector>

namespace pitstop::scheduler {

namespace {

constexpr std::size_t kShownMax = 8;  // problems of a rank in a message; its outcome has all

std::string shown(const std::vector<std::string>& problems) {
    const std::size_t num = std::min(problems.size(), kShownMax);
    const auto end = problems.begin() + static_cast<std::ptrdiff_t>(num);
    std::string text = fmt::format("{}", fmt::join(problems.begin(), end, "; "));
    if (problems.size() > num) text += fmt::format("; and {} more", problems.size() - num);
    return text;
}

}  // namespace

Error wrong_order(std::string_view order, messages::UpdateId id, std::string_view why) {
    return make_error(
        ErrorCode::kFailedPrecondition,
        "{} of update {}: {}",
        order,
        static_cast<std::uint64_t>(id),
        why
    );
}

void Beginning::put_into(messages::WorkerStage& order) const {
    order.begins_as = version.id;
    order.rollback = is_rollback;
}

messages::UpdateStage stage_of(const messages::UpdateRollback& order, const AdapterUse& previous) {
    messages::UpdateStage stage{
        .update = order.update, .new_epoch = order.new_epoch, .timeout_ms = order.timeout_ms};
    stage.spec.label = previous.version.label;
    stage.spec.digest = previous.version.digest;
    stage.spec.partial = true;
    stage.spec.allow_nonfinite = true;  // the same tensors were accepted before
    stage.spec.adapter = order.adapter;
    stage.spec.adapter_policy = order.adapter_policy;
    stage.spec.adapter_pinned = previous.is_pinned;
    return stage;
}

UpdateJob::UpdateJob(messages::UpdateId update, Kind update_kind, int tp)
    : id(update), kind(update_kind), round(static_cast<std::size_t>(tp)) {
    ranks.resize(static_cast<std::size_t>(tp));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        ranks[rank].rank = static_cast<Rank>(rank);
    digests.resize(ranks.size());
    config_digests.resize(ranks.size());
}

std::vector<Rank> UpdateJob::silent_ranks() const {
    std::vector<Rank> silent;
    for (const std::size_t rank : round.silent()) silent.push_back(static_cast<Rank>(rank));
    return silent;
}

std::string UpdateJob::names_of_silent_ranks() const {
    std::string names;
    for (const Rank rank : silent_ranks())
        names += fmt::format("{}rank {}", names.empty() ? "" : ", ", raw(rank));
    return names;
}

Error UpdateJob::error_of_votes() const {
    Error error{ErrorCode::kInternal, ""};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const messages::RankOutcome& rank = ranks[i];
        if (!round.has_answered(i) || rank.ok) continue;
        if (error.message.empty()) error.code = rank.code.value_or(ErrorCode::kInternal);
        const bool has_begun = rank.phase != messages::UpdatePhase::kIdle;
        error.message += fmt::format(
            "{}rank {}{}: {}",
            error.message.empty() ? "" : "; ",
            i,
            has_begun ? fmt::format(" in phase {}", name_of(rank.phase)) : "",
            rank.problems.empty() ? std::string("no reason given") : shown(rank.problems)
        );
    }
    return error;
}

const std::string& UpdateJob::resident_name_of(const std::string& name) const {
    const auto other = declared.find(name);
    return other == declared.end() ? name : other->second;
}

Result<std::string> UpdateJob::verified_digest() const {
    std::vector<messages::RankParts> parts;
    bool is_computed = false;
    for (std::size_t rank = 0; rank < digests.size(); ++rank) {
        parts.push_back({static_cast<Rank>(rank), digests[rank]});
        is_computed = is_computed || !digests[rank].empty();
    }
    if (!is_computed) {
        return Error{ErrorCode::kDataLoss, "no rank computed a digest of its weights"};  // P10
    }
    ASSIGN_OR_RETURN(const messages::VersionDigest version, messages::version_digest(parts));
    const std::vector<messages::TensorInfo>& resident = version.tensors;  // in name order
    std::vector<std::string> problems;
    for (const messages::TensorInfo& tensor : spec.manifest) {
        if (tensor.digest.empty()) continue;
        const std::string& name = resident_name_of(tensor.name);
        const auto found =
            std::ranges::lower_bound(resident, name, {}, &messages::TensorInfo::name);
        const bool is_resident = found != resident.end() && found->name == name;
        if (is_resident && found->digest == tensor.digest) continue;
        problems.push_back(
            !is_resident ? fmt::format("{} is declared but not resident", tensor.name)
                         : fmt::format(
                               "{}: the resident tensor's digest is {}; declared is {}",
                               tensor.name,
                               found->digest,
                               tensor.digest
                           )
        );
    }
    if (!problems.empty()) {
        const std::size_t num_listed = std::min(problems.size(), messages::kProblemsMax);
        return make_error(
            ErrorCode::kDataLoss,
            "{} tensors differ from the manifest: {}",
            problems.size(),
            fmt::join(
                problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(num_listed), "; "
            )
        );
    }
    std::string digest_hex = to_hex(version.digest);
    if (!spec.digest.empty() && spec.digest != digest_hex) {
        return make_error(
            ErrorCode::kDataLoss,
            "the resident weights' digest is {}; declared is {}",
            digest_hex,
            spec.digest
        );
    }
    return digest_hex;
}

Result<std::string> UpdateJob::verified_config_digest() const {
    const std::string& first = config_digests.front();
    for (std::size_t rank = 1; rank < config_digests.size(); ++rank) {
        if (config_digests[rank] == first) continue;
        return make_error(
            ErrorCode::kDataLoss,
            "ranks 0 and {} read different configurations of the adapter (adapter_config.json): "
            "digests {} and {}; leave its directory unchanged until the answer",
            rank,
            first,
            config_digests[rank]
        );
    }
    return first;
}

Result<> UpdateJob::verify() {
    ASSIGN_OR_RETURN(digest, verified_digest());
    ASSIGN_OR_RETURN(adapter_config_digest, verified_config_digest());
    digests.clear();  // large, and not needed again
    return Ok{};
}

void UpdateJob::record_steps(const StepTimes::Watched& steps) {
    if (phase() >= messages::UpdatePhase::kPrepared) return;
    outcome.num_steps = steps.num;
    if (steps.num > 0) outcome.step_s = seconds(steps.sum) / static_cast<double>(steps.num);
    outcome.step_s_before = seconds(steps.mean_before);
    outcome.gap_s = seconds(steps.longest);
}

void UpdateJob::record_commit(TimePoint now) {
    outcome.commit_s = seconds(now - commit_ordered);
    for (const messages::RankOutcome& each : ranks)
        outcome.pause_s = std::max(outcome.pause_s, each.commit_s);
    if (standing_since) outcome.pause_s += seconds(commit_ordered - *standing_since);
}

void UpdateJob::record_return(TimePoint now) {
    outcome.commit_s += seconds(now - *committed);
    outcome.pause_s += seconds(now - *committed);
}

messages::ReplicaOutcome UpdateJob::full_outcome() const {
    messages::ReplicaOutcome full = outcome;
    full.ranks = ranks;
    return full;
}

std::optional<AdapterUse> UpdateJob::new_adapter() const {
    if (!is_of_adapter()) return std::nullopt;
    std::int64_t bytes = 0;
    for (const messages::RankOutcome& rank : ranks) bytes += rank.bytes;
    if (beginning) bytes = beginning->version.bytes;  // `ranks` count only the tensors sent
    return AdapterUse{
        .id = static_cast<messages::AdapterId>(static_cast<std::uint64_t>(id)),
        .version = {.name = spec.adapter, .version = new_epoch, .label = label, .digest = digest},
        .path = beginning ? beginning->path() : messages::directory_of(spec.source),
        .config_digest = adapter_config_digest,
        .bytes = bytes,
        .rank_bytes = adapter_bytes,
        .is_pinned = spec.adapter_pinned};
}

}  // namespace pitstop::scheduler
