#include "scheduler_proc/step_planner.h"

#include "base/check.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

namespace pitstop::scheduler {
namespace {

// A queue may be full of requests that share a prefix with one being computed, or that want more
// logprobs than the step has room for. At most this many such requests are passed over per step, so
// that a turn stays short.
constexpr std::size_t kPassedOverMax = 32;
// The limit for requests whose grammars are being compiled, whose adapters are evicted or whose
// conversations must wait. Passing over one is cheap, and no other request may wait for it.
constexpr std::size_t kAwaitingMax = 4096;

// Many decodes must not starve prefills: 1 / kPrefillShare of a step's tokens is for prefills.
constexpr std::int64_t kPrefillShare = 4;  // a fourth

// The most top logprobs that a step reports for wide requests, unless one position alone has
// more: 16 MiB, which the host sorts in about 0.1 s. Further wide requests wait for the next
// step.
constexpr std::int64_t kWideLogprobsMax = std::int64_t{1} << 21;

}  // namespace

StepPlanner::StepPlanner(const Args& args)
    : requests_(args.requests),
      pool_(args.pool),
      tallies_(args.tallies),
      adapters_(args.adapters),
      drafter_(args.drafter),
      budget_(args.budget),
      tokens_max_(args.tokens_max),
      plan_{.step = args.step, .epoch = args.version.epoch},
      step_{
          .step = args.step,
          .version = args.version,
          .sent_at = args.now,
          .routes = args.routes.value_or(messages::RouteShape{})} {}

std::optional<StepPlanner::Planned> StepPlanner::plan(Scope scope) {
    if (scope == Scope::kNothing) return std::nullopt;
    choose_decodes();
    const auto num_decodes = std::ssize(chosen_);
    tokens_left_ =
        std::max({tokens_max_ - num_decodes, tokens_max_ / kPrefillShare, std::int64_t{1}});
    choose_prefills();
    admit(scope);
    if (chosen_.empty()) return std::nullopt;
    if (drafter_ != nullptr) add_drafts();
    std::ranges::sort(chosen_, {}, [](const ChosenRow& chosen) { return chosen.request->key; });
    plan_.rows.reserve(chosen_.size());
    step_.rows.reserve(chosen_.size());
    for (const ChosenRow& chosen : chosen_) add_row(chosen);
    CHECK(!messages::invalid(plan_));  // checked here and again by each worker
    return Planned{std::move(plan_), std::move(step_)};
}

// Chooses rows of one token, oldest request first, so that a request that needs a page takes it
// from a younger one.
void StepPlanner::choose_decodes() {
    const std::vector<Request*>& running = requests_.running();
    for (std::size_t i = 0; i < running.size(); ++i) {  // retractions shorten the list at its end
        Request& request = *running[i];
        if (request.progress.plannable() == 1 && wide_room(request, 1) == 1)
            std::ignore = choose_row(request, 1);
    }
}

void StepPlanner::choose_prefills() {
    const std::vector<Request*>& running = requests_.running();
    for (std::size_t i = 0; i < running.size() && tokens_left_ > 0; ++i) {
        Request& request = *running[i];
        if (request.progress.plannable() <= 1) continue;
        const std::int64_t num_new = prefill_len(request);
        if (num_new == 0 || !choose_row(request, num_new)) continue;
        tokens_left_ -= num_new;
        share_row(chosen_.back());
    }
}

// Returns how many tokens of a prompt the step has room for.
std::int64_t StepPlanner::prefill_len(const Request& request) const {
    const Progress& progress = request.progress;
    const std::int64_t num_new = wide_room(request, std::min(progress.plannable(), tokens_left_));
    const std::int64_t begin = progress.planned();
    return pool_.end_of_row(request.lease, begin, begin + num_new, progress.known()) - begin;
}

// Shares the row's pages: no later retraction can undo the row, so other rows may build on it.
//
// With recurrent state, a page may have a node but no usable state. Then the request computes that
// page again: this row writes to its own page, and later rows read the node's page.
void StepPlanner::share_row(ChosenRow& chosen) {
    Request& request = *chosen.request;
    const std::int64_t begin = request.progress.planned();
    const std::int64_t end = begin + chosen.num_new;
    pool_.stamp(request.lease, begin, end, plan_.epoch);
    if (request.has_brought()) return;
    const auto tokens = std::span(request.tokens).first(static_cast<std::size_t>(end));
    const auto duplicates =
        pool_.has_state() ? KvPool::Duplicates::kSwap : KvPool::Duplicates::kKeep;
    chosen.own = pool_.share(request.lease, tokens, plan_.step, duplicates);
    chosen.save =
        pool_.save_prefill(request.lease, begin, end, request.progress.known(), plan_.step);
}

// Starts waiting requests, in the queue's order, while tokens, pages and slots last.
void StepPlanner::admit(Scope scope) {
    std::vector<const Request*> passed_over;
    std::size_t num_awaiting = 0;  // of passed_over: those for which awaits_others() is true
    while (tokens_left_ > 0 && pool_.has_slot()) {
        Request* const first = requests_.first_waiting();
        if (first == nullptr || (scope == Scope::kStarted && !first->was_admitted)) break;
        const bool is_awaiting = awaits_others(*first);
        const Admission admission = is_awaiting ? Admission::kPassedOver : admit_first(*first);
        if (admission == Admission::kStarted) continue;
        if (is_awaiting && ++num_awaiting > kAwaitingMax) break;
        if (admission == Admission::kWaits || passed_over.size() - num_awaiting == kPassedOverMax)
            break;
        passed_over.push_back(first);
        requests_.pop_waiting();
    }
    // Puts them back to the front, the last one first, so that they keep their order.
    for (; !passed_over.empty(); passed_over.pop_back()) requests_.put_back(*passed_over.back());
}

// Returns whether the workers must first compile the request's grammar or restore its adapter, or
// older conversations need the pool. A request that has run waits for neither adapter nor
// conversations: its adapter is never evicted, and its turn has begun.
bool StepPlanner::awaits_others(const Request& first) {
    if (first.awaits_grammar) return true;
    if (first.was_admitted) return false;
    // The conversation comes first: AdapterPlaces keeps or restores a version that was asked for,
    // and a turn that must wait must not hold that memory.
    if (first.conversation && !pool_.may_start_turn(*first.conversation, first.arrived_at))
        return true;
    return first.adapter && !adapters_.may_start(first.adapter->id);
}

StepPlanner::Admission StepPlanner::admit_first(Request& first) {
    // The request was just retracted, and its next tokens are still being sampled. No other request
    // may overtake this request and take the pages that it gave up.
    if (first.progress.pending() > 0) return Admission::kWaits;
    if (wide_room(first, 1) == 0) return Admission::kPassedOver;
    PrefixCache::Match match = pool_.cache().match(
        std::span(first.tokens).first(static_cast<std::size_t>(first.cacheable_len())),
        first.accepted_epochs(plan_.epoch),
        plan_.step,
        first.adapter_id()
    );
    // The current step computes more of the request's prefix, which the next step can share.
    if (match.is_pending) return Admission::kPassedOver;
    const std::int64_t num_found = std::ssize(match.found) * pool_.page_size();
    std::optional<Lease> lease =
        pool_.start(std::move(match), first.progress.known(), num_pages_claimed());
    // later requests wait, too: otherwise the first in the queue would starve
    if (!lease) return Admission::kWaits;
    requests_.pop_waiting();
    start(first, *std::move(lease), num_found);
    const std::int64_t num_new = prefill_len(first);
    CHECK(choose_row(first, num_new));
    tokens_left_ -= num_new;
    share_row(chosen_.back());
    return Admission::kStarted;
}

// Returns how many pages running requests will need next: for their remaining prompts, and one each
// to decode into. A new request that took these pages would be retracted at once.
std::int64_t StepPlanner::num_pages_claimed() const {
    std::int64_t num = 0;
    for (const Request* request : requests_.running()) {
        const auto held = static_cast<std::int64_t>(request->lease.pages.size());
        num += std::max(pool_.pages_for(request->progress.known()) - held, std::int64_t{0}) + 1;
    }
    return num;
}

// Returns how many tokens after the cached ones are cached under other weights only.
std::int64_t StepPlanner::num_stale(const Request& request, std::int64_t num_cached) const {
    const EpochRange all{Epoch{1}, Epoch{std::numeric_limits<std::int64_t>::max()}};
    const auto tokens =
        std::span(request.tokens).first(static_cast<std::size_t>(request.cacheable_len()));
    const PrefixCache::Match match =
        pool_.cache().match(tokens, all, plan_.step, request.adapter_id());
    const std::size_t num_pages = std::max(match.pages.size(), match.found.size());
    const std::int64_t num = static_cast<std::int64_t>(num_pages) * pool_.page_size();
    return std::max<std::int64_t>(num - num_cached - request.replayed_tokens, 0);
}

// `num_found`: this many of its tokens are in the prefix cache, perhaps without a state.
void StepPlanner::start(Request& request, Lease lease, std::int64_t num_found) {
    pool_.restore(lease, plan_.step);
    if (request.adapter) {
        lease.kv_min_adapter = request.adapter->version.version;
        adapters_.note_start(request.adapter->id);
    }
    const auto num_cached = static_cast<std::int64_t>(lease.pages.size()) * pool_.page_size();
    if (!request.was_admitted) {
        request.was_admitted = true;
        request.admitted_at = step_.sent_at;
        request.cached_tokens = num_cached;
        tallies_.num_prompt_tokens += request.progress.prompt_len();
        tallies_.num_cached_tokens += num_cached;
        request.replayed_tokens = std::max(num_found - num_cached, std::int64_t{0});
        tallies_.num_replayed_tokens += request.replayed_tokens;
        if (request.conversation) request.stale_tokens = num_stale(request, num_cached);
    } else {
        tallies_.num_recomputed_tokens +=
            std::max<std::int64_t>(request.progress.lost() - num_cached, 0);
    }
    for (const EpochRange& epochs : lease.page_epochs)
        tallies_.count_cache_hit(raw(plan_.epoch) - raw(epochs.min), pool_.page_size());
    request.progress.start(num_cached);
    requests_.start(request, std::move(lease));
}

// Returns false, and changes nothing, if there are no pages for the row in this step.
bool StepPlanner::choose_row(Request& request, std::int64_t num_new) {
    if (!reserve_pages(request, request.progress.planned() + num_new)) return false;
    chosen_.push_back({.request = &request, .num_new = num_new});
    if (request.is_wide())
        wide_logprobs_ += (request.wants_scores() ? num_new : 1) * request.logprobs.top;
    return true;
}

// Returns for how many of `num_new` tokens the step can report all logprobs. A step has room for at
// least one position, so some request always advances.
std::int64_t StepPlanner::wide_room(const Request& request, std::int64_t num_new) const {
    if (!request.is_wide()) return num_new;
    const std::int64_t num_left = (kWideLogprobsMax - wide_logprobs_) / request.logprobs.top;
    const std::int64_t num_reported = std::max<std::int64_t>(num_left, wide_logprobs_ == 0 ? 1 : 0);
    if (!request.wants_scores()) return num_reported > 0 ? num_new : 0;  // last position only
    return std::min(num_new, num_reported);
}

// Gives the request pages for its first `num_tokens` positions: free pages first, then cached ones,
// then those of younger requests. The oldest request gets enough pages when the steps in flight are
// done, if not before, so some request always advances.
bool StepPlanner::reserve_pages(Request& request, std::int64_t num_tokens) {
    for (;;) {
        const std::int64_t num_missing = pool_.grow(request.lease, num_tokens);
        if (num_missing == 0) return true;
        if (pool_.num_coming() >= num_missing) return false;
        Request* youngest = requests_.running().back();
        if (youngest == &request) return false;
        retract(*youngest);
    }
}

// The request's tokens stay; its row leaves the plan.
void StepPlanner::retract(Request& request) {
    std::erase_if(chosen_, [&](const ChosenRow& chosen) { return chosen.request == &request; });
    pool_.give_back(requests_.retract(request));
    ++tallies_.num_retractions;
}

// Adds drafts to rows of one known token: the likeliest drafts if there is a budget, otherwise
// those of the oldest requests first.
void StepPlanner::add_drafts() {
    std::int64_t num_left = tokens_max_;
    for (const ChosenRow& chosen : chosen_) num_left -= chosen.num_new;
    if (pool_.has_state()) num_left = std::min(num_left, messages::kStateDraftsMax);
    const std::vector<std::int64_t> nums = num_worthwhile();
    for (std::size_t i = 0; i < chosen_.size() && num_left > 0; ++i) {
        add_drafts(chosen_[i], std::min(num_left, nums[i]));
        num_left -= std::ssize(chosen_[i].drafts);
    }
}

// Returns how many drafts each row gets, within the step's tokens and the pool's pages.
std::vector<std::int64_t> StepPlanner::num_worthwhile() {
    std::vector<std::int64_t> nums(chosen_.size(), 0);
    for (std::size_t i = 0; i < chosen_.size(); ++i) nums[i] = drafts_max(chosen_[i]);
    if (budget_ == nullptr) return nums;
    std::int64_t num_tokens = 0;
    std::int64_t num_outputs = 0;
    std::vector<DraftBudget::Offer> offers;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
        num_tokens += chosen_[i].num_new;
        num_outputs += chosen_[i].num_new == 1 ? 1 : 0;
        if (std::exchange(nums[i], 0) < 1) continue;
        for (const double likelihood :
             drafter_->likelihoods(*chosen_[i].request, drafts_max(chosen_[i])))
            offers.push_back({likelihood, i});
    }
    DraftBudget::sort(offers);
    const std::size_t num = budget_->choose(num_tokens, num_outputs, offers);
    for (const DraftBudget::Offer& offer : std::span(offers).first(num)) ++nums[offer.row];
    return nums;
}

