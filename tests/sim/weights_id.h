// Names weights in the simulator.
#pragma once

#include <cstdint>

namespace pitstop::sim {

// Identifies bytes: two epochs may have the same weights (after a rollback).
enum class WeightsId : std::uint64_t {};

}  // namespace pitstop::sim
