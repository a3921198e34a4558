// Compiles grammars for rank 0 while steps run. Each is first tried in a process of its own
// (grammar/trial.h), then compiled in this process, on a thread of low priority.
//
// The vocabulary is read from the model's tokenizer.json when the first grammar arrives: a tree
// without grammars pays nothing.
//
// Thread:  the loop's, which gives orders. Each grammar in progress has one of kThreads threads.
// Bounded: kThreads grammars at once; others wait in the order given. The scheduler orders each
//          grammar of its open requests once, and bounds the memory of compiled ones. Grammars that
//          are compiled in this process use at most kCompilingBytesMax together.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "base/time.h"
#include "grammar/compile_room.h"
#include "grammar/compiled_grammar.h"
#include "grammar/trial.h"
#include "messages/frames.h"
#include "messages/grammar_size.h"
#include "messages/grammars.h"
#include "tp_worker/model/grammars.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

class GrammarCompiler {
  public:
    static constexpr std::size_t kThreads = 8;
    static constexpr std::int64_t kBytesMax = messages::kCompiledGrammarBytesMax;
    // Bounds the memory of all grammars that are compiled in this process at a time: as much as the
    // trial of one may take.
    static constexpr std::int64_t kCompilingBytesMax = grammar::Trials::kMemoryBytes;
    // How long the destructor waits for a grammar that is being compiled in this process.
    static constexpr Duration kPartingMax = std::chrono::seconds(1);

    struct Args {
        std::string model_dir{};  // has tokenizer.json
        std::int64_t vocab_len = 0;
        std::vector<TokenId> end_ids{};
        // Called on any thread, before the answer: adds the compiled grammar.
        std::function<void(messages::GrammarId, Grammars::Shared)> add{};
        std::function<void(messages::Frames)> answer{};  // called on any thread
    };
    explicit GrammarCompiler(Args args);
    // Ends the trials. A thread that still compiles after kPartingMax is left to the process's end.
    ~GrammarCompiler();
    GrammarCompiler(const GrammarCompiler&) = delete;
    GrammarCompiler& operator=(const GrammarCompiler&) = delete;

    // Answers later, by args.answer.
    void compile(messages::WorkerCompile order);

  private:
    struct Job {
        messages::WorkerCompile order{};
        TimePoint begin{};
    };
    // The data that the threads share, for as long as one of them runs.
    struct Shared {
        Args args{};
        Mutex mutex{};
        Condition is_changed{};
        std::deque<Job> jobs GUARDED_BY(mutex){};
        bool is_over GUARDED_BY(mutex) = false;
        std::size_t num_idle GUARDED_BY(mutex) = 0;
        std::size_t num_threads GUARDED_BY(mutex) = 0;
        Mutex opening{};  // held while the vocabulary is read
        std::optional<Result<std::shared_ptr<const grammar::SortedVocabulary>>> vocabulary
            GUARDED_BY(opening){};
        std::shared_ptr<grammar::Trials> trials GUARDED_BY(opening){};
        grammar::CompileRoom room{kCompilingBytesMax};
    };
    static void run(const std::shared_ptr<Shared>& shared);
    static void finish(Shared& shared, const Job& job, Result<Grammars::Shared> compiled);
    [[nodiscard]] static Result<Grammars::Shared> compile_one(
        Shared& shared, const messages::Grammar& grammar
    );
    static Result<> open(Shared& shared) REQUIRES(shared.opening);

    std::shared_ptr<Shared> shared_;  // with the threads
};

}  // namespace pitstop::tp_worker