// Returns the most drafts that the row may have, whatever they cost.
std::int64_t StepPlanner::drafts_max(const ChosenRow& chosen) {
    const Progress& progress = chosen.request->progress;
    if (progress.pending() > 0 || progress.plannable() != 1 || progress.outputs() == 0) return 0;
    if (!Drafter::may_draft(*chosen.request)) return 0;
    return progress.output_len_max() - progress.outputs() - 1;
}

// Takes free or cached pages only: no request is retracted for drafts.
void StepPlanner::add_drafts(ChosenRow& chosen, std::int64_t num_max) {
    if (num_max < 1) return;
    Request& request = *chosen.request;
    std::span<const TokenId> drafts = drafter_->draft(request, num_max);
    const std::int64_t end = request.progress.planned() + 1;
    if (pool_.grow(request.lease, end + std::ssize(drafts)) > 0) {
        const std::int64_t room = std::ssize(request.lease.pages) * pool_.page_size() - end;
        drafts = drafts.first(std::min(drafts.size(), static_cast<std::size_t>(room)));
    }
    chosen.drafts.assign(drafts.begin(), drafts.end());
    chosen.num_new += std::ssize(drafts);
}

void StepPlanner::add_row(const ChosenRow& chosen) {
    Request& request = *chosen.request;
    const std::int64_t begin = request.progress.planned();
    const std::int64_t end = begin + chosen.num_new;
    const std::int64_t num_drafted = std::ssize(chosen.drafts);
    const bool takes_sampled = request.progress.pending() > 0;
    // Samples after the last known token, unless the request has all its output and is only scored.
    const bool samples = request.progress.may_sample() &&
                         (takes_sampled || end - num_drafted == request.progress.known());

    const bool is_first = std::exchange(request.needs_setup, false);
    if (is_first) plan_.setups.push_back(request.setup(*request.lease.slot));

    const std::size_t num_pages = add_pages(chosen, end);
    add_tokens(chosen);
    const std::int64_t num_brought = add_brought(request, begin, end);
    const std::int64_t num_scored = add_targets(request, begin, end);
    const std::int64_t output_index = request.progress.outputs() + request.progress.pending();
    plan_.rows.push_back({
        .slot = *request.lease.slot,
        .begin = begin,
        .num_new = chosen.num_new,
        .num_pages = static_cast<std::int64_t>(num_pages),
        .output_index = samples ? std::optional(output_index) : std::nullopt,
        .num_scored = num_scored,
        .num_routed = request.num_routed(begin, end),
        .num_brought = num_brought,
        .takes_sampled = takes_sampled,
        .adapter = request.adapter_id(),
        .num_drafted = num_drafted > 0 ? std::optional(num_drafted) : std::nullopt,
    });
    add_state(chosen, plan_.rows.back());

    pool_.stamp(request.lease, begin, end, plan_.epoch);
    request.lease.kv.add(plan_.epoch);
    if (num_drafted > 0) {
        request.progress.plan_drafts(num_drafted);
    } else {
        request.progress.plan(chosen.num_new, samples);
    }
    request.lease.last_step = step_.step;
    StepRow& row = step_.rows.emplace_back(StepRow{
        .key = request.key,
        .run = request.run,
        .begin = begin,
        .end = end,
        .num_scored = num_scored,
        .num_routed = plan_.rows.back().num_routed,
        .samples = samples,
        .output_index = output_index,
        .num_top = static_cast<std::size_t>(request.logprobs.top),
        .num_ids = request.logprobs.ids.size(),
        .has_supports = samples && request.logprobs.support,
        .kv = request.lease.kv,
        .adapter = note_adapter(request),
        .kv_min_adapter = request.lease.kv_min_adapter,
        .drafts = chosen.drafts,
    });
    if (is_first) {
        const auto num_begun = static_cast<std::ptrdiff_t>(begin / pool_.page_size());
        row.borrowed.assign(request.lease.pages.begin(), request.lease.pages.begin() + num_begun);
    }
    if (takes_sampled) return;  // the sampled token is not known yet; its page is shared later
    row.first_page = begin / pool_.page_size();
    row.pages.assign(
        request.lease.pages.begin() + static_cast<std::ptrdiff_t>(row.first_page),
        request.lease.pages.begin() + static_cast<std::ptrdiff_t>(num_pages)
    );
}

