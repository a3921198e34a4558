#include "tokenizer_proc/text_call_table.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

Result<> TextCallTable::add(JobId job, TextCall call) {
    if (calls_.size() >= kCallsMax) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} tokenize calls are open, the most allowed; wait for an answer",
            kCallsMax
        );
    }
    jobs_of_[call.peer].emplace(call.call, job);
    calls_.emplace(job, std::move(call));
    return Ok{};
}

std::optional<TextCall> TextCallTable::remove(JobId job) {
    const auto place = calls_.find(job);
    if (place == calls_.end()) return std::nullopt;
    TextCall call = std::move(place->second);
    calls_.erase(place);
    const auto of_peer = jobs_of_.find(call.peer);
    const auto [first, last] = of_peer->second.equal_range(call.call);
    of_peer->second.erase(std::find_if(first, last, [&](const auto& entry) {
        return entry.second == job;
    }));
    if (of_peer->second.empty()) jobs_of_.erase(of_peer);
    return call;
}

std::vector<JobId> TextCallTable::remove_all(const std::string& peer) {
    std::vector<JobId> jobs;
    const auto of_peer = jobs_of_.find(peer);
    if (of_peer == jobs_of_.end()) return jobs;
    for (const auto& [call, job] : of_peer->second) {
        jobs.push_back(job);
        calls_.erase(job);
    }
    jobs_of_.erase(of_peer);
    return jobs;
}

std::vector<std::pair<JobId, TextCall>> TextCallTable::remove_some(
    const std::string& peer, const std::vector<CallId>& calls
) {
    std::vector<std::pair<JobId, TextCall>> removed;
    const auto of_peer = jobs_of_.find(peer);
    if (of_peer == jobs_of_.end()) return removed;
    std::vector<JobId> jobs;
    for (const CallId call : calls) {
        const auto found = of_peer->second.find(call);
        if (found != of_peer->second.end()) jobs.push_back(found->second);
    }
    std::ranges::sort(jobs);
    jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
    for (const JobId job : jobs) removed.emplace_back(job, *remove(job));
    return removed;
}

std::vector<TextCall> TextCallTable::remove_all() {
    jobs_of_.clear();
    std::vector<TextCall> calls;
    for (auto& [job, call] : std::exchange(calls_, {})) calls.push_back(std::move(call));
    return calls;
}

std::vector<std::string> TextCallTable::peers() const {
    std::vector<std::string> all;
    for (const auto& [peer, jobs] : jobs_of_) all.push_back(peer);
    return all;
}

}  // namespace pitstop::tokenizer
