#include "client/open_work.h"

#include <utility>

namespace pitstop {

std::vector<std::string> OpenWork::rids() const {
    std::vector<std::string> rids;
    for (const auto& [rid, request] : requests_) rids.push_back(rid);
    return rids;
}

std::vector<CallId> OpenWork::calls_at(messages::Door door) const {
    std::vector<CallId> ids;
    for (const auto& [id, call] : calls_) {
        if (call.what.door == door) ids.push_back(id);
    }
    return ids;
}

void OpenWork::add(const std::string& rid, Request request) {
    const auto deadline = deadlines_.emplace(request.deadline, rid);
    requests_.emplace(rid, Entry<Request>{std::move(request), deadline});
}

void OpenWork::add(CallId id, Call call) {
    const auto deadline = deadlines_.emplace(call.deadline, id);
    calls_.emplace(id, Entry<Call>{std::move(call), deadline});
}

std::shared_ptr<const OpenWork::Sink> OpenWork::take_sink(const messages::OutputChunk& chunk) {
    const auto place = requests_.find(chunk.rid);
    if (place == requests_.end()) return nullptr;
    std::shared_ptr<const Sink> sink = place->second.what.sink;
    if (chunk.finish) {
        deadlines_.erase(place->second.deadline);
        requests_.erase(place);
    }
    return sink;
}

std::optional<OpenWork::OnFrames> OpenWork::take_call(CallId id) {
    const auto place = calls_.find(id);
    if (place == calls_.end()) return std::nullopt;
    OnFrames on_reply = std::move(place->second.what.on_reply);
    deadlines_.erase(place->second.deadline);
    calls_.erase(place);
    return on_reply;
}

bool OpenWork::silence(const std::string& rid, RequestNumber number) {
    const auto place = requests_.find(rid);
    if (place == requests_.end() || place->second.what.number != number) return false;
    place->second.what.sink = std::make_shared<const Sink>([](const messages::OutputChunk&) {});
    return true;
}

std::optional<OpenWork::Id> OpenWork::first_late(TimePoint now) const {
    if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
    return deadlines_.begin()->second;
}

TimePoint OpenWork::first_deadline() const {
    return deadlines_.empty() ? TimePoint::max() : deadlines_.begin()->first;
}

}  // namespace pitstop
