#include "tp_worker/blocks/state_pool.h"

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kStateAlignment = 64;  // bytes: a cache line

std::int64_t floats_bytes(std::int64_t num) {
    return StatePool::aligned(num * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace

std::int64_t StatePool::aligned(std::int64_t offset) {
    return (offset + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
}

StateId StatePlan::add(const State& state) {
    const std::int64_t inputs = bytes_ + floats_bytes(state.num_recurrent);
    offsets_.push_back({.recurrent = bytes_, .inputs = inputs});
    bytes_ = inputs + floats_bytes(state.num_inputs);
    return static_cast<StateId>(offsets_.size() - 1);
}

StatePool::Part StatePool::part(StateId id) const {
    const StatePlan::Offsets& offsets = plan_.offsets(id);
    return {
        .recurrent = reinterpret_cast<float*>(memory_ + offsets.recurrent),
        .inputs = reinterpret_cast<float*>(memory_ + offsets.inputs),
        .state_bytes = plan_.state_bytes()};
}

}  // namespace pitstop::tp_worker
