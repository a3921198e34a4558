#include "tokenizer_proc/request_table.h"

#include "base/check.h"

#include <utility>

namespace pitstop::tokenizer {

OpenRequest* RequestTable::add(const std::string& peer, const std::string& rid) {
    const auto [place, is_new] = peers_[peer].try_emplace(rid);
    if (!is_new) return nullptr;
    place->second.id = std::exchange(next_id_, next(next_id_));
    place->second.peer = peer;
    place->second.rid = rid;
    ++size_;
    return &place->second;
}

void RequestTable::set_job(OpenRequest& request, JobId job) {
    request.job = job;
    by_job_.emplace(job, &request);
}

void RequestTable::set_key(OpenRequest& request, RequestKey key) {
    if (request.job) by_job_.erase(*request.job);
    request.job.reset();
    request.generate = {};
    request.key = key;
    by_key_.emplace(key, &request);
}

OpenRequest* RequestTable::find(const std::string& peer, const std::string& rid) {
    const auto owner = peers_.find(peer);
    if (owner == peers_.end()) return nullptr;
    const auto place = owner->second.find(rid);
    return place == owner->second.end() ? nullptr : &place->second;
}

OpenRequest* RequestTable::find(RequestKey key) {
    const auto place = by_key_.find(key);
    return place == by_key_.end() ? nullptr : place->second;
}

OpenRequest* RequestTable::find(JobId job) {
    const auto place = by_job_.find(job);
    return place == by_job_.end() ? nullptr : place->second;
}

std::vector<OpenRequest*> RequestTable::with_keys(std::span<const RequestKey> keys) {
    std::vector<OpenRequest*> found;
    for (const RequestKey key : keys)
        if (OpenRequest* const request = find(key)) found.push_back(request);
    return found;
}

std::vector<OpenRequest*> RequestTable::of_peer(const std::string& peer) {
    std::vector<OpenRequest*> found;
    const auto owner = peers_.find(peer);
    if (owner == peers_.end()) return found;
    for (auto& [rid, request] : owner->second) found.push_back(&request);
    return found;
}

std::vector<OpenRequest*> RequestTable::with_rid(const std::string& rid) {
    std::vector<OpenRequest*> found;
    for (auto& [peer, requests] : peers_) {
        if (const auto place = requests.find(rid); place != requests.end()) {
            found.push_back(&place->second);
        }
    }
    return found;
}

std::vector<OpenRequest*> RequestTable::all() {
    std::vector<OpenRequest*> found;
    for (auto& [peer, requests] : peers_) {
        for (auto& [rid, request] : requests) found.push_back(&request);
    }
    return found;
}

std::vector<std::string> RequestTable::peers() const {
    std::vector<std::string> found;
    for (const auto& [peer, requests] : peers_) found.push_back(peer);
    return found;
}

void RequestTable::close(OpenRequest& request) {
    if (request.job) by_job_.erase(*request.job);
    if (request.is_sent()) by_key_.erase(request.key);
    ended_.insert(request.rid);
    ended_order_.push_back(request.rid);
    if (ended_order_.size() > kEndedMax) {
        ended_.erase(ended_.find(ended_order_.front()));
        ended_order_.pop_front();
    }
    const auto owner = peers_.find(request.peer);
    CHECK(owner != peers_.end());
    // a copy, because erase() would destroy the string that the reference names
    const std::string rid = request.rid;
    owner->second.erase(rid);
    if (owner->second.empty()) peers_.erase(owner);
    --size_;
}

}  // namespace pitstop::tokenizer
