// Makes one reply to a caller from the answers of all replicas or ranks: ok if all of them are.
//
// Pure: functions of their arguments.
#pragma once

#include "base/ids.h"
#include "messages/replica_calls.h"
#include "tokenizer_proc/gathered.h"
#include "tokenizer_proc/weight_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

template <class Part>
[[nodiscard]] bool are_all_done(const std::vector<Part>& parts) {
    return std::ranges::all_of(parts, [](const Part& part) { return part.verdict.is_done(); });
}

template <class Part>
[[nodiscard]] std::string who_sent(const Part& part) {
    std::string who = fmt::format("replica {}", raw(part.replica));
    if constexpr (OfRank<Part>) who += fmt::format(" rank {}", raw(part.rank));
    return who;
}

template <class Reply, class Part>
[[nodiscard]] Reply joined_reply(std::vector<Part> parts) {
    Reply reply;
    reply.ok = true;
    for (Part& part : parts) {
        part.call = CallId{};
        std::string& text = reply.verdict.message;
        if (!part.verdict.is_done() && reply.ok) {
            reply.ok = false;
            reply.verdict.code = part.verdict.code;
            text.clear();  // after the first error, only errors are listed
        }
        if (part.verdict.message.empty() || part.verdict.is_done() != reply.ok) continue;
        if (!text.empty()) text += "; ";
        text += who_sent(part) + ": " + part.verdict.message;
    }
    if constexpr (requires { reply.ranks; }) {
        reply.ranks = std::move(parts);
    } else {
        reply.parts = std::move(parts);
    }
    return reply;
}

template <class Part>
[[nodiscard]] auto reply_of(std::vector<Part> parts) {
    return joined_reply<messages::ReplyOf<Part>>(std::move(parts));
}
[[nodiscard]] inline messages::GroupReply reply_of(std::vector<messages::WorkerGrouped> parts) {
    return joined_reply<messages::GroupReply>(std::move(parts));
}
// The call has succeeded if each replica has succeeded now or had nothing to do.
[[nodiscard]] inline auto reply_of(std::vector<messages::MemoryPart> parts) {
    const bool is_any_done = std::ranges::any_of(parts, [](const messages::MemoryPart& part) {
        return part.verdict.is_done();
    });
    for (messages::MemoryPart& part : parts) {
        if (is_any_done && part.was_done) part.verdict.code.reset();
    }
    return joined_reply<messages::ReplyOf<messages::MemoryPart>>(std::move(parts));
}
// The call has succeeded if some replica has unloaded the adapter, and every other one has, too, or
// has given it up as lost.
[[nodiscard]] inline messages::AdapterReply reply_of(std::vector<messages::AdapterPart> parts) {
    const bool is_any_done = std::ranges::any_of(parts, [](const messages::AdapterPart& part) {
        return part.verdict.is_done();
    });
    for (messages::AdapterPart& part : parts) {
        if (!is_any_done || !part.was_lost) continue;
        part.verdict = messages::Verdict::done(fmt::format(
            "had lost version {} with digest {}, and has given it up",
            raw(part.adapter.version),
            part.adapter.digest
        ));
    }
    return joined_reply<messages::AdapterReply>(std::move(parts));
}
// Returns the digests if every rank has computed them, otherwise the first refusal.
[[nodiscard]] inline messages::DigestsReply reply_of(std::vector<messages::WorkerDigests> parts) {
    if (are_all_done(parts)) return merged(parts);
    messages::DigestsReply refusal;
    refusal.epoch = parts.front().epoch;
    refusal.label = std::move(parts.front().label);
    refusal.verdict = parts.front().verdict;
    refusal.verdict.message =
        fmt::format("replica {}: {}", raw(parts.front().replica), parts.front().verdict.message);
    return refusal;
}

}  // namespace pitstop::tokenizer
