// Decides which client is served next. A client is named by a path, outermost name first. Each name
// divides the share of the name before it. Names at the same level take turns, one item each. So a
// client that makes up names only divides its own share and takes nothing from others.
//
// Items of one path are served in the order of their ids. A new path, or one that was just served,
// queues behind all paths that wait at its level. So, for each item ahead of it in its own path, an
// item waits for at most one item of each neighbour at each level, whatever arrives meanwhile. The
// order depends on the calls alone: no clock, no hash.
//
// Thread:  one at a time.
// Bounded: by its user, through size(); a name without items is forgotten.
#pragma once

#include "base/check.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop {

// The order of service: kFair lets clients take turns, kFcfs serves in order of arrival.
enum class Fairness : std::uint8_t { kFair, kFcfs };

// Parses a flag's value.
[[nodiscard]] inline Result<Fairness> fairness_of(std::string_view name) {
    if (name == "fair") return Fairness::kFair;
    if (name == "fcfs") return Fairness::kFcfs;
    return make_error(
        ErrorCode::kInvalidArgument, "--scheduling is '{}'; accepted are fair and fcfs", name
    );
}
inline constexpr std::string_view kSchedulingHelp =
    "order of requests of one priority: fair (clients take turns) or fcfs (by arrival)";

template <class Id>
class FairQueue {
  public:
    using Path = std::span<const std::string>;

    FairQueue() = default;
    FairQueue(FairQueue&& other) noexcept : root_(std::exchange(other.root_, make_root())) {}
    FairQueue& operator=(FairQueue&& other) noexcept {
        root_ = std::exchange(other.root_, make_root());
        return *this;
    }

    [[nodiscard]] bool empty() const { return root_->items == 0; }
    [[nodiscard]] std::size_t size() const { return root_->items; }
    [[nodiscard]] std::size_t weight() const { return root_->weight; }

    // `weight` counts towards last_of_largest(). REQUIRES: the id is not in the queue.
    void push(Path path, Id id, std::size_t weight = 1) {
        Node* node = root_.get();
        node->add(1, weight);
        for (const std::string& name : path) {
            std::unique_ptr<Node>& child = node->children[name];
            if (child == nullptr) {
                child = std::make_unique<Node>();
                child->name = name;
                node->join(*child);
            }
            node = child.get();
            node->add(1, weight);
        }
        if (node->ids.empty()) node->join_own();
        const bool is_new = node->ids.emplace(id, weight).second;
        CHECK(is_new);
    }

    // Puts back an item that pop() has just returned, even if others were served since: its path
    // comes first again. Several are put back in the reverse order of their pops.
    void put_back(Path path, Id id, std::size_t weight = 1) {
        push(path, id, weight);
        const std::vector<Node*> way = way_to(path);
        for (std::size_t i = 0; i + 1 < way.size(); ++i) {
            way[i]->ring.erase(way[i + 1]->turn);
            way[i]->join_first(*way[i + 1]);
        }
        way.back()->ring.erase(way.back()->own_turn);
        way.back()->own_turn = way.back()->first_turn--;
        way.back()->ring.emplace(way.back()->own_turn, way.back());
    }

    // Removes an item; its path keeps its turn. Returns false if the id is not in the queue.
    bool erase(Path path, Id id) {
        std::vector<Node*> way = way_to(path);
        if (way.empty() || !way.back()->ids.contains(id)) return false;
        remove(way, id);
        return true;
    }
    [[nodiscard]] bool contains(Path path, Id id) const {
        const std::vector<Node*> way = way_to(path);
        return !way.empty() && way.back()->ids.contains(id);
    }
    // Sums the weight of everything under the path.
    [[nodiscard]] std::size_t weight_of(Path path) const {
        const std::vector<Node*> way = way_to(path);
        return way.empty() ? 0 : way.back()->weight;
    }

