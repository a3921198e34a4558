// The compiled grammars of a rank, by the numbers that plans use.
//
// Thread:  any. The thread that compiled a grammar adds it, before the scheduler learns of the
//          grammar. The loop looks it up.
// Bounded: by the scheduler, which names the grammars to forget.
#pragma once

#include "base/mutex.h"
#include "grammar/compiled_grammar.h"
#include "messages/grammars.h"

#include <map>
#include <memory>
#include <utility>

namespace pitstop::tp_worker {

class Grammars {
  public:
    using Shared = std::shared_ptr<const grammar::CompiledGrammar>;

    void add(messages::GrammarId id, Shared grammar) {
        const MutexLock lock(mutex_);
        all_[id] = std::move(grammar);
    }
    [[nodiscard]] Shared find(messages::GrammarId id) const {  // null: none
        const MutexLock lock(mutex_);
        const auto place = all_.find(id);
        return place == all_.end() ? nullptr : place->second;
    }
    // Removes the grammar. Slots that still follow it keep it until they are set up again.
    void forget(messages::GrammarId id) {
        const MutexLock lock(mutex_);
        all_.erase(id);
    }

  private:
    mutable Mutex mutex_{};
    std::map<messages::GrammarId, Shared> all_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
