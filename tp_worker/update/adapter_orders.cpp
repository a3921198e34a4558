#include "tp_worker/update/adapter_orders.h"

#include "messages/codec.h"
#include "messages/message_list.h"
#include "messages/update_orders.h"

#include <type_traits>
#include <utility>

namespace pitstop::tp_worker {
namespace {

using Orders = messages::MessageList<
    messages::WorkerStage,
    messages::WorkerFill,
    messages::WorkerFinish,
    messages::WorkerCommit,
    messages::WorkerDrop>;

}  // namespace

bool is_of_adapter(const messages::Frames& order, std::optional<messages::UpdateId> staged) {
    // An order of a model's update may have a GiB. Without a staged adapter, only its type is read.
    if (!staged && order.type != messages::WorkerStage::kType) return false;
    bool is = false;
    const Result<bool> taken = Orders::dispatch(
        order,
        messages::UnknownFields::kIgnore,
        [&](const auto& message) -> Result<> {
            if constexpr (requires { message.spec; }) {
                is = !message.spec.adapter.empty();
            } else {
                is = message.update == staged;
            }
            // A commit with `rollback` swaps the copies of the model's weights.
            if constexpr (std::is_same_v<decltype(message), const messages::WorkerCommit&>)
                is = is && !message.rollback;
            return Ok{};
        }
    );
    return taken && *taken && is;
}

std::vector<messages::AdapterId> forgotten_by(const messages::Frames& order) {
    if (order.type != messages::WorkerForget::kType) return {};
    Result<messages::WorkerForget> forget =
        decode<messages::WorkerForget>(order, messages::UnknownFields::kIgnore);
    if (!forget) return {};
    return std::move(forget->adapters);
}

}  // namespace pitstop::tp_worker
