// Grammars, which outputs must match, and the orders to the workers to compile them.
//
// A scheduler numbers the grammars of its requests. Rank 0 draws the tokens that a grammar
// restricts. Rank 0 compiles each grammar once, while steps run; requests with the grammar wait in
// the queue.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/sampling.h"
#include "messages/verdict.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

// Identifies a grammar of one replica, counted from 1.
enum class GrammarId : std::uint64_t {};

enum class GrammarKind : std::uint8_t { kJsonSchema, kRegex, kEbnf, kStructuralTag };
template <>
struct EnumNames<GrammarKind> {
    static constexpr std::array<std::string_view, 4> kNames{
        "json_schema", "regex", "ebnf", "structural_tag"};
};

struct Grammar {
    GrammarKind kind = GrammarKind::kJsonSchema;
    std::string text{};

    template <class F>
    void fields(F&& f) {
        f("kind", kind, "json_schema, regex, ebnf or structural_tag");
        f("text", text, "as in the sampling parameter of that name");
    }
    friend bool operator==(const Grammar&, const Grammar&) = default;
    friend auto operator<=>(const Grammar&, const Grammar&) = default;
};

// Returns the grammar in these parameters, if there is one. REQUIRES: !invalid(params).
[[nodiscard]] std::optional<Grammar> grammar_of(const SamplingParams& params);

struct WorkerCompile {
    static constexpr std::string_view kType = "worker_compile";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker, between two plans: compile this grammar, beside the steps. "
        "Rank 0 answers with `worker_compiled`; the others do nothing.";
    GrammarId id{};
    Grammar grammar{};

    template <class F>
    void fields(F&& f) {
        f("id", id, "its number, in this replica");
        f("grammar", grammar, "what to compile");
    }
};

struct WorkerCompiled {
    static constexpr std::string_view kType = "worker_compiled";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: plans may name the grammar from now on, or why no plan may.";
    Rank rank{};
    GrammarId id{};
    Verdict verdict{};
    std::int64_t bytes = 0;
    std::int64_t elapsed_us = 0;

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "the sender");
        f("id", id, "the order's grammar");
        verdict.fields_in(f, "why it cannot be compiled; absent: it is compiled");
        f("bytes", bytes, "bytes of memory that the compiled grammar takes");
        f("elapsed_us", elapsed_us, "microseconds from the order to this answer");
    }
};

// Returns what is wrong with the message, or nothing.
std::optional<std::string> invalid(const WorkerCompile& message);

}  // namespace pitstop::messages
