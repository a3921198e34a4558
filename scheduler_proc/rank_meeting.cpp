#include "scheduler_proc/rank_meeting.h"

#include "base/check.h"
#include "messages/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace pitstop::scheduler {
namespace {

// Returns the first difference between two lists, as a "NAME=VALUE" from each; empty where a list
// is shorter.
std::pair<std::string, std::string> first_difference(
    const std::vector<std::string>& a, const std::vector<std::string>& b
) {
    const auto at = [](const std::vector<std::string>& list, std::size_t i) {
        return i < list.size() ? list[i] : std::string();
    };
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
        if (at(a, i) != at(b, i)) return {at(a, i), at(b, i)};
    }
    return {};
}

// Describes how the settings of a joining rank differ from those of a rank on the head's machine;
// nothing if they are equal.
std::optional<Error> difference(const messages::RankJoin& join, const messages::RankJoin& measure) {
    if (join.settings == measure.settings) return std::nullopt;
    const auto [there, here] = first_difference(measure.settings, join.settings);
    return make_error(
        ErrorCode::kInvalidArgument,
        "rank {} of node {} was started with {}, rank {} of node {} with {}; all ranks take the "
        "same",
        raw(join.rank),
        join.node,
        here,
        raw(measure.rank),
        measure.node,
        there
    );
}

}  // namespace

RankMeeting::RankMeeting(Args args)
    : args_(std::move(args)), members_(static_cast<std::size_t>(args_.tp)) {
    CHECK(args_.nodes >= 1 && args_.tp % args_.nodes == 0);
}

std::string RankMeeting::name_of(Rank rank) const {
    const auto& member = members_.at(static_cast<std::size_t>(raw(rank)));
    if (args_.nodes == 1) return fmt::format("rank {}", raw(rank));
    const int node = raw(rank) / (args_.tp / args_.nodes);
    if (!member) return fmt::format("rank {} on node {}", raw(rank), node);
    return fmt::format("rank {} on node {} ({})", raw(rank), node, member->said.host);
}

void RankMeeting::report_to(messages::ReplicaStatus& status) const {
    if (args_.nodes == 1) return;
    for (messages::WorkerStatus& worker : status.workers) {
        const auto& member = members_.at(static_cast<std::size_t>(raw(worker.rank)));
        if (!member) continue;
        worker.node = member->said.node;
        worker.host = member->said.host;
        worker.address = member->sender.address;
    }
}

Result<> RankMeeting::check(const Sender& sender, const messages::RankJoin& join) const {
    const auto refuse = [&](ErrorCode code, const std::string& why) {
        return make_error(code, "rank {} of node {}: {}", raw(join.rank), join.node, why);
    };
    if (join.protocol != messages::kProtocolVersion) {
        return refuse(
            ErrorCode::kUnsupported,
            fmt::format(
                "it speaks protocol {}, the head {}", join.protocol, messages::kProtocolVersion
            )
        );
    }
    if (join.build != args_.build) {
        return refuse(
            ErrorCode::kUnsupported,
            fmt::format("it is {}, the head is {}", join.build, args_.build)
        );
    }
    if (join.tp != args_.tp || join.nodes != args_.nodes) {
        return refuse(
            ErrorCode::kInvalidArgument,
            fmt::format(
                "it was started with --tp {} --nodes {}, the head with --tp {} --nodes {}",
                join.tp,
                join.nodes,
                args_.tp,
                args_.nodes
            )
        );
    }
    const int its_node = raw(join.rank) / (args_.tp / args_.nodes);
    if (its_node != join.node)
        return refuse(ErrorCode::kInvalidArgument, fmt::format("it belongs to node {}", its_node));
    if (sender.key.empty() != (join.node == 0)) {
        return refuse(
            ErrorCode::kInvalidArgument,
            sender.key.empty() ? "ranks of other machines connect to the nodes' door"
                               : "node 0 is the head's own machine; accepted is 1 or more"
        );
    }
    RETURN_IF_ERROR(check_place(sender, join));
    return check_settings(join);
}

