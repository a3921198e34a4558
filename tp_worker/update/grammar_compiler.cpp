#include "tp_worker/update/grammar_compiler.h"

#include "base/log.h"
#include "messages/codec.h"
#include "text/tokenizer.h"

#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// More than a pass's threads have: steps need every core.
constexpr int kNice = 5;

}  // namespace

GrammarCompiler::GrammarCompiler(Args args) : shared_(std::make_shared<Shared>()) {
    shared_->args = std::move(args);
}

GrammarCompiler::~GrammarCompiler() {
    std::shared_ptr<grammar::Trials> trials;
    const TimePoint deadline = Clock::now() + kPartingMax;
    {
        const MutexLock lock(shared_->mutex);
        shared_->is_over = true;
        shared_->jobs.clear();
    }
    shared_->is_changed.notify_all();
    {
        const MutexLock lock(shared_->opening);
        trials = shared_->trials;
    }
    if (trials) trials->stop();
    shared_->room.close();
    MutexLock lock(shared_->mutex);
    while (shared_->num_threads > 0) {
        if (!shared_->is_changed.wait_until(lock, deadline)) return;
    }
}

void GrammarCompiler::compile(messages::WorkerCompile order) {
    {
        const MutexLock lock(shared_->mutex);
        shared_->jobs.push_back({std::move(order), Clock::now()});
        if (shared_->num_idle < shared_->jobs.size() && shared_->num_threads < kThreads) {
            ++shared_->num_threads;
            std::thread([shared = shared_] { run(shared); }).detach();
        }
    }
    shared_->is_changed.notify_one();
}

void GrammarCompiler::run(const std::shared_ptr<Shared>& shared) {
    const auto thread = static_cast<id_t>(::gettid());
    ::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, thread) + kNice);
    for (;;) {
        std::optional<Job> job;
        {
            MutexLock lock(shared->mutex);
            ++shared->num_idle;
            while (shared->jobs.empty() && !shared->is_over) shared->is_changed.wait(lock);
            --shared->num_idle;
            if (shared->is_over) {
                --shared->num_threads;
                shared->is_changed.notify_all();
                return;
            }
            job = std::move(shared->jobs.front());
            shared->jobs.pop_front();
        }
        finish(*shared, *job, compile_one(*shared, job->order.grammar));
    }
}

// Called under the mutex, so that the functions that it calls still exist.
void GrammarCompiler::finish(Shared& shared, const Job& job, Result<Grammars::Shared> compiled) {
    messages::WorkerCompiled answer;
    answer.id = job.order.id;
    const MutexLock lock(shared.mutex);
    if (shared.is_over) return;
    if (compiled) {
        answer.bytes = (*compiled)->bytes();
        shared.args.add(answer.id, *std::move(compiled));
    } else {
        answer.verdict = compiled.error();
    }
    answer.elapsed_us =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - job.begin).count();
    spdlog::debug(
        "grammar {} ({}, {} bytes): {} in {} us",
        static_cast<std::uint64_t>(answer.id),
        messages::name_of(job.order.grammar.kind),
        job.order.grammar.text.size(),
        answer.verdict.is_done() ? fmt::format("{} bytes", answer.bytes) : answer.verdict.message,
        answer.elapsed_us
    );
    shared.args.answer(encode(answer));
}

Result<Grammars::Shared> GrammarCompiler::compile_one(
    Shared& shared, const messages::Grammar& grammar
) {
    std::shared_ptr<grammar::Trials> trials;
    std::shared_ptr<const grammar::SortedVocabulary> vocabulary;
    {
        // Others wait while the first grammar reads the vocabulary.
        const MutexLock lock(shared.opening);
        RETURN_IF_ERROR(open(shared));
        trials = shared.trials;
        vocabulary = **shared.vocabulary;
    }
    ASSIGN_OR_RETURN(const grammar::Tried tried, trials->run(grammar));
    if (tried.bytes > kBytesMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} is too large: compiled it has {} bytes; at most {} are accepted",
            messages::name_of(grammar.kind),
            tried.bytes,
            kBytesMax
        );
    }
    const grammar::CompileRoom::Share share(shared.room, tried.peak_bytes);
    if (!share.is_held())
        return Error{ErrorCode::kUnavailable, "this process is ending and compiles no grammars"};
    return grammar::CompiledGrammar::compile(grammar, *vocabulary);
}

Result<> GrammarCompiler::open(Shared& shared) {
    if (!shared.vocabulary) {
        const auto tokenizer = text::Tokenizer::load(shared.args.model_dir);
        if (!tokenizer) {
            shared.vocabulary = tokenizer.error();
        } else {
            auto words =
                grammar::Vocabulary::of(**tokenizer, shared.args.vocab_len, shared.args.end_ids);
            shared.trials = std::make_shared<grammar::Trials>(words);
            shared.vocabulary = grammar::SortedVocabulary::make(std::move(words));
        }
    }
    if (!*shared.vocabulary) return shared.vocabulary->error();
    return Ok{};
}

}  // namespace pitstop::tp_worker
