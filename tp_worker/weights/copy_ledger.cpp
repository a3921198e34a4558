#include "tp_worker/weights/copy_ledger.h"

#include "base/check.h"

#include <utility>

namespace pitstop::tp_worker {

void CopyLedger::look_at(const Arena& memory) {
    if (std::exchange(mapping_, memory.mapping()) == memory.mapping()) return;
    forget_all();
}

const CopyLedger::Entry* CopyLedger::find(std::size_t tensor) const {
    const Entry& entry = entries_[tensor];
    return entry.writing.number == 0 ? nullptr : &entry;
}

void CopyLedger::record(
    std::size_t tensor, Values values, std::span<const messages::PartDigest> parts
) {
    Entry& entry = entries_[tensor];
    entry.writing = {.copy = copy_, .number = ++num_writings_};
    entry.is_finite = values == Values::kFinite;
    entry.parts.clear();
    for (const messages::PartDigest& part : parts) entry.parts.push_back({part.lane0, part.lane1});
}

void CopyLedger::record_copy(std::size_t tensor, const CopyLedger& other) {
    const Entry* const entry = other.find(tensor);
    CHECK(entry != nullptr);
    entries_[tensor] = *entry;
}

}  // namespace pitstop::tp_worker
