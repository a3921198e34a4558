// The grammars of this replica that open requests use, or that stay compiled in the workers for
// later requests.
//
// A grammar is compiled once for all requests, and stays until kUnusedMax others have replaced it.
// The verdict on a grammar that cannot be compiled is kept in the same manner.
//
// A compilation is ordered only if the workers have room for its result. Until then the grammar's
// requests wait in the queue. Requests whose grammars are compiled need no other grammar to run and
// end, so room returns.
//
// Thread:  the loop thread only.
// Bounded: grammars of open requests; kUnusedMax unused ones, with kUnusedBytesMax bytes in all.
//          All compiled grammars, and those that are being compiled, have kHeldBytesMax bytes.
#pragma once

#include "base/result.h"
#include "messages/grammar_size.h"
#include "messages/grammars.h"
#include "scheduler_proc/turn.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace pitstop::scheduler {

class Grammars {
  public:
    static constexpr std::size_t kUnusedMax = 256;
    static constexpr std::int64_t kUnusedBytesMax = std::int64_t{256} << 20;
    // A grammar that is being compiled counts kCompiledGrammarBytesMax.
    static constexpr std::int64_t kHeldBytesMax = std::int64_t{2} << 30;

    // `why_none`: why the workers compile no grammar; empty: they compile grammars.
    void open(std::string why_none) { why_none_ = std::move(why_none); }

    // Returns why a request with these parameters is refused, or nothing. Only a grammar that is
    // known to be bad is refused.
    [[nodiscard]] std::optional<Error> problem_of(const messages::SamplingParams& sampling) const;

    // Counts a request that uses this grammar. If the grammar is not compiled, orders a compilation
    // now, or when there is room.
    // REQUIRES: !problem_of() of the request's parameters.
    [[nodiscard]] messages::GrammarId take(const messages::Grammar& grammar, TurnOutput& out);
    // Called when a request with the grammar has ended.
    void give_back(messages::GrammarId id, TurnOutput& out);
    [[nodiscard]] bool is_compiled(messages::GrammarId id) const {
        return all_.at(id).state == State::kCompiled;
    }
    // Records the workers' answer. Returns false if no such compilation was ordered.
    bool record(const messages::WorkerCompiled& answer, TurnOutput& out);

    [[nodiscard]] std::int64_t num_compiling() const { return num_compiling_; }

  private:
    enum class State { kWaiting, kCompiling, kCompiled, kFailed };
    struct Entry {
        messages::Grammar grammar{};
        State state = State::kWaiting;
        std::int64_t num_requests = 0;
        std::int64_t bytes = 0;
        Error why{};                  // kFailed
        std::uint64_t unused_at = 0;  // num_unused_ever_ when its last request ended
    };
    [[nodiscard]] bool has_room() const;
    void order_waiting(TurnOutput& out);
    void set_unused(messages::GrammarId id, Entry& entry, TurnOutput& out);
    void forget(messages::GrammarId id, TurnOutput& out);

    std::string why_none_{};
    std::uint64_t last_id_ = 0;
    std::uint64_t num_unused_ever_ = 0;
    std::int64_t num_compiling_ = 0;
    std::int64_t unused_bytes_ = 0;
    std::int64_t held_bytes_ = 0;  // of compiled grammars, used and unused
    std::map<messages::GrammarId, Entry> all_{};
    std::map<messages::Grammar, messages::GrammarId> id_of_{};
    std::set<messages::GrammarId> waiting_{};  // kWaiting, the oldest first
    // By unused_at; they are compiled or failed.
    std::map<std::uint64_t, messages::GrammarId> unused_{};
};

}  // namespace pitstop::scheduler