// Each rank has one place, each sender one rank, and each node one machine.
Result<> RankMeeting::check_place(const Sender& sender, const messages::RankJoin& join) const {
    const auto refuse = [&](const Member& member, std::string_view why) {
        return make_error(
            ErrorCode::kAlreadyExists,
            "rank {} of node {}: {} (pid {} on {}); give each machine a --node-rank of its own",
            raw(join.rank),
            join.node,
            why,
            member.said.pid,
            member.said.host
        );
    };
    for (const auto& member : members_) {
        if (!member) continue;
        if (member->said.rank == join.rank) return refuse(*member, "it has joined already");
        if (member->sender.peer == sender.peer)
            return refuse(*member, fmt::format("it has joined as rank {}", raw(member->said.rank)));
        if (member->said.node == join.node &&
            (member->sender.key != sender.key || member->said.host != join.host))
            return refuse(
                *member, fmt::format("its node is another machine, {}", name_of(member->said.rank))
            );
    }
    return Ok{};
}

// Settings are compared with the head's own ranks, so that one machine with other settings cannot
// keep all others out.
Result<> RankMeeting::check_settings(const messages::RankJoin& join) const {
    for (const auto& member : members_) {
        if (!member || member->said.node != 0) continue;
        if (auto other = difference(join, member->said)) return *std::move(other);
    }
    return Ok{};
}

Result<> RankMeeting::join(const Sender& sender, messages::RankJoin join) {
    Result<> checked = failure_ ? Result<>(*failure_) : check(sender, join);
    messages::RankJoined answer;
    if (!checked) answer.verdict = checked.error();
    letters_.push_back({sender.peer, encode(answer)});
    if (!checked) return checked;
    // The descriptor now belongs to this sender: the earlier owner is gone.
    if (const auto peer = peer_on(sender.connection)) lose(*rank_of(*peer), kConnectionEnded);
    const auto at = static_cast<std::size_t>(raw(join.rank));
    members_[at] = Member{.sender = sender, .said = std::move(join)};
    if (members_[at]->said.node == 0) dismiss_others(members_[at]->said);
    return Ok{};
}

// Dismisses ranks that joined before the head's first rank and have other settings.
void RankMeeting::dismiss_others(const messages::RankJoin& measure) {
    for (auto& member : members_) {
        if (!member || member->said.node == 0) continue;
        std::optional<Error> other = difference(member->said, measure);
        if (!other) continue;
        letters_.push_back({member->sender.peer, encode(messages::RankEnd{.verdict = *other})});
        dismissed_.push_back(*std::move(other));
        member.reset();
    }
}

std::vector<Error> RankMeeting::take_dismissed() { return std::exchange(dismissed_, {}); }

std::optional<Rank> RankMeeting::rank_of(std::string_view peer) const {
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
        if (members_[rank] && members_[rank]->sender.peer == peer) return static_cast<Rank>(rank);
    }
    return std::nullopt;
}

bool RankMeeting::has(Rank rank, std::string_view key) const {
    const auto at = static_cast<std::size_t>(raw(rank));
    return at < members_.size() && members_[at] && members_[at]->sender.key == key;
}

Result<> RankMeeting::bring(const std::string& peer, messages::RankPart part, TimePoint now) {
    const std::optional<Rank> rank = rank_of(peer);
    if (!rank) return Error{ErrorCode::kFailedPrecondition, "a rank_part before its rank_join"};
    Member& member = *members_[static_cast<std::size_t>(raw(*rank))];
    const bool is_twice = member.part.has_value();
    member.patient_until = now + std::chrono::milliseconds(part.limit_ms);
    member.part = std::move(part);
    if (failure_) {
        answer(member, {.meeting = member.part->meeting, .verdict = *failure_});
    } else if (is_twice) {
        fail(make_error(ErrorCode::kInternal, "{} sent two parts for one meeting", name_of(*rank)));
    } else if (auto error = find_out_of_step()) {
        fail(*std::move(error));
    } else {
        finish_if_all_here();
    }
    return Ok{};
}

