// Raises the number of file descriptors that this process may have open. Each connection needs a
// descriptor, and a shell's soft limit is often 1024 or less.
#pragma once

#include "base/result.h"

namespace pitstop {

// Each process of a tree needs at least this many for itself; some need more, depending on their
// number of peers.
inline constexpr int kDescriptorsMin = 48;
// The most that raise_descriptor_limit() sets: with a limit of 10^9, some child programs would
// iterate over all possible descriptors.
inline constexpr int kDescriptorsMax = 1 << 20;

// Raises the soft limit as far as the hard limit and kDescriptorsMax allow. Returns the
// resulting limit.
// Errors: kResourceExhausted, less than `needed`.
Result<int> raise_descriptor_limit(int needed = kDescriptorsMin);

// Returns whether `num` more can be opened now, for libraries that abort when none is left. Other
// threads may open descriptors right afterwards, so the answer is no guarantee.
bool has_descriptors(int num);

}  // namespace pitstop
