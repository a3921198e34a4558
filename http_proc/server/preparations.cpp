#include "http_proc/server/preparations.h"

#include <algorithm>

namespace pitstop::http {

Preparations::Entry Preparations::begin(std::vector<std::string> names) {
    return {*this, open_.insert(open_.end(), Open{.names = std::move(names)})};
}

Later<bool> Preparations::over(const std::vector<std::string>& names) {
    Later<bool> later;
    const auto waiting = std::make_shared<Waiting>(Waiting{.over = later.setter()});
    for (Open& open : open_) {
        const bool is_meant =
            names.empty() || std::ranges::any_of(names, [&](const std::string& name) {
                return std::ranges::any_of(open.names, [&](const std::string& begin) {
                    return name.starts_with(begin);
                });
            });
        if (!is_meant) continue;
        open.waiting.push_back(waiting);
        ++waiting->num_left;
    }
    if (waiting->num_left == 0) waiting->over.set(true);
    return later;
}

void Preparations::end(std::list<Open>::iterator place) {
    const std::vector<std::shared_ptr<Waiting>> waiting = std::move(place->waiting);
    open_.erase(place);
    for (const auto& each : waiting) {
        if (--each->num_left == 0) each->over.set(true);
    }
}

}  // namespace pitstop::http
