#include "tp_worker/weights/repeated_tensors.h"

#include <algorithm>

namespace pitstop::tp_worker {

FillJob RepeatedTensors::add(
    std::size_t index, const Incoming& again, std::span<const messages::PartDigest> first
) {
    Repeat& repeat = repeats_.emplace_back();
    repeat.name = again.spec.name;
    repeat.first = first;
    repeat.again.assign(first.begin(), first.end());
    for (messages::PartDigest& part : repeat.again) part.lane0 = part.lane1 = 0;
    return {.index = index, .incoming = &again, .parts = repeat.again, .is_only_digested = true};
}

std::vector<std::string> RepeatedTensors::problems() const {
    std::vector<std::string> problems;
    for (const Repeat& repeat : repeats_) {
        if (is_same(repeat.first, repeat.again)) continue;
        problems.push_back(
            fmt::format("'{}' arrived before in this update, with other bytes", repeat.name)
        );
    }
    return problems;
}

bool is_same(std::span<const messages::PartDigest> a, std::span<const messages::PartDigest> b) {
    return std::ranges::equal(a, b, [](const auto& left, const auto& right) {
        return left.lane0 == right.lane0 && left.lane1 == right.lane1;
    });
}

}  // namespace pitstop::tp_worker
