// Chooses the rows of the next step, and makes its plan. A planner lives for one plan.
//
// Decodes come first, because a running request never waits for a new one. Then come prefills of
// running requests, oldest first, in chunks; then waiting requests, in the queue's order. When
// pages run out, the youngest request is retracted, and its row leaves the plan. Drafts come last:
// they take tokens and pages that nothing else needs in this step.
//
// Thread:  the loop thread only.
// Bounded: a row per running request, and the tokens of a step.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "messages/steps.h"
#include "scheduler_proc/adapter_places.h"
#include "scheduler_proc/draft_budget.h"
#include "scheduler_proc/drafter.h"
#include "scheduler_proc/in_flight_step.h"
#include "scheduler_proc/kv_pool.h"
#include "scheduler_proc/open_requests.h"
#include "scheduler_proc/tallies.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace pitstop::scheduler {

class StepPlanner {
  public:
    struct Args {
        OpenRequests& requests;
        KvPool& pool;
        Tallies& tallies;
        AdapterPlaces& adapters;
        StepId step{};           // the step to plan
        const Version& version;  // the version it runs under
        TimePoint now{};
        std::int64_t tokens_max = 0;  // per step
        std::optional<messages::RouteShape> routes{};
        Drafter* drafter = nullptr;     // null: no speculation
        DraftBudget* budget = nullptr;  // null: as many drafts as the drafter has
    };
    explicit StepPlanner(const Args& args);

    // The requests that may be planned: none, those that have run, or new ones too.
    enum class Scope { kNothing, kStarted, kEverything };
    struct Planned {
        messages::StepPlan plan{};  // for the workers
        InFlightStep step{};        // to read the results
    };
    // Returns nothing if no request can advance. Call once.
    [[nodiscard]] std::optional<Planned> plan(Scope scope);

  private:
    struct ChosenRow {
        Request* request = nullptr;
        std::int64_t num_new = 0;  // drafts included
        std::vector<TokenId> drafts{};
        std::vector<KvPool::OwnPage> own{};  // pages that the row writes and the lease gave away
        std::optional<KvPool::Save> save{};  // of its recurrent state
    };
    enum class Admission { kStarted, kPassedOver, kWaits };

    void choose_decodes();
    void choose_prefills();
    void admit(Scope scope);
    void add_drafts();
    [[nodiscard]] static std::int64_t drafts_max(const ChosenRow& chosen);
    [[nodiscard]] std::vector<std::int64_t> num_worthwhile();
    void add_drafts(ChosenRow& chosen, std::int64_t num_max);
    [[nodiscard]] bool awaits_others(const Request& first);
    [[nodiscard]] Admission admit_first(Request& first);
    void start(Request& request, Lease lease, std::int64_t num_found);
    [[nodiscard]] std::int64_t num_stale(const Request& request, std::int64_t num_cached) const;
    [[nodiscard]] std::int64_t num_pages_claimed() const;

    [[nodiscard]] std::int64_t prefill_len(const Request& request) const;
    [[nodiscard]] bool choose_row(Request& request, std::int64_t num_new);
    void share_row(ChosenRow& chosen);
    [[nodiscard]] bool reserve_pages(Request& request, std::int64_t num_tokens);
    void retract(Request& request);
    [[nodiscard]] std::int64_t wide_room(const Request& request, std::int64_t num_new) const;

    void add_row(const ChosenRow& chosen);
    std::optional<messages::AdapterId> note_adapter(const Request& request);
    void add_tokens(const ChosenRow& chosen);
    std::size_t add_pages(const ChosenRow& chosen, std::int64_t end);
    void add_state(const ChosenRow& chosen, messages::PlanRow& row);
    [[nodiscard]] std::int64_t add_brought(
        const Request& request, std::int64_t begin, std::int64_t end
    );
    [[nodiscard]] std::int64_t add_targets(
        const Request& request, std::int64_t begin, std::int64_t end
    );

    OpenRequests& requests_;
    KvPool& pool_;
    Tallies& tallies_;
    AdapterPlaces& adapters_;
    Drafter* const drafter_;
    DraftBudget* const budget_;
    const std::int64_t tokens_max_;
    messages::StepPlan plan_;
    InFlightStep step_;
    std::vector<ChosenRow> chosen_{};
    std::int64_t tokens_left_ = 0;    // for prefills
    std::int64_t wide_logprobs_ = 0;  // of wide requests in this step
};

}  // namespace pitstop::scheduler
