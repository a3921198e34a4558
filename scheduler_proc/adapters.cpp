#include "scheduler_proc/adapters.h"

#include "base/check.h"

#include <fmt/ranges.h>

namespace pitstop::scheduler {

Adapters::Adapters(const SchedulerConfig& config)
    : loaded_max_(config.adapters_max), places_(config.adapter_memory, config.tp) {
    for (const messages::LostAdapter& each : config.lost_adapters)
        lost_.emplace(each.adapter.name, each);
}

messages::LostAdapter Adapters::lost_of(const AdapterUse& use) {
    return {
        .adapter = use.version,
        .path = use.path,
        .config_digest = use.config_digest,
        .pinned = use.is_pinned};
}

std::string Adapters::names() const {
    constexpr std::size_t kShownMax = 16;
    if (serving_.empty()) return "none is loaded";
    std::vector<std::string> shown;
    for (const auto& [name, serving] : serving_) {
        if (shown.size() < kShownMax) shown.push_back(name);
    }
    std::string text = fmt::format("loaded are '{}'", fmt::join(shown, "', '"));
    if (serving_.size() > kShownMax)
        text += fmt::format(" and {} more", serving_.size() - kShownMax);
    return text;
}

std::optional<Error> Adapters::problem_of(const messages::UpdateSpec& spec) const {
    const std::string& name = spec.adapter;
    if (rank_max_ == 0) {
        return Error{
            ErrorCode::kUnsupported,
            "this replica computes no adapters (--load-format null or "
            "--max-adapter-rank 0)"};
    }
    if (auto why = places_.why_full()) return why;
    const auto place = serving_.find(name);
    if ((spec.partial || !spec.base_digest.empty()) && place == serving_.end())
        return not_loaded(name);
    if (!spec.base_digest.empty()) {
        const std::string& digest = residents_.at(place->second.id).use.version.digest;
        if (spec.base_digest != digest) {
            return make_error(
                ErrorCode::kFailedPrecondition,
                "the update needs the version of adapter '{}' with digest {}; the one that serves "
                "has {}",
                name,
                spec.base_digest,
                digest
            );
        }
    }
    if (place != serving_.end() || std::ssize(serving_) < loaded_max_) return std::nullopt;
    return make_error(
        ErrorCode::kResourceExhausted,
        "{} adapters are loaded, the most allowed (--max-adapters): unload one; {}",
        serving_.size(),
        names()
    );
}

Error Adapters::not_loaded(const std::string& name) const {
    const auto place = lost_.find(name);
    if (place == lost_.end())
        return make_error(ErrorCode::kNotFound, "no adapter '{}' is loaded; {}", name, names());
    const messages::LostAdapter& lost = place->second;
    return make_error(
        ErrorCode::kNotFound,
        "no adapter '{}' is loaded: version {}{} with digest {} is lost; load it again{}",
        name,
        raw(lost.adapter.version),
        lost.adapter.label.empty() ? "" : fmt::format(" ('{}')", lost.adapter.label),
        lost.adapter.digest,
        lost.path.empty() ? "" : fmt::format(" from {}", lost.path)
    );
}

Result<AdapterUse> Adapters::previous(const std::string& name) const {
    const auto place = serving_.find(name);
    if (place == serving_.end()) return not_loaded(name);
    if (auto why = places_.why_full()) return *std::move(why);
    if (place->second.previous) return residents_.at(*place->second.previous).use;
    return make_error(
        ErrorCode::kFailedPrecondition,
        "no previous version of adapter '{}' is retained: nothing was committed since its last "
        "stage began; load that version again",
        name
    );
}

void Adapters::forget_previous(const std::string& name, TurnOutput& out) {
    const auto place = serving_.find(name);
    if (place == serving_.end() || !place->second.previous) return;
    Resident& resident = residents_.at(*std::exchange(place->second.previous, std::nullopt));
    resident.is_retained = false;
    free_unused(resident, out);
}

void Adapters::retire(Resident& resident, TurnOutput& out) {
    resident.is_serving = false;
    all_serving_.erase(resident.use.id);
    places_.unpin(resident.use.id);
    free_unused(resident, out);
}

void Adapters::free_unused(Resident& resident, TurnOutput& out) {
    if (resident.num_requests > 0 || resident.is_serving || resident.is_retained) return;
    const messages::AdapterId id = resident.use.id;
    out.workers.emplace_back(messages::WorkerForget{.adapters = {id}});
    places_.remove(id);
    residents_.erase(id);
}

std::vector<AdapterPlaces::Failure> Adapters::advance(
    TimePoint now, std::set<messages::AdapterId> in_use, TurnOutput& out
) {
    for (const messages::AdapterId id : places_.advance(now, std::move(in_use), out)) {
        if (Counts* counts = counts_of(id)) ++counts->num_evictions;
    }
    std::vector<AdapterPlaces::Failure> failed = places_.take_failed();
    for (const AdapterPlaces::Failure& each : failed) {
        if (each.why.code == ErrorCode::kDataLoss) lose(each.id, out);
    }
    return failed;
}

bool Adapters::record(TimePoint now, const messages::WorkerNotEvicted& answer, TurnOutput& out) {
    if (!places_.record(now, answer, out)) return false;
    Counts* counts = counts_of(answer.id);
    if (counts != nullptr && counts->num_evictions > 0) --counts->num_evictions;
    return true;
}

// The launcher keeps a lost adapter: a restart may find the adapter at its old path.
void Adapters::lose(messages::AdapterId id, TurnOutput& out) {
    const auto found = residents_.find(id);
    if (found == residents_.end() || !found->second.is_serving) return;
    const AdapterUse& use = found->second.use;
    forget_previous(use.version.name, out);
    lost_.insert_or_assign(use.version.name, lost_of(use));
    serving_.erase(use.version.name);
    retire(found->second, out);
}

void Adapters::commit(AdapterUse loaded, TurnOutput& out) {
    CHECK(!residents_.contains(loaded.id));
    const std::string& name = loaded.version.name;
    const messages::AdapterId id = loaded.id;
    forget_previous(name, out);  // a rollback has returned to it
    const auto place = serving_.find(name);
    Serving& serving = serving_[name];
    if (place != serving_.end()) {
        serving.previous = serving.id;
        Resident& replaced = residents_.at(serving.id);
        replaced.is_retained = true;
        retire(replaced, out);
    }
    serving.id = id;
    all_serving_.insert(id);
    Counts& counts = counts_.try_emplace(name, Counts{.since = id}).first->second;
    ++counts.num_loads;
    lost_.erase(name);
    out.adapters.push_back({.name = name, .line = messages::line_of(lost_of(loaded))});
    places_.add(
        id,
        loaded.rank_bytes,
        loaded.is_pinned ? AdapterPlaces::Pinned::kYes : AdapterPlaces::Pinned::kNo
    );
    residents_.emplace(
        id, Resident{.use = std::move(loaded), .counted_since = counts.since, .is_serving = true}
    );
}

std::optional<messages::AdapterVersion> Adapters::lost_version(const std::string& name) const {
    const auto place = lost_.find(name);
    if (place == lost_.end()) return std::nullopt;
    return place->second.adapter;
}

Result<AdapterUse> Adapters::unload(const std::string& name, TurnOutput& out) {
    counts_.erase(name);
    const auto place = serving_.find(name);
    if (place == serving_.end()) {
        Error error = not_loaded(name);
        if (lost_.erase(name) > 0) out.adapters.push_back({.name = name});
        return error;
    }
    forget_previous(name, out);
    Resident& resident = residents_.at(place->second.id);
    AdapterUse use = resident.use;
    serving_.erase(place);
    out.adapters.push_back({.name = name});
    retire(resident, out);
    return use;
}

Result<AdapterUse> Adapters::take(const std::string& name) {
    const auto place = serving_.find(name);
    if (place == serving_.end()) return not_loaded(name);
    Resident& resident = residents_.at(place->second.id);
    ++resident.num_requests;
    ++counts_.at(name).num_requests;
    return resident.use;
}

std::optional<messages::AdapterId> Adapters::serving(const std::string& name) const {
    const auto place = serving_.find(name);
    if (place == serving_.end()) return std::nullopt;
    return place->second.id;
}

AdapterUse Adapters::move(messages::AdapterId from, TurnOutput& out) {
    Resident& newer = residents_.at(serving_.at(residents_.at(from).use.version.name).id);
    ++newer.num_requests;
    give_back(from, out);
    return newer.use;
}

void Adapters::give_back(messages::AdapterId id, TurnOutput& out) {
    Resident& resident = residents_.at(id);
    CHECK(resident.num_requests > 0);
    --resident.num_requests;
    free_unused(resident, out);
}

void Adapters::count_token(messages::AdapterId id) {
    if (Counts* counts = counts_of(id)) ++counts->num_output_tokens;
}

Adapters::Counts* Adapters::counts_of(messages::AdapterId id) {
    const Resident& resident = residents_.at(id);
    const auto place = counts_.find(resident.use.version.name);
    const bool is_counted = place != counts_.end() && place->second.since == resident.counted_since;
    return is_counted ? &place->second : nullptr;
}

std::int64_t Adapters::num_requests(messages::AdapterId id) const {
    const auto place = residents_.find(id);
    return place == residents_.end() ? 0 : place->second.num_requests;
}

std::vector<messages::AdapterStatus> Adapters::status() const {
    std::vector<messages::AdapterStatus> all;
    for (const auto& [name, serving] : serving_) {
        const Resident& resident = residents_.at(serving.id);
        const Counts& counts = counts_.at(name);
        all.push_back(
            {.adapter = resident.use.version,
             .path = resident.use.path,
             .num_requests = resident.num_requests,
             .loads_total = counts.num_loads,
             .requests_total = counts.num_requests,
             .output_tokens_total = counts.num_output_tokens,
             .pinned = resident.use.is_pinned,
             .evicted = !places_.is_resident(serving.id),
             .evictions_total = counts.num_evictions,
             .config_digest = resident.use.config_digest}
        );
        if (serving.previous) all.back().previous = residents_.at(*serving.previous).use.version;
        for (const auto& [id, each] : residents_) {
            if (each.use.version.name != name) continue;
            if (places_.is_resident(id)) all.back().bytes += each.use.bytes;
            if (id != serving.id) all.back().num_older += each.num_requests;
        }
    }
    return all;
}

std::vector<messages::LostAdapter> Adapters::lost() const {
    std::vector<messages::LostAdapter> all;
    for (const auto& [name, lost] : lost_) all.push_back(lost);
    return all;
}

std::optional<std::string> Adapters::audit(
    const std::map<messages::AdapterId, std::int64_t>& num_open
) const {
    for (const auto& [id, num] : num_open) {
        if (num_requests(id) != num)
            return fmt::format(
                "adapter {}: {} requests are open, {} are counted",
                static_cast<std::uint64_t>(id),
                num,
                num_requests(id)
            );
    }
    for (const auto& [name, serving] : serving_) {
        if (all_serving_.contains(serving.id)) continue;
        return fmt::format("adapter '{}' serves, and is not among those that do", name);
    }
    if (all_serving_.size() != serving_.size())
        return fmt::format(
            "{} versions of {} adapters serve", all_serving_.size(), serving_.size()
        );
    for (const auto& [name, counts] : counts_) {
        if (serving_.contains(name) || lost_.contains(name)) continue;
        return fmt::format("adapter '{}' has counts, but is neither loaded nor lost", name);
    }
    for (const auto& [id, resident] : residents_) {
        if (resident.num_requests > 0 && !num_open.contains(id))
            return fmt::format(
                "adapter {}: {} requests are counted, none is open",
                static_cast<std::uint64_t>(id),
                resident.num_requests
            );
        if (resident.num_requests == 0 && !resident.is_serving && !resident.is_retained)
            return fmt::format(
                "adapter {}: no request uses it, but it is resident", static_cast<std::uint64_t>(id)
            );
    }
    return std::nullopt;
}

}  // namespace pitstop::scheduler
