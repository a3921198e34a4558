// The compiled grammars of a rank, by the numbers that plans use, and the CPU time that their
// requests may use.
//
// Thread:  any. The thread that compiled a grammar adds it, before the scheduler learns of the
//          grammar. The loop looks it up.
// Bounded: by the scheduler, which names the grammars to forget; kAllowancesMax.
#pragma once

#include "base/ids.h"
#include "base/mutex.h"
#include "grammar/compiled_grammar.h"
#include "grammar/cpu_allowance.h"
#include "messages/grammars.h"

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

namespace pitstop::tp_worker {

class Grammars {
  public:
    using Shared = std::shared_ptr<const grammar::CompiledGrammar>;
    // Many more than the requests that run or wait at once. A retracted request that is older than
    // this many others with grammars gets a new allowance.
    static constexpr std::size_t kAllowancesMax = std::size_t{1} << 16;

    void add(messages::GrammarId id, Shared grammar) {
        const MutexLock lock(mutex_);
        all_[id] = std::move(grammar);
    }
    [[nodiscard]] Shared find(messages::GrammarId id) const {  // null: none
        const MutexLock lock(mutex_);
        const auto place = all_.find(id);
        return place == all_.end() ? nullptr : place->second;
    }
    // Removes the grammar. Slots that followed it keep it until the next plan
    // (set_up_requests() in step_batch.h).
    void forget(messages::GrammarId id) {
        const MutexLock lock(mutex_);
        has_forgotten_ = all_.erase(id) > 0 || has_forgotten_;
    }
    // Returns whether a grammar was forgotten since the last call.
    [[nodiscard]] bool take_forgotten() {
        const MutexLock lock(mutex_);
        return std::exchange(has_forgotten_, false);
    }

    // Returns the allowance of a request: the same whenever it is set up.
    [[nodiscard]] std::shared_ptr<grammar::CpuAllowance> allowance_of(RequestKey key) {
        const MutexLock lock(mutex_);
        auto& kept = allowances_[key];
        if (!kept) kept = std::make_shared<grammar::CpuAllowance>();
        std::shared_ptr<grammar::CpuAllowance> allowance = kept;
        if (allowances_.size() > kAllowancesMax) allowances_.erase(allowances_.begin());
        return allowance;
    }

  private:
    mutable Mutex mutex_{};
    std::map<messages::GrammarId, Shared> all_ GUARDED_BY(mutex_){};
    bool has_forgotten_ GUARDED_BY(mutex_) = false;
    // Shared with the matchers of running requests. Keys grow, so the first request is the oldest.
    std::map<RequestKey, std::shared_ptr<grammar::CpuAllowance>> allowances_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
