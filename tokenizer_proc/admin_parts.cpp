// Handles the answers of the tree's processes to the calls that Admin passed on.
#include "tokenizer_proc/admin.h"
#include "tokenizer_proc/replica_replies.h"

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {

Result<bool> Admin::dispatch_part(TimePoint now, const messages::Frames& frames) {
    using Parts = decltype(
        messages::ReplicaParts{} + messages::MessageList<
                                       messages::UpdatePart,
                                       messages::UpdateWaits,
                                       messages::ReplicaStanding,
                                       messages::WorkerTensor,
                                       messages::WorkerDigests,
                                       messages::WorkerGrouped,
                                       messages::WorkerKept>{}
    );
    return Parts::dispatch(frames, messages::UnknownFields::kIgnore, [&](auto part) -> Result<> {
        handle_part(now, std::move(part));
        return Ok{};
    });
}

template <class Part>
void Admin::handle_part(TimePoint now, Part part) {
    if (auto complete = fanout_.gather(std::move(part)))
        finish(now, complete->caller, std::move(complete->parts));
    if constexpr (std::is_same_v<Part, messages::MemoryPart>) collected_.start_held(now);
}

template <class Part>
void Admin::finish(TimePoint, const AdminCaller& caller, std::vector<Part> parts) {
    if constexpr (std::is_same_v<Part, messages::LabelPart>) {
        if (are_all_done(parts)) updates_.relabel(parts.front().label);
    }
    outbox_.answer(caller, reply_of(std::move(parts)));
}

void Admin::finish(
    TimePoint now, const AdminCaller& caller, std::vector<messages::ReplicaStatus> parts
) {
    messages::StatusReply reply;
    facts_.report(reply);
    for (messages::ReplicaStatus& replica : parts) {
        replica.call = CallId{};
        // Sums the tables of all replicas, so that the size of the reply does not depend on the
        // number of replicas.
        messages::add_load(reply.expert_load, std::exchange(replica.expert_load, std::nullopt));
    }
    reply.replicas = std::move(parts);
    updates_.report(now, reply);
    reply.lost_calls = collected_.report_lost(now);
    outbox_.answer(caller, std::move(reply));
}

void Admin::finish(
    TimePoint now, const AdminCaller& caller, std::vector<messages::AdapterPart> parts
) {
    messages::AdapterReply reply = reply_of(std::move(parts));
    updates_.record_unload(now, reply);
    outbox_.answer(caller, std::move(reply));
}

void Admin::handle_part(TimePoint now, const messages::UpdatePart& part) {
    collected_.drive(now, [&](UpdateCoordinator& updates, UpdateOutput& out) {
        updates.handle_part(now, part, out);
    });
}

}  // namespace pitstop::tokenizer
