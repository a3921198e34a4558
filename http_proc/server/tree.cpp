#include "http_proc/server/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sys/random.h>

namespace pitstop::http {

const messages::HelloReply& Tree::hello() {
    if (const std::uint64_t now = number(); hello_number_ != now) {
        hello_ = client_->hello();
        hello_number_ = now;
    }
    return hello_;
}

std::string Tree::random_id() {
    std::array<std::uint64_t, 2> bits{};
    // Once the kernel's pool is ready, a signal never interrupts a call for up to 256 bytes.
    CHECK(::getrandom(bits.data(), sizeof bits, 0) == sizeof bits);
    return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
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

}  // namespace pitstop::http
