#include "messages/status.h"

#include <algorithm>

namespace pitstop::messages {

std::vector<AdapterStatus> loaded_adapters(const StatusReply& status) {
    std::vector<AdapterStatus> all;
    if (status.replicas.empty()) return all;
    for (const AdapterStatus& adapter : status.replicas.front().adapters) {
        const auto is_it = [&](const AdapterStatus& each) {
            return each.adapter.name == adapter.adapter.name;
        };
        const auto has_it = [&](const ReplicaStatus& replica) {
            return std::ranges::any_of(replica.adapters, is_it);
        };
        if (std::ranges::all_of(status.replicas, has_it)) all.push_back(adapter);
    }
    return all;
}

}  // namespace pitstop::messages
