#include "tp_worker/update/group_joins.h"

#include "messages/codec.h"
#include "tp_worker/groups/groups.h"

#include <utility>

namespace pitstop::tp_worker {

std::vector<messages::Frames> GroupJoins::execute(messages::WorkerGroup order, TimePoint deadline) {
    messages::WorkerGrouped answer;
    answer.call = order.call;
    answer.rank = worker_.rank;
    const bool is_given =
        joining_.offer([this, answer, deadline, order = std::move(order)]() mutable {
            const std::int64_t rank = order.spec.rank_offset +
                                      std::int64_t{raw(worker_.place.replica)} * worker_.tp +
                                      raw(worker_.rank);
            const Result<> result =
                order.action == messages::GroupAction::kDestroy
                    ? worker_.groups->destroy(order.spec.group)
                    : worker_.groups->init(order.spec, rank, {deadline, *worker_.is_over});
            if (!result) answer.verdict = result.error();
            answers_.answer(encode(answer));
            return std::vector<messages::Frames>{};
        });
    if (is_given) return {};
    answer.verdict = Background::too_many();
    return {encode(answer)};
}

}  // namespace pitstop::tp_worker
