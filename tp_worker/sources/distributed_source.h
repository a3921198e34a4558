// Receives a trainer's broadcasts, in a group that was joined before: one per tensor, or one for
// many, back to back without padding; or per tensor two, indices and values (sparse).
//
// A sender that died, is late, or announces what this model does not have costs the stage and the
// group, nothing else.
#pragma once

#include "tp_worker/sources/source.h"

namespace pitstop::tp_worker {

// Errors: kNotFound (no such group), kUnavailable, kDeadlineExceeded, kAborted, kUnsupported, and
// whatever is wrong with what was announced.
Result<> deliver_distributed(const SourceArgs& args);

}  // namespace pitstop::tp_worker