// Records the version of the request's adapter in the step, and returns the adapter.
std::optional<messages::AdapterId> StepPlanner::note_adapter(const Request& request) {
    if (request.adapter) step_.adapters.try_emplace(request.adapter->id, request.adapter->version);
    return request.adapter_id();
}

// A token that is being sampled is not known yet: the plan has a 0 in its place.
void StepPlanner::add_tokens(const ChosenRow& chosen) {
    const Request& request = *chosen.request;
    auto& tokens = plan_.tokens.values;
    if (request.progress.pending() > 0) return tokens.push_back(TokenId{0});
    const auto first = request.tokens.begin() + request.progress.planned();
    tokens.insert(tokens.end(), first, first + chosen.num_new - std::ssize(chosen.drafts));
    tokens.insert(tokens.end(), chosen.drafts.begin(), chosen.drafts.end());
}

// Returns how many pages were added.
std::size_t StepPlanner::add_pages(const ChosenRow& chosen, std::int64_t end) {
    const auto num = static_cast<std::size_t>(pool_.pages_for(end));
    const auto pages = std::span(chosen.request->lease.pages).first(num);
    const std::size_t begin = plan_.pages.values.size();
    plan_.pages.values.insert(plan_.pages.values.end(), pages.begin(), pages.end());
    if (chosen.own.empty()) return num;
    Lease written{.last_step = plan_.step};
    for (const KvPool::OwnPage& own : chosen.own) {
        plan_.pages.values[begin + own.index] = own.page;
        written.pages.push_back(own.page);
    }
    pool_.give_back(std::move(written));
    return num;
}

