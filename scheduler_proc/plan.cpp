// Chooses which rows the next step has.
#include "base/check.h"
#include "scheduler_proc/runner.h"

#include <algorithm>
#include <tuple>

namespace pitstop::scheduler {
namespace {

// A queue full of requests that share a prefix with one being computed, or want more logprobs than
// the step has room for, is passed over for at most so many of them per step, so that a turn stays
// short.
constexpr std::size_t kPassedOverMax = 32;

// Many decodes must not starve prefills for ever: they leave them this share of the step's tokens.
constexpr std::int64_t kPrefillShare = 4;  // a fourth

// A step reports so many top logprobs of wide requests, or those of one position: 16 MiB, sorted on
// the host in about a tenth of a second. Others wait for the next step.
constexpr std::int64_t kWideLogprobsMax = std::int64_t{1} << 21;

}  // namespace

std::optional<messages::StepPlan> Runner::plan_step(Scope scope, const Version& version) {
    if (scope == Scope::kNothing || steps_.is_full()) return std::nullopt;
    if (version.serial != version_.serial) version_ = version;
    drafts_.clear();
    wide_logprobs_ = 0;
    draft_decodes();  // first: a running request never waits for a new one
    const auto num_decodes = static_cast<std::int64_t>(drafts_.size());
    std::int64_t tokens_left = std::max(
        {config_.tokens_per_step_max - num_decodes,
         config_.tokens_per_step_max / kPrefillShare,
         std::int64_t{1}}
    );
    draft_prefills(tokens_left);
    admit(scope, tokens_left);
    if (drafts_.empty()) return std::nullopt;
    return build_plan();
}

// Drafts the rows of one token, eldest first, so that whoever needs a page takes it from a younger
// one.
void Runner::draft_decodes() {
    for (std::size_t i = 0; i < requests_.running().size();
         ++i) {  // shrinks at its end by retractions
        Request& request = *requests_.running()[i];
        if (request.progress.plannable() == 1 && wide_room(request, 1) == 1)
            std::ignore = draft_row(request, 1);
    }
}

void Runner::draft_prefills(std::int64_t& tokens_left) {
    for (std::size_t i = 0; i < requests_.running().size() && tokens_left > 0; ++i) {
        Request& request = *requests_.running()[i];
        if (request.progress.plannable() <= 1) continue;
        const std::int64_t num_new =
            wide_room(request, std::min(request.progress.plannable(), tokens_left));
        if (num_new == 0 || !draft_row(request, num_new)) continue;
        tokens_left -= num_new;
        share_draft(request, num_new);
    }
}

// No younger one's retraction can take this row back any more, so others may build on it.
void Runner::share_draft(Request& request, std::int64_t num_new) {
    const std::int64_t begin = request.progress.planned();
    const std::int64_t end = begin + num_new;
    pool_.stamp(request.lease, begin, end, version_.epoch);
    const auto tokens = std::span(request.tokens).first(static_cast<std::size_t>(end));
    pool_.share(request.lease, tokens, steps_.next_step(), KvPool::Duplicates::kKeep);
}

// Starts waiting requests, in the queue's order, while tokens, pages and slots last.
void Runner::admit(Scope scope, std::int64_t& tokens_left) {
    std::vector<const Request*> passed_over;
    admit_next(scope, tokens_left, passed_over);
    // Each is first again, in the order in which they were.
    while (!passed_over.empty()) {
        requests_.put_back(*passed_over.back());
        passed_over.pop_back();
    }
}

void Runner::admit_next(
    Scope scope, std::int64_t& tokens_left, std::vector<const Request*>& passed_over
) {
    while (tokens_left > 0 && pool_.has_slot()) {
        Request* const first = requests_.first_waiting();
        if (first == nullptr) return;
        Request& request = *first;
        if (scope == Scope::kStarted && !request.was_admitted) return;
        // It was just retracted: its next tokens are still being sampled. Nobody may overtake it to
        // the pages it gave up.
        if (request.progress.pending() > 0) return;
        if (wide_room(request, 1) == 0) {
            if (passed_over.size() == kPassedOverMax) return;
            passed_over.push_back(&request);
            requests_.pop_waiting();
            continue;
        }
        PrefixCache::Match match = pool_.cache().match(
            std::span(request.tokens).first(static_cast<std::size_t>(request.cacheable_len())),
            request.accepted_epochs(version_.epoch),
            steps_.next_step()
        );
        if (match.is_pending) {
            // This very step computes more of its prefix: the next step can share it.
            if (passed_over.size() == kPassedOverMax) return;
            passed_over.push_back(&request);
            requests_.pop_waiting();
            continue;
        }
        std::optional<Lease> lease =
            pool_.start(std::move(match), request.progress.known(), num_pages_claimed());
        if (!lease) return;  // nobody overtakes: the first in the queue would starve
        requests_.pop_waiting();
        start(request, *std::move(lease));
        const std::int64_t num_new =
            wide_room(request, std::min(request.progress.plannable(), tokens_left));
        CHECK(draft_row(request, num_new));
        tokens_left -= num_new;
        share_draft(request, num_new);
    }
}

// Returns how many pages running requests will need next: the rest of their prompts, and one each
// to decode into. A new request that took them would be retracted at once.
std::int64_t Runner::num_pages_claimed() const {
    std::int64_t num = 0;
    for (const Request* request : requests_.running()) {
        const auto held = static_cast<std::int64_t>(request->lease.pages.size());
        num += std::max(pool_.pages_for(request->progress.known()) - held, std::int64_t{0}) + 1;
    }
    return num;
}

void Runner::start(Request& request, Lease lease) {
    const auto num_cached = static_cast<std::int64_t>(lease.pages.size()) * config_.page_size;
    if (!request.was_admitted) {
        request.was_admitted = true;
        request.admitted_at = now_;
        request.cached_tokens = num_cached;
        tallies_.num_prompt_tokens += request.progress.prompt_len();
        tallies_.num_cached_tokens += num_cached;
    } else {
        tallies_.num_recomputed_tokens +=
            std::max<std::int64_t>(request.progress.lost() - num_cached, 0);
    }
    for (const EpochRange& epochs : lease.page_epochs)
        tallies_.count_cache_hit(raw(version_.epoch) - raw(epochs.min), config_.page_size);
    request.progress.start(num_cached);
    requests_.start(request, std::move(lease));
}

// Returns false if there are no pages for it in this step; nothing has changed for it then.
bool Runner::draft_row(Request& request, std::int64_t num_new) {
    if (!reserve_pages(request, request.progress.planned() + num_new)) return false;
    drafts_.push_back({&request, num_new});
    if (request.is_wide())
        wide_logprobs_ += (request.wants_scores() ? num_new : 1) * request.logprobs.top;
    return true;
}

// Returns how many of `num_new` tokens the step has room to report all logprobs of. One position at
// least has room in a step, so somebody always moves.
std::int64_t Runner::wide_room(const Request& request, std::int64_t num_new) const {
    if (!request.is_wide()) return num_new;
    const std::int64_t num_left = (kWideLogprobsMax - wide_logprobs_) / request.logprobs.top;
    const std::int64_t num_reported = std::max<std::int64_t>(num_left, wide_logprobs_ == 0 ? 1 : 0);
    if (!request.wants_scores()) return num_reported > 0 ? num_new : 0;  // its last one alone
    return std::min(num_new, num_reported);
}

// Gives the request pages for its first `num_tokens` positions. What it takes, in this order: free
// pages, cached ones, those of younger requests. The eldest gets what it needs at the latest when
// the steps in flight are done, so somebody always moves.
bool Runner::reserve_pages(Request& request, std::int64_t num_tokens) {
    for (;;) {
        const std::int64_t num_missing = pool_.grow(request.lease, num_tokens);
        if (num_missing == 0) return true;
        if (pool_.num_coming() >= num_missing) return false;
        Request* youngest = requests_.running().back();
        if (youngest == &request) return false;
        retract(*youngest);
    }
}

messages::StepPlan Runner::build_plan() {
    std::ranges::sort(drafts_, {}, [](const Draft& draft) { return draft.request->key; });
    messages::StepPlan plan{.step = steps_.next_step(), .epoch = version_.epoch};
    InFlightStep step{.step = steps_.next_step(), .version = version_, .sent_at = now_};
    plan.rows.reserve(drafts_.size());
    step.rows.reserve(drafts_.size());
    for (const Draft& draft : drafts_) add_row(draft, plan, step);
    drafts_.clear();
    CHECK(!messages::invalid(plan));  // checked here and again by each worker
    steps_.push(std::move(step));
    return plan;
}

void Runner::add_row(const Draft& draft, messages::StepPlan& plan, InFlightStep& step) {
    Request& request = *draft.request;
    const std::int64_t begin = request.progress.planned();
    const std::int64_t end = begin + draft.num_new;
    const bool takes_sampled = request.progress.pending() > 0;
    // A token is sampled after the last one known; or it has all it was asked for, and is scored.
    const bool samples =
        request.progress.may_sample() && (takes_sampled || end == request.progress.known());

    if (request.needs_setup) plan.setups.push_back(request.setup(*request.lease.slot));
    request.needs_setup = false;

    const auto num_pages = static_cast<std::size_t>(pool_.pages_for(end));
    plan.pages.values.insert(
        plan.pages.values.end(),
        request.lease.pages.begin(),
        request.lease.pages.begin() + static_cast<std::ptrdiff_t>(num_pages)
    );
    if (takes_sampled) {
        plan.tokens.values.push_back(TokenId{0});
    } else {
        const auto first = request.tokens.begin() + begin;
        plan.tokens.values.insert(plan.tokens.values.end(), first, first + draft.num_new);
    }

    // Position p is scored against prompt token p + 1. The row's scored positions reach to its end,
    // so the prompt's last one, which has no such token, may come along: its score is left out.
    std::int64_t num_scored = 0;
    const std::int64_t score_begin = std::max(begin, request.score_start() - 1);
    if (request.wants_scores() && request.progress.outputs() == 0 &&
        request.progress.pending() == 0 &&
        score_begin < std::min(end, request.progress.prompt_len() - 1)) {
        num_scored = end - score_begin;
        for (std::int64_t i = score_begin + 1; i <= end; ++i) {
            const bool is_there = i < request.progress.prompt_len();
            plan.targets.values.push_back(
                is_there ? request.tokens[static_cast<std::size_t>(i)] : TokenId{0}
            );
        }
    }

    const std::int64_t output_index = request.progress.outputs() + request.progress.pending();
    plan.rows.push_back({
        .slot = *request.lease.slot,
        .begin = begin,
        .num_new = draft.num_new,
        .num_pages = static_cast<std::int64_t>(num_pages),
        .output_index = samples ? output_index : -1,
        .num_scored = num_scored,
        .takes_sampled = takes_sampled,
    });

    pool_.stamp(request.lease, begin, end, version_.epoch);
    request.lease.kv.add(version_.epoch);
    request.progress.plan(draft.num_new, samples);
    request.lease.last_step = step.step;
    step.rows.push_back({
        .key = request.key,
        .run = request.run,
        .end = end,
        .num_scored = num_scored,
        .samples = samples,
        .output_index = output_index,
        .num_top = static_cast<std::size_t>(request.logprobs.top),
        .num_ids = request.logprobs.ids.size(),
        .kv = request.lease.kv,
    });
}

}  // namespace pitstop::scheduler
