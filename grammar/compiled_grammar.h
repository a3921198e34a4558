// A grammar compiled for a vocabulary: for each of its states, the tokens that may come next.
//
// Compiling takes from 1 ms to seconds. A hostile grammar may need any amount of time and memory:
// try each grammar in a separate process first (trial.h).
//
// Thread: any; immutable.
#pragma once

#include "base/result.h"
#include "grammar/vocabulary.h"
#include "messages/grammars.h"

#include <cstdint>
#include <memory>
#include <string_view>

namespace pitstop::grammar {

// Returns why this build compiles no grammars; empty: it compiles them.
[[nodiscard]] std::string_view why_none();

// A vocabulary, sorted for the compiler once.
class SortedVocabulary {
  public:
    // Errors: kUnsupported (why_none()); kFailedPrecondition if no token ends an output.
    static Result<std::shared_ptr<const SortedVocabulary>> make(const Vocabulary& vocabulary);

    struct Parts;
    [[nodiscard]] const Parts& parts() const { return *parts_; }

  private:
    explicit SortedVocabulary(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

    std::shared_ptr<const Parts> parts_;  // shared, so that this header need not define Parts
};

class CompiledGrammar {
  public:
    // Errors: kInvalidArgument, naming the parameter and the problem.
    static Result<std::shared_ptr<const CompiledGrammar>> compile(
        const messages::Grammar& grammar, const SortedVocabulary& vocabulary
    );

    [[nodiscard]] std::int64_t bytes() const;

    struct Parts;
    [[nodiscard]] const Parts& parts() const { return *parts_; }

  private:
    explicit CompiledGrammar(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

    std::shared_ptr<const Parts> parts_;  // shared, so that this header need not define Parts
};

}  // namespace pitstop::grammar
