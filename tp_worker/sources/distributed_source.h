// Receives a trainer's broadcasts, in a group that was joined before: one per tensor, or one for
// many, back to back without padding; or two per tensor, indices and values (sparse).
//
// A sender that dies, is late, or announces unknown tensors fails the stage and the group, but
// nothing else.
#pragma once

#include "tp_worker/sources/source.h"

namespace pitstop::tp_worker {

// Errors: kNotFound (no such group), kUnavailable, kDeadlineExceeded, kAborted, kUnsupported, and
// any fault of the announcement.
Result<> deliver_distributed(const SourceArgs& args);

}  // namespace pitstop::tp_worker
