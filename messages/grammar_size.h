// The bound of a compiled grammar's memory. Rank 0 refuses larger ones, and the scheduler bounds
// how many it orders.
#pragma once

#include <cstdint>

namespace pitstop::messages {

inline constexpr std::int64_t kCompiledGrammarBytesMax = std::int64_t{64} << 20;

}  // namespace pitstop::messages
