// The orders of an adapter's update. They may be carried out during a pass: no plan that was sent
// before them names the version.
#pragma once

#include "messages/frames.h"
#include "messages/weights.h"

#include <optional>

namespace pitstop::tp_worker {

// Returns whether the order stages an adapter, or continues the `staged` update, which is an
// adapter's. Absent: none is staged.
[[nodiscard]] bool is_of_adapter(
    const messages::Frames& order, std::optional<messages::UpdateId> staged
);

}  // namespace pitstop::tp_worker
