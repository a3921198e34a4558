#include "scheduler_proc/grammars.h"

#include "base/check.h"

namespace pitstop::scheduler {

std::optional<Error> Grammars::problem_of(const messages::SamplingParams& sampling) const {
    const std::optional<messages::Grammar> grammar = messages::grammar_of(sampling);
    if (!grammar) return std::nullopt;
    if (!why_none_.empty()) {
        return make_error(
            ErrorCode::kUnsupported, "{}: {}", messages::name_of(grammar->kind), why_none_
        );
    }
    const auto place = id_of_.find(*grammar);
    if (place == id_of_.end()) return std::nullopt;
    const Entry& entry = all_.at(place->second);
    if (entry.state != State::kFailed) return std::nullopt;
    return entry.why;
}

messages::GrammarId Grammars::take(const messages::Grammar& grammar, TurnOutput& out) {
    const auto place = id_of_.find(grammar);
    if (place != id_of_.end()) {
        Entry& entry = all_.at(place->second);
        CHECK(entry.state != State::kFailed);
        if (entry.num_requests++ == 0 && unused_.erase(entry.unused_at) > 0)
            unused_bytes_ -= entry.bytes;
        return place->second;
    }
    const messages::GrammarId id{++last_id_};
    id_of_.emplace(grammar, id);
    all_.emplace(id, Entry{.grammar = grammar, .num_requests = 1});
    waiting_.insert(id);
    order_waiting(out);
    return id;
}

bool Grammars::has_room() const {
    return held_bytes_ + (num_compiling_ + 1) * messages::kCompiledGrammarBytesMax <= kHeldBytesMax;
}

// Orders the compilations for which there is room. If none is under way, unused grammars make room.
void Grammars::order_waiting(TurnOutput& out) {
    while (!waiting_.empty()) {
        while (!has_room() && num_compiling_ == 0 && !unused_.empty())
            forget(unused_.begin()->second, out);
        if (!has_room()) return;
        const messages::GrammarId id = *waiting_.begin();
        waiting_.erase(waiting_.begin());
        Entry& entry = all_.at(id);
        entry.state = State::kCompiling;
        ++num_compiling_;
        out.workers.emplace_back(messages::WorkerCompile{.id = id, .grammar = entry.grammar});
    }
}

void Grammars::give_back(messages::GrammarId id, TurnOutput& out) {
    Entry& entry = all_.at(id);
    CHECK(entry.num_requests > 0);
    if (--entry.num_requests > 0 || entry.state == State::kCompiling) return;
    if (entry.state == State::kWaiting) {
        waiting_.erase(id);
        id_of_.erase(entry.grammar);
        all_.erase(id);
        return;
    }
    set_unused(id, entry, out);
    order_waiting(out);
}

bool Grammars::record(const messages::WorkerCompiled& answer, TurnOutput& out) {
    const auto place = all_.find(answer.id);
    if (place == all_.end() || place->second.state != State::kCompiling) return false;
    Entry& entry = place->second;
    --num_compiling_;
    entry.state = answer.verdict.is_done() ? State::kCompiled : State::kFailed;
    entry.bytes = answer.bytes;
    held_bytes_ += entry.bytes;
    if (!answer.verdict.is_done()) entry.why = answer.verdict.error();
    if (entry.num_requests == 0) set_unused(answer.id, entry, out);
    order_waiting(out);
    return true;
}

// Forgets a failed grammar unless its text is invalid: another attempt may succeed.
void Grammars::set_unused(messages::GrammarId id, Entry& entry, TurnOutput& out) {
    if (entry.state == State::kFailed && entry.why.code != ErrorCode::kInvalidArgument) {
        held_bytes_ -= entry.bytes;
        id_of_.erase(entry.grammar);
        all_.erase(id);
        return;
    }
    entry.unused_at = ++num_unused_ever_;
    unused_.emplace(entry.unused_at, id);
    unused_bytes_ += entry.bytes;
    while (unused_.size() > kUnusedMax || unused_bytes_ > kUnusedBytesMax)
        forget(unused_.begin()->second, out);
}

void Grammars::forget(messages::GrammarId id, TurnOutput& out) {
    const Entry& entry = all_.at(id);
    unused_.erase(entry.unused_at);
    unused_bytes_ -= entry.bytes;
    held_bytes_ -= entry.bytes;
    if (entry.state == State::kCompiled)
        out.workers.emplace_back(messages::WorkerForget{.grammars = {id}});
    id_of_.erase(entry.grammar);
    all_.erase(id);
}

}  // namespace pitstop::scheduler