// Returns an error if ranks are at different operations: they would wait for each other forever.
std::optional<Error> RankMeeting::find_out_of_step() const {
    const Member* first = nullptr;
    for (const auto& member : members_) {
        if (!member || !member->part) continue;
        const messages::RankPart& part = *member->part;
        if (first == nullptr) first = &*member;
        const messages::RankPart& other = *first->part;
        if (part.meeting == meeting_ && part.what == other.what &&
            part.num_bytes == other.num_bytes)
            continue;
        return make_error(
            ErrorCode::kInternal,
            "ranks are out of step: {} is at {} of {} bytes, meeting {}; {} at {} of {} bytes, "
            "meeting {}; this is meeting {}",
            name_of(member->said.rank),
            part.what,
            part.num_bytes,
            part.meeting,
            name_of(first->said.rank),
            other.what,
            other.num_bytes,
            other.meeting,
            meeting_
        );
    }
    return std::nullopt;
}

void RankMeeting::finish_if_all_here() {
    messages::RankMet all{.meeting = meeting_};
    for (const auto& member : members_) {
        if (!member || !member->part) return;
        const std::vector<std::uint8_t>& part = member->part->data.values;
        all.data.values.insert(all.data.values.end(), part.begin(), part.end());
    }
    ++meeting_;
    for (auto& member : members_) answer(*member, all);
}

void RankMeeting::answer(Member& member, const messages::RankMet& parts) {
    member.part.reset();
    if (!member.is_lost) letters_.push_back({member.sender.peer, encode(parts)});
}

void RankMeeting::fail(Error error) {
    if (!failure_) failure_ = std::move(error);
    for (auto& member : members_) {
        if (member && member->part)
            answer(*member, {.meeting = member->part->meeting, .verdict = *failure_});
    }
}

std::optional<TimePoint> RankMeeting::deadline() const {
    std::optional<TimePoint> first;
    for (const auto& member : members_) {
        if (!member || !member->part) continue;
        if (!first || member->patient_until < *first) first = member->patient_until;
    }
    return first;
}

std::string RankMeeting::missing() const {
    std::string names;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
        if (members_[rank] && members_[rank]->part) continue;
        names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(static_cast<Rank>(rank)));
    }
    return names;
}

void RankMeeting::end_late(TimePoint now) {
    for (const auto& member : members_) {
        if (!member || !member->part || member->patient_until > now) continue;
        const messages::RankPart& part = *member->part;
        return fail(make_error(
            ErrorCode::kDeadlineExceeded,
            "{}: {} has not arrived within {} ms",
            part.what,
            missing(),
            part.limit_ms
        ));
    }
}

void RankMeeting::lose(Rank rank, std::string_view why) {
    auto& member = members_.at(static_cast<std::size_t>(raw(rank)));
    if (!member || member->is_lost || is_over_) return;
    const bool is_of_another_machine = !member->sender.key.empty();
    if (is_of_another_machine && !have_met() && !failure_) {
        member.reset();
        return;
    }
    member->is_lost = true;
    Error error = make_error(ErrorCode::kUnavailable, "{} is gone: {}", name_of(rank), why);
    if (is_of_another_machine && !loss_) loss_ = error;
    fail(std::move(error));
}

std::optional<std::string> RankMeeting::peer_on(int connection) const {
    for (const auto& member : members_) {
        if (connection >= 0 && member && !member->is_lost &&
            member->sender.connection == connection)
            return member->sender.peer;
    }
    return std::nullopt;
}

void RankMeeting::end(const messages::Verdict& asked) {
    is_over_ = true;
    // A meeting that failed is reported as the cause, whatever ended the tree afterwards.
    const messages::Verdict verdict =
        asked.is_done() && failure_ ? messages::Verdict(*failure_) : asked;
    for (const auto& member : members_) {
        if (!member || member->is_lost) continue;
        // The launcher tells ranks on its own machine about a regular end. Ranks of other machines
        // get the reason here, before they lose the connection.
        if (verdict.is_done() && member->sender.key.empty()) continue;
        letters_.push_back({member->sender.peer, encode(messages::RankEnd{.verdict = verdict})});
    }
}

std::vector<RankMeeting::Letter> RankMeeting::take_letters() { return std::exchange(letters_, {}); }

}  // namespace pitstop::scheduler
