#include "tokenizer_proc/outbox.h"

#include "messages/chunks.h"
#include "messages/codec.h"

#include <algorithm>
#include <iterator>

namespace pitstop::tokenizer {
namespace {

std::size_t bytes_of(const messages::Frames& frames) {
    std::size_t num = frames.type.size() + frames.body.size();
    for (const std::string& raw : frames.raw) num += raw.size();
    return num;
}

messages::OutputChunk error_chunk(const std::string& rid, const Error& error) {
    messages::OutputChunk chunk;
    chunk.rid = rid;
    chunk.finish = messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = error,
    };
    return chunk;
}

}  // namespace

void Outbox::reply(messages::Door door, const std::string& peer, messages::Frames frames) {
    const Address address{door, peer};
    const auto place = waiting_.find(address);
    if (place == waiting_.end() || place->second.replies.empty()) {
        const bus::Sent sent = send_(door, peer, frames);
        if (sent == bus::Sent::kSent) return;
        if (sent == bus::Sent::kGone) {
            ++num_dropped_;
            return;
        }
    }
    Waiting& waiting = waiting_[address];
    const std::size_t num_bytes = bytes_of(frames);
    // One is always kept, however large: an answer may be a whole tensor.
    if (!waiting.replies.empty() && waiting.replies_bytes + num_bytes > kRepliesBytesMax) {
        ++num_dropped_;
        return;
    }
    waiting.replies_bytes += num_bytes;
    waiting.replies.push_back(std::move(frames));
}

void Outbox::add(const std::string& peer, messages::OutputChunk chunk) {
    Waiting& waiting = waiting_[{messages::Door::kData, peer}];
    const std::size_t num_bytes = messages::bytes_bound(chunk);
    waiting.chunks_bytes += num_bytes;
    total_bytes_ += num_bytes;
    const auto [place, is_new] = waiting.index.try_emplace(chunk.rid, waiting.chunks.size());
    // An id may be in use again while the end of its last request still waits.
    if (!is_new && !waiting.chunks[place->second].finish) {
        messages::append_chunk(waiting.chunks[place->second], std::move(chunk));
        return;
    }
    place->second = waiting.chunks.size();
    waiting.chunks.push_back(std::move(chunk));
}

void Outbox::flush(TimePoint now) {
    for (auto place = waiting_.begin(); place != waiting_.end();) {
        place =
            send_all(place->first, place->second, now) ? waiting_.erase(place) : std::next(place);
    }
}

bool Outbox::send_all(const Address& address, Waiting& waiting, TimePoint now) {
    bus::Sent sent = send_replies(address, waiting);
    if (sent == bus::Sent::kSent) sent = send_chunks(address, waiting, now);
    if (sent == bus::Sent::kSent) return true;
    const auto& [door, peer] = address;
    if (sent == bus::Sent::kGone) {
        num_dropped_ += static_cast<std::int64_t>(waiting.replies.size());
        forget_chunks(waiting);
        last_sent_.erase(peer);
        if (door == messages::Door::kData) lose(peer, LostHow::kGone);
        return true;
    }
    const bool is_over =
        waiting.chunks_bytes > kBacklogBytesMax ||
        (total_bytes_ > kTotalBytesMax && waiting.chunks_bytes > kMessageBytesMax / 8);
    if (is_over && !waiting.is_slow) {
        waiting.is_slow = true;
        lose(peer, LostHow::kSlow);
    }
    return false;
}

bus::Sent Outbox::send_replies(const Address& address, Waiting& waiting) {
    while (!waiting.replies.empty()) {
        const messages::Frames& frames = waiting.replies.front();
        const bus::Sent sent = send_(address.first, address.second, frames);
        if (sent != bus::Sent::kSent) return sent;
        waiting.replies_bytes -= bytes_of(frames);
        waiting.replies.pop_front();
    }
    return bus::Sent::kSent;
}

bus::Sent Outbox::send_chunks(const Address& address, Waiting& waiting, TimePoint now) {
    while (waiting.head || !waiting.chunks.empty()) {
        if (!waiting.head) encode_head(waiting);
        const bus::Sent sent = send_(address.first, address.second, *waiting.head);
        if (sent != bus::Sent::kSent) return sent;
        last_sent_[address.second] = now;
        waiting.head.reset();
        waiting.head_rids.clear();
    }
    return bus::Sent::kSent;
}

// Makes the first chunks, as many as a message takes and at least one, the head.
void Outbox::encode_head(Waiting& waiting) {
    messages::Outputs outputs;
    std::size_t num_bytes = 0;
    std::size_t num = 0;
    for (messages::OutputChunk& chunk : waiting.chunks) {
        const std::size_t chunk_bytes = messages::bytes_bound(chunk);
        if (num > 0 && num_bytes + chunk_bytes > kMessageBytesMax) break;
        num_bytes += chunk_bytes;
        ++num;
        waiting.head_rids.push_back(chunk.rid);
        outputs.chunks.push_back(std::move(chunk));
    }
    waiting.head = encode(outputs);
    waiting.chunks.erase(
        waiting.chunks.begin(), waiting.chunks.begin() + static_cast<std::ptrdiff_t>(num)
    );
    total_bytes_ -= waiting.chunks_bytes;
    waiting.chunks_bytes = 0;
    waiting.index.clear();
    for (std::size_t i = 0; i < waiting.chunks.size(); ++i) {
        waiting.index.insert_or_assign(waiting.chunks[i].rid, i);
        waiting.chunks_bytes += messages::bytes_bound(waiting.chunks[i]);
    }
    total_bytes_ += waiting.chunks_bytes;
}

void Outbox::forget_chunks(Waiting& waiting) {
    total_bytes_ -= waiting.chunks_bytes;
    waiting.chunks_bytes = 0;
    waiting.chunks.clear();
    waiting.index.clear();
    waiting.head.reset();
    waiting.head_rids.clear();
}

bool Outbox::is_slow(const std::string& peer) const {
    const auto place = waiting_.find({messages::Door::kData, peer});
    return place != waiting_.end() && place->second.is_slow;
}

void Outbox::fail(
    const std::string& peer, const std::vector<std::string>& open, const Error& error
) {
    const auto place = waiting_.find({messages::Door::kData, peer});
    std::vector<std::string> rids = open;
    if (place != waiting_.end()) {
        for (const messages::OutputChunk& chunk : place->second.chunks) rids.push_back(chunk.rid);
        for (const std::string& rid : place->second.head_rids) rids.push_back(rid);
        forget_chunks(place->second);
    }
    std::ranges::sort(rids);
    rids.erase(std::ranges::unique(rids).begin(), rids.end());
    for (const std::string& rid : rids) add(peer, error_chunk(rid, error));
}

void Outbox::probe(const std::vector<std::string>& peers, TimePoint now) {
    std::map<std::string, TimePoint> last_sent;
    for (const std::string& peer : peers) {
        const auto place = last_sent_.find(peer);
        TimePoint time = place == last_sent_.end() ? now : place->second;
        if (now - time >= kProbeAfter) {
            time = now;
            if (send_(messages::Door::kData, peer, encode(messages::Outputs{})) ==
                bus::Sent::kGone) {
                lose(peer, LostHow::kGone);
                continue;
            }
        }
        last_sent.emplace(peer, time);
    }
    last_sent_ = std::move(last_sent);  // those without open requests are forgotten
}

}  // namespace pitstop::tokenizer
