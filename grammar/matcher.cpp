#include "grammar/matcher.h"

#include "base/check.h"
#include "grammar/compiled_parts.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>
#include <vector>
#include <xgrammar/matcher.h>

namespace pitstop::grammar {
namespace {

Duration cpu_time() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::duration_cast<Duration>(
        std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec)
    );
}

}  // namespace

struct Matcher::State {
    std::shared_ptr<const CompiledGrammar> grammar;
    std::shared_ptr<CpuAllowance> allowance;
    xgrammar::GrammarMatcher matcher;
    bool is_lost = false;    // some token did not match, or the allowance is used up
    bool is_replay = false;  // no call after replay() yet
    std::int64_t num_accepted = 0;
    bool has_mask = false;                     // a mask was made since the last token
    std::vector<std::uint32_t> unused_mask{};  // the mask that apply_bounds() makes and discards
};

namespace {

void fill(xgrammar::GrammarMatcher& matcher, std::span<std::uint32_t> words) {
    std::int64_t shape = std::ssize(words);
    DLTensor tensor{};
    tensor.data = words.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &shape;
    matcher.FillNextTokenBitmask(&tensor);
}

}  // namespace

Matcher::Matcher(
    const std::shared_ptr<const CompiledGrammar>& grammar, std::shared_ptr<CpuAllowance> allowance
)
    : state_(std::make_unique<State>(State{
          .grammar = grammar,
          .allowance = std::move(allowance),
          .matcher = xgrammar::GrammarMatcher(grammar->parts().grammar)})) {}

Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

// Uses no allowance: copying the states takes a small part of the time that making them took.
Matcher::Matcher(const Matcher& other)
    : state_(std::make_unique<State>(State{
          .grammar = other.state_->grammar,
          .allowance = other.state_->allowance,
          .matcher = other.state_->matcher.Fork(),
          .is_lost = other.state_->is_lost,
          .is_replay = other.state_->is_replay,
          .num_accepted = other.state_->num_accepted,
          .has_mask = other.state_->has_mask})) {}

Matcher& Matcher::operator=(const Matcher& other) {
    if (this != &other) *this = Matcher(other);
    return *this;
}

bool Matcher::accept(std::span<const TokenId> ids) {
    const bool needs_masks = state_->grammar->parts().tokens_max.has_value();
    return accept_each(ids, needs_masks ? kCpuPerBroughtMask : kCpuPerBrought);
}

bool Matcher::accept_each(std::span<const TokenId> ids, Duration added) {
    state_->is_replay = false;
    Duration begin = cpu_time();
    for (const TokenId id : ids) {
        if (!state_->has_mask) apply_bounds();
        if (state_->is_lost || !accept_one(id)) return false;
        const Duration end = cpu_time();
        state_->allowance->add(added);
        state_->allowance->use(end - begin);
        state_->is_lost = state_->allowance->is_used_up();
        begin = end;
    }
    return !state_->is_lost;
}

// Bounded: the tokens took no more time when they were drawn, and the allowance bounded that time.
bool Matcher::replay(std::span<const TokenId> ids) {
    state_->is_replay = true;
    for (const TokenId id : ids) {
        if (!state_->has_mask) apply_bounds();
        if (state_->is_lost || !accept_one(id)) return false;
    }
    state_->is_lost = state_->is_lost || state_->allowance->is_used_up();
    return !state_->is_lost;
}

// Applies the grammar's bounds on the tokens of a part, which the library does only when it makes a
// mask. Without a mask after each token, accept() would allow outputs that masks forbid. Fewer
// tokens than the smallest bound cannot exceed any bound, so they need no mask.
void Matcher::apply_bounds() {
    const std::optional<std::int64_t>& bound = state_->grammar->parts().tokens_max;
    if (!bound || state_->num_accepted < *bound || state_->is_lost || has_ended()) return;
    state_->unused_mask.resize(num_mask_words(state_->grammar->parts().vocab_len));
    try {
        fill(state_->matcher, state_->unused_mask);
    } catch (const std::exception&) {
        state_->is_lost = true;
    }
}

// First checks that the id is known, because the library only logs an unknown id. Catches what the
// library throws if it exceeds a limit of its own, for example of recursion.
bool Matcher::accept_one(TokenId id) {
    if (has_ended()) return false;
    const bool is_known = state_->grammar->parts().has_bytes(id) ||
                          std::ranges::binary_search(state_->matcher.GetStopTokenIds(), raw(id));
    try {
        state_->is_lost = !is_known || !state_->matcher.AcceptToken(raw(id));
    } catch (const std::exception&) {
        state_->is_lost = true;
    }
    if (!state_->is_lost) ++state_->num_accepted;
    state_->has_mask = false;
    return !state_->is_lost;
}

bool Matcher::has_ended() const { return state_->matcher.IsTerminated(); }

bool Matcher::fill_mask(std::span<std::uint32_t> words) {
    CHECK(words.size() == num_mask_words(state_->grammar->parts().vocab_len));
    std::ranges::fill(words, 0);
    if (state_->is_lost || has_ended()) return false;
    const Duration begin = cpu_time();
    try {
        fill(state_->matcher, words);
        state_->has_mask = true;
        if (!state_->is_replay) state_->allowance->use(cpu_time() - begin);
        state_->is_lost = state_->allowance->is_used_up();
    } catch (const std::exception&) {
        state_->is_lost = true;
    }
    if (state_->is_lost) {
        std::ranges::fill(words, 0);
        return false;
    }
    return std::ranges::any_of(words, [](std::uint32_t word) { return word != 0; });
}

}  // namespace pitstop::grammar
