#include "tokenizer_proc/outbox.h"

#include "messages/chunks.h"
#include "messages/codec.h"

#include <algorithm>
#include <iterator>
#include <set>

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
    keep_answer(waiting_[{door, peer}], std::move(frames));
}

// Keeps all answers of a turn for a client that reads, and up to kRepliesBytesMax for a client that
// does not.
void Outbox::keep_answer(Waiting& waiting, messages::Frames frames) {
    const std::size_t num_bytes = bytes_of(frames);
    // One answer is always kept, however large: it may be a whole tensor.
    const bool is_over = waiting.replies_bytes + num_bytes > kRepliesBytesMax;
    if (waiting.is_full && !waiting.replies.empty() && is_over) {
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
    // The id may be in use again while the end of its previous request still waits.
    if (!is_new && !waiting.chunks[place->second].finish) {
        messages::append_chunk(waiting.chunks[place->second], std::move(chunk));
        return;
    }
    place->second = waiting.chunks.size();
    waiting.chunks.push_back(std::move(chunk));
}

void Outbox::flush(TimePoint now, std::vector<ToClient>& out) {
    flush_answers(out);
    for (auto& [address, waiting] : waiting_) {
        if (!waiting.head && waiting.chunks.empty()) continue;
        const auto& [door, peer] = address;
        out.push_back({door, peer, take_head(waiting), ToClient::Kind::kOutput});
        last_sent_[peer] = now;
    }
}

void Outbox::flush_answers(std::vector<ToClient>& out) {
    for (auto& [address, waiting] : waiting_) {
        waiting.replies_bytes = 0;
        for (messages::Frames& frames : std::exchange(waiting.replies, {}))
            out.push_back(
                {address.first, address.second, std::move(frames), ToClient::Kind::kAnswer}
            );
    }
}

void Outbox::requeue(std::vector<UnsentToClient> unsent) {
    for (auto& [address, waiting] : waiting_) waiting.is_full = false;
    std::set<Address> gone;
    for (UnsentToClient& each : unsent) {
        ToClient& message = each.message;
        const Address address{message.door, message.peer};
        if (each.why == bus::Sent::kGone) {
            if (message.kind == ToClient::Kind::kAnswer) ++num_dropped_;
            if (message.kind != ToClient::Kind::kAnswer) gone.insert(address);
            continue;
        }
        // the client is connected, but does not read
        if (message.kind == ToClient::Kind::kProbe) continue;
        Waiting& waiting = waiting_[address];
        waiting.is_full = true;
        if (message.kind == ToClient::Kind::kOutput) {
            waiting.head = std::move(message.frames);
        } else {
            keep_answer(waiting, std::move(message.frames));
        }
    }
    for (const Address& address : gone) {
        lost_.push_back({address.second, LostHow::kGone});
        last_sent_.erase(address.second);
        if (const auto place = waiting_.find(address); place != waiting_.end())
            forget_chunks(place->second);
    }
    for (auto place = waiting_.begin(); place != waiting_.end();) {
        Waiting& waiting = place->second;
        if (!waiting.head) waiting.head_rids.clear();  // the previous head was sent
        find_slow(place->first.second, waiting);
        place = waiting.is_empty() ? waiting_.erase(place) : std::next(place);
    }
}

void Outbox::find_slow(const std::string& peer, Waiting& waiting) {
    const bool is_over =
        waiting.chunks_bytes > kBacklogBytesMax ||
        (total_bytes_ > kTotalBytesMax && waiting.chunks_bytes > kMessageBytesMax / 8);
    if (!waiting.is_full || !is_over || waiting.is_slow) return;
    waiting.is_slow = true;
    lost_.push_back({peer, LostHow::kSlow});
}

bool Outbox::has_more() const {
    return std::ranges::any_of(waiting_, [](const auto& entry) {
        return !entry.second.chunks.empty();
    });
}

// Returns the head that could not be sent, or makes a new message of the first chunks: as many as
// fit, at least one.
messages::Frames Outbox::take_head(Waiting& waiting) {
    if (waiting.head) return *std::exchange(waiting.head, std::nullopt);
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
    return encode(outputs);
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
    rids.erase(std::unique(rids.begin(), rids.end()), rids.end());
    for (const std::string& rid : rids) add(peer, error_chunk(rid, error));
}

void Outbox::probe(
    const std::vector<std::string>& peers, TimePoint now, std::vector<ToClient>& out
) {
    std::map<std::string, TimePoint> last_sent;
    for (const std::string& peer : peers) {
        const auto place = last_sent_.find(peer);
        TimePoint time = place == last_sent_.end() ? now : place->second;
        if (now - time >= kProbeAfter) {
            time = now;
            out.push_back(
                {messages::Door::kData, peer, encode(messages::Outputs{}), ToClient::Kind::kProbe}
            );
        }
        last_sent.emplace(peer, time);
    }
    last_sent_ = std::move(last_sent);  // forgets clients without open requests
}

}  // namespace pitstop::tokenizer
