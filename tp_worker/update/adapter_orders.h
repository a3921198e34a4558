// The orders of an adapter's update. They may be carried out during a pass: no plan that was sent
// before them names the version.
#pragma once

#include "messages/adapters.h"
#include "messages/frames.h"
#include "messages/weights.h"

#include <optional>
#include <vector>

namespace pitstop::tp_worker {

// Returns whether the order stages an adapter, or continues the `staged` update, which is an
// adapter's. Absent: none is staged.
[[nodiscard]] bool is_of_adapter(
    const messages::Frames& order, std::optional<messages::UpdateId> staged
);
// Returns the versions of adapters that the order forgets; none if it is another order.
[[nodiscard]] std::vector<messages::AdapterId> forgotten_by(const messages::Frames& order);

}  // namespace pitstop::tp_worker
