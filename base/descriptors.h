// Raises the number of file descriptors that this process may have open. Each connection takes one,
// and the soft limit that a shell gives is often 1024, or less.
#pragma once

#include "base/result.h"

namespace pitstop {

// Each process of a tree needs at least this many for itself; some need more, by their number of
// peers.
inline constexpr int kDescriptorsMin = 48;
// Raising further helps nobody, and where the hard limit is a milliard some programs that are
// started from here would look at each.
inline constexpr int kDescriptorsMax = 1 << 20;

// Raises the soft limit as far as the hard one and kDescriptorsMax allow. Returns what it is then.
// Errors: kResourceExhausted, less than `needed`.
Result<int> raise_descriptor_limit(int needed = kDescriptorsMin);

// Tells whether `num` more can be opened now. Others may take them right after: this is for
// libraries that abort where there is none, and it makes that unlikely.
bool has_descriptors(int num);

}  // namespace pitstop
