// A build without xgrammar's sources (launch/xgrammar.txt): every grammar is refused.
#include "base/check.h"
#include "grammar/compiled_grammar.h"
#include "grammar/matcher.h"

#include <string>

namespace pitstop::grammar {

struct SortedVocabulary::Parts {};
struct CompiledGrammar::Parts {};
struct Matcher::State {};

std::string_view why_none() {
    return "this build has no xgrammar: launch/quickstart fetches its sources";
}

Result<std::shared_ptr<const SortedVocabulary>> SortedVocabulary::make(const Vocabulary&) {
    return Error{ErrorCode::kUnsupported, std::string(why_none())};
}

Result<std::shared_ptr<const CompiledGrammar>>
CompiledGrammar::compile(const messages::Grammar&, const SortedVocabulary&) {
    return Error{ErrorCode::kUnsupported, std::string(why_none())};
}

std::int64_t CompiledGrammar::bytes() const { return 0; }

// Never called: compile() returns no grammar.
Matcher::Matcher(const std::shared_ptr<const CompiledGrammar>&, std::shared_ptr<CpuAllowance>) {
    CHECK(false);
}
Matcher::~Matcher() = default;
Matcher::Matcher(const Matcher&) { CHECK(false); }
Matcher& Matcher::operator=(const Matcher&) { return *this; }
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
bool Matcher::accept(std::span<const TokenId>) { return false; }
bool Matcher::accept_each(std::span<const TokenId>, Duration) { return false; }
bool Matcher::replay(std::span<const TokenId>) { return false; }
bool Matcher::has_ended() const { return true; }
bool Matcher::fill_mask(std::span<std::uint32_t>) { return false; }

}  // namespace pitstop::grammar
