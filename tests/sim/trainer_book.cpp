#include "tests/sim/trainer_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace pitstop::sim {
namespace {

// After a loss that a caller was told of, calls that name no session belong to a new trainer.
constexpr auto kLossQuiet = std::chrono::minutes(5);

bool tells_of_loss(const Error& why) {
    return why.message.find("takes effect") != std::string::npos ||
           why.message.find("take no effect") != std::string::npos;
}

// Returns whether the door refused the call by its fields alone, so that no earlier call was lost.
bool is_of_the_call_alone(const Error& why) {
    return !tells_of_loss(why) &&
           (why.code == ErrorCode::kFailedPrecondition || why.code == ErrorCode::kInvalidArgument ||
            why.code == ErrorCode::kResourceExhausted);
}

}  // namespace

std::string trainer_of(const std::string& bytes) {
    const std::size_t begin = bytes.find('@') + 1;
    return bytes.substr(begin, bytes.rfind('-') - begin);
}

void TrainerBook::acknowledged(TimePoint now, const std::string& bytes, std::uint64_t session) {
    wait_is_over(now);
    ++num_acknowledged;
    if (for_whichever_.contains(bytes) && begun_.contains(session)) return;
    const std::uint64_t named = named_.at(bytes);
    if (named == 0 && all_told_at_ == now) return;
    staged_in_[bytes] = session;
    (named != 0 ? sessions_[named] : unnamed_[trainer_of(bytes)]).insert(bytes);
}

void TrainerBook::refused(TimePoint now, const std::string& trainer, const Error& why) {
    wait_is_over(now);
    if (is_of_the_call_alone(why)) return;
    if (unnamed_.erase(trainer) > 0) ++num_told;
    lacking_.erase(trainer);
    if (tells_of_loss(why)) told_at_[adapter_of(trainer)] = now;
}

void TrainerBook::wait_is_over(TimePoint now) {
    for (auto& [adapter, told_at] : told_at_) {
        if (now >= told_at + kLossQuiet) forget_unnamed(adapter);
        told_at = std::max(told_at, now);
    }
}

void TrainerBook::forget_unnamed(const std::string& adapter) {
    std::erase_if(unnamed_, [&](const auto& entry) { return adapter_of(entry.first) == adapter; });
    std::erase_if(lacking_, [&](const std::string& who) { return adapter_of(who) == adapter; });
}

void TrainerBook::began(
    TimePoint now, std::uint64_t session, bool takes_unnamed, const std::string& adapter
) {
    wait_is_over(now);
    begun_.insert(session);
    // Calls that name no session belong to the session that has begun.
    if (takes_unnamed || told_at_.contains(adapter)) forget_unnamed(adapter);
    told_at_.erase(adapter);
}

void TrainerBook::ordered(const tokenizer::ReplicaOrder& order) {
    if (const auto* finish = std::get_if<messages::UpdateFinish>(&order))
        ending_ = static_cast<std::uint64_t>(finish->update);
    const auto* drop = std::get_if<messages::UpdateDrop>(&order);
    if (drop == nullptr || ending_ != static_cast<std::uint64_t>(drop->update) ||
        !begun_.contains(*ending_))
        return;
    for (auto& [trainer, set] : unnamed_) {
        std::erase_if(set, [&](const std::string& bytes) {
            return staged_in_.at(bytes) == *ending_;
        });
    }
}

void TrainerBook::took_effect(const ModelWorker::Staged& staged, bool is_mending) {
    check_named(staged);
    check_unnamed(staged);
    check_labels(staged);
    std::set<std::string> trainers;
    for (const std::string& bytes : staged.bytes) trainers.insert(trainer_of(bytes));
    if (trainers.size() > 1) ++num_mixed;
    sessions_.erase(static_cast<std::uint64_t>(staged.update));
    // A whole model replaces what was lost; so does the first model of a tree without weights.
    const bool is_begun = begun_.contains(static_cast<std::uint64_t>(staged.update));
    if (is_mending || (staged.is_whole && !staged.bytes.empty() && !is_begun)) forget_unnamed("");
    for (auto& [trainer, set] : unnamed_)
        std::erase_if(set, [&](const std::string& bytes) { return staged.bytes.contains(bytes); });
}

// A label tells trainers apart. The calls of one version name the same label or none, unless all of
// them name the version's session. After a version is published, a single part with its label must
// not become another version.
void TrainerBook::check_labels(const ModelWorker::Staged& staged) {
    const bool is_begun = begun_.contains(static_cast<std::uint64_t>(staged.update));
    const bool are_all_named =
        is_begun &&
        std::ranges::all_of(staged.bytes, [&](const auto& bytes) { return named_.at(bytes) != 0; });
    std::string label;
    for (const std::string& bytes : staged.bytes) {
        const std::string& own = labels_.at(bytes);
        if (are_all_named || own.empty()) continue;
        if (!label.empty() && label != own)
            oracle_.fail(fmt::format(
                "update {} takes effect with calls for '{}' and for '{}' (P2)",
                static_cast<std::uint64_t>(staged.update),
                label,
                own
            ));
        label = own;
    }
    if (staged.is_of_adapter) return;
    if (staged.stands_alone && !label.empty() && label == published_)
        oracle_.fail(
            fmt::format("a part of '{}' stands alone after its version was published (P2)", label)
        );
    const bool is_of_parts = !staged.is_whole && !staged.stands_alone;
    published_ = is_of_parts ? label : "";
}

void TrainerBook::check_named(const ModelWorker::Staged& staged) {
    const auto update = static_cast<std::uint64_t>(staged.update);
    for (const std::string& bytes : staged.bytes) {
        const std::uint64_t session = named_.at(bytes);
        if (session != 0 && session != update)
            return oracle_.fail(fmt::format(
                "'{}' was sent to session {} and takes effect with update {} (P2)",
                bytes,
                session,
                update
            ));
    }
    const auto place = sessions_.find(update);
    if (place == sessions_.end()) return;
    if (!std::ranges::includes(staged.bytes, place->second))
        oracle_.fail(fmt::format("session {} takes effect without a call of it (P2)", update));
    if (place->second.size() > 1) ++num_whole_sets;
}

void TrainerBook::check_unnamed(const ModelWorker::Staged& staged) {
    const auto update = static_cast<std::uint64_t>(staged.update);
    const bool is_begun = begun_.contains(update);
    std::set<std::string> seen;
    for (const std::string& bytes : staged.bytes) {
        if (named_.at(bytes) != 0 || (is_begun && for_whichever_.contains(bytes))) continue;
        const std::string trainer = trainer_of(bytes);
        if (!seen.insert(trainer).second) continue;
        if (!is_begun && !staged.is_whole && lacking_.contains(trainer))
            return oracle_.fail(fmt::format(
                "update {} takes effect without a call of {} that was refused (P2)", update, trainer
            ));
        const auto set = unnamed_.find(trainer);
        if (set == unnamed_.end()) continue;
        if (set->second.size() > 1 && std::ranges::includes(staged.bytes, set->second))
            ++num_whole_sets;
        // A collection that brings every tensor needs no earlier call.
        if (std::ranges::includes(staged.bytes, set->second) || (staged.is_whole && !is_begun))
            continue;
        std::string lost;
        for (const std::string& other : set->second) {
            if (!staged.bytes.contains(other)) lost = other;
        }
        return oracle_.fail(fmt::format(
            "update {} takes effect with '{}' and without '{}', which was answered with ok (P2)",
            update,
            bytes,
            lost
        ));
    }
}

}  // namespace pitstop::sim
