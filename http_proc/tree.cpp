#include "http_proc/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace pitstop {

const HelloReply& Tree::hello() {
    if (hello_.server.empty()) hello_ = client_->hello();
    return hello_;
}

std::string Tree::random_id() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

void Tree::add_name(const std::string& name, const std::string& rid) { rids_[name].push_back(rid); }

void Tree::remove_name(const std::string& name, const std::string& rid) {
    const auto place = rids_.find(name);
    if (place == rids_.end()) return;
    const auto entry = std::ranges::find(place->second, rid);
    if (entry != place->second.end()) place->second.erase(entry);
    if (place->second.empty()) rids_.erase(place);
}

std::vector<std::string> Tree::rids_named(const std::string& name) const {
    const auto place = rids_.find(name);
    return place == rids_.end() ? std::vector{name} : place->second;
}

}  // namespace pitstop
