#include "tp_worker/update/adapter_orders.h"

#include "messages/message_list.h"
#include "messages/update_orders.h"

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
            return Ok{};
        }
    );
    return taken && *taken && is;
}

}  // namespace pitstop::tp_worker
