#include "tp_worker/model/rank_facts.h"

#include "tp_worker/model/engine_sizes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace pitstop::tp_worker {

Result<bool> holds_on_all(bool holds, Communicator& communicator) {
    ASSIGN_OR_RETURN(const std::optional<Rank> without, find_rank_without(holds, communicator));
    return !without;
}

namespace {

Result<std::int64_t> smallest_of_all(std::int64_t number, Communicator& communicator) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.size()));
    RETURN_IF_ERROR(communicator.all_gather(
        std::as_bytes(std::span(&number, 1)), std::as_writable_bytes(std::span(all))
    ));
    return std::ranges::min(all);
}

}  // namespace

Result<std::int64_t> add_states(
    const StatesAsked& states, RoomFacts* own, Communicator& communicator
) {
    if (states.state_bytes == 0) return 0;
    std::int64_t num = states.num_checkpoints;
    if (num == 0) {
        const std::int64_t taken = own->others + own->copy + states.num_slots * states.state_bytes;
        const std::int64_t wanted =
            default_num_checkpoints(own->budget - taken, states.state_bytes, states.num_slots);
        ASSIGN_OR_RETURN(num, smallest_of_all(wanted, communicator));
    }
    own->others += (states.num_slots + num) * states.state_bytes;
    return num;
}

Result<> check_states(
    const StatesAsked& states, std::int64_t num_checkpoints, const RoomFacts& of_all
) {
    if (states.state_bytes == 0 || of_all.others < of_all.budget) return Ok{};
    return make_error(
        ErrorCode::kResourceExhausted,
        "no room for KV on {}: the recurrent states of {} requests and {} checkpoints take {} "
        "bytes of {}, and {} may be used; lower --max-running-requests or --state-checkpoints",
        of_all.device,
        states.num_slots,
        num_checkpoints,
        (states.num_slots + num_checkpoints) * states.state_bytes,
        of_all.others,
        of_all.budget
    );
}

Result<RoomFacts> facts_of_all(const RoomFacts& own, Communicator& communicator) {
    using Numbers = std::array<std::int64_t, 8>;
    const Numbers mine{
        own.free,
        own.budget,
        own.host_free,
        own.others,
        own.adapters,
        own.copy,
        own.page,
        own.host_copy};
    std::vector<Numbers> all(static_cast<std::size_t>(communicator.size()));
    RETURN_IF_ERROR(communicator.all_gather(
        std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))
    ));
    RoomFacts facts = own;
    for (const auto& [free, budget, host_free, others, adapters, copy, page, host_copy] : all) {
        facts.free = std::min(facts.free, free);
        facts.budget = std::min(facts.budget, budget);
        facts.host_free = std::min(facts.host_free, host_free);
        facts.others = std::max(facts.others, others);
        facts.adapters = std::max(facts.adapters, adapters);
        facts.copy = std::max(facts.copy, copy);
        facts.page = std::max(facts.page, page);
        facts.host_copy = std::max(facts.host_copy, host_copy);
    }
    facts.host_free /= communicator.num_on_machine();
    return facts;
}

}  // namespace pitstop::tp_worker