// Sets the state that the row continues from, and the place where it saves one.
void StepPlanner::add_state(const ChosenRow& chosen, messages::PlanRow& row) {
    if (!pool_.has_state()) return;
    Request& request = *chosen.request;
    row.state_from = std::exchange(request.lease.state.from, std::nullopt);
    std::optional<KvPool::Save> save = chosen.save;
    const std::int64_t certain = row.begin + row.num_new - std::ssize(chosen.drafts);
    const bool is_decode = certain == row.begin + 1 && certain >= request.progress.known();
    if (!save && is_decode && !request.has_brought())
        save = pool_.save_decode(request.lease, certain, row.begin + row.num_new, plan_.step);
    if (!save) return;
    row.save_to = save->place;
    row.save_at = save->position;
}

// Returns the number of positions for which the plan has routes that the request brings.
std::int64_t StepPlanner::add_brought(
    const Request& request, std::int64_t begin, std::int64_t end
) {
    const std::span<const std::uint8_t> rows = request.brought_in(begin, end);
    plan_.routes.values.insert(plan_.routes.values.end(), rows.begin(), rows.end());
    return rows.empty() ? 0 : std::min(end, request.num_brought) - begin;
}

// The logits of position p score prompt token p + 1. The scored positions of a row reach to its
// end, so they include the prompt's last position, which scores no prompt token: its score is
// omitted. A chunk of that position alone has logits even if nothing is sampled. So logits that are
// not finite end the request, however its prompt was cut (P6).
std::int64_t StepPlanner::add_targets(
    const Request& request, std::int64_t begin, std::int64_t end
) {
    if (!request.wants_scores() || request.score_start() >= request.progress.prompt_len() ||
        request.progress.outputs() > 0 || request.progress.pending() > 0)
        return 0;
    const std::int64_t score_begin = std::max(begin, request.score_start() - 1);
    const bool is_sampled_after = request.progress.output_len_max() > 0;
    const std::int64_t score_end = request.progress.prompt_len() - (is_sampled_after ? 1 : 0);
    if (score_begin >= std::min(end, score_end)) return 0;
    for (std::int64_t i = score_begin + 1; i <= end; ++i) {
        const bool is_there = i < request.progress.prompt_len();
        plan_.targets.values.push_back(
            is_there ? request.tokens[static_cast<std::size_t>(i)] : TokenId{0}
        );
    }
    return end - score_begin;
}

}  // namespace pitstop::scheduler