    // REQUIRES: !empty().
    [[nodiscard]] Id front() const { return first_way().back()->ids.begin()->first; }
    // Removes and returns front(); each path that had a turn goes behind its neighbours. REQUIRES:
    // !empty().
    Id pop() {
        const std::vector<Node*> way = first_way();
        for (std::size_t i = 0; i < way.size(); ++i) {
            if (i + 1 < way.size()) {
                way[i]->ring.erase(way[i + 1]->turn);
                way[i]->join(*way[i + 1]);
            } else {
                way[i]->ring.erase(way[i]->own_turn);
                way[i]->join_own();
            }
        }
        const Id id = way.back()->ids.begin()->first;
        remove(way, id);
        return id;
    }

    // Returns the newest item of the largest client: at each level the path with the most weight.
    // Among equal paths, takes the one that joined or was served last.
    // REQUIRES: !empty().
    [[nodiscard]] Id last_of_largest() const {
        const Node* node = root_.get();
        for (;;) {
            const Node* largest = nullptr;
            std::size_t largest_weight = 0;
            for (const auto& [turn, next] : node->ring) {
                const std::size_t weight = next == node ? node->own_weight() : next->weight;
                if (largest != nullptr && weight < largest_weight) continue;
                largest = next;
                largest_weight = weight;
            }
            CHECK(largest != nullptr);
            if (largest == node) return node->ids.rbegin()->first;
            node = largest;
        }
    }

  private:
    struct Node {
        std::string name{};
        std::int64_t turn = 0;        // the node's position in the parent's ring
        std::int64_t own_turn = 0;    // the position of `ids` in this node's ring
        std::int64_t next_turn = 1;   // the next position at the end of the ring
        std::int64_t first_turn = 0;  // the next position at the front of the ring
        std::map<std::string, std::unique_ptr<Node>> children{};
        std::map<Id, std::size_t> ids{};       // items whose path ends here -> weight
        std::map<std::int64_t, Node*> ring{};  // by turn; this node itself at own_turn
        std::size_t items = 0;                 // in this node and all its descendants
        std::size_t weight = 0;

        void add(std::size_t num, std::size_t added) {
            items += num;
            weight += added;
        }
        void join(Node& child) {
            child.turn = next_turn++;
            ring.emplace(child.turn, &child);
        }
        void join_first(Node& child) {
            child.turn = first_turn--;
            ring.emplace(child.turn, &child);
        }
        void join_own() {
            own_turn = next_turn++;
            ring.emplace(own_turn, this);
        }
        [[nodiscard]] std::size_t own_weight() const {
            std::size_t inside = 0;
            for (const auto& [name_of_child, child] : children) inside += child->weight;
            return weight - inside;
        }
    };
    static std::unique_ptr<Node> make_root() { return std::make_unique<Node>(); }

    // Returns the nodes from the root to the end of the path; empty if there is no such path.
    [[nodiscard]] std::vector<Node*> way_to(Path path) const {
        std::vector<Node*> way{root_.get()};
        for (const std::string& name : path) {
            const auto child = way.back()->children.find(name);
            if (child == way.back()->children.end()) return {};
            way.push_back(child->second.get());
        }
        return way;
    }
    [[nodiscard]] std::vector<Node*> first_way() const {
        CHECK(!empty());
        std::vector<Node*> way{root_.get()};
        for (;;) {
            Node* next = way.back()->ring.begin()->second;
            if (next == way.back()) return way;
            way.push_back(next);
        }
    }
    void remove(const std::vector<Node*>& way, Id id) {
        Node& end = *way.back();
        const auto place = end.ids.find(id);
        const std::size_t weight = place->second;
        end.ids.erase(place);
        if (end.ids.empty()) end.ring.erase(end.own_turn);
        for (Node* node : way) {
            --node->items;
            node->weight -= weight;
        }
        for (std::size_t i = way.size() - 1; i > 0 && way[i]->items == 0; --i) {
            way[i - 1]->ring.erase(way[i]->turn);
            // a copy: erase() must not get a reference into the node that it erases
            const std::string name = way[i]->name;
            way[i - 1]->children.erase(name);
        }
    }

    std::unique_ptr<Node> root_ = make_root();
};

}  // namespace pitstop
