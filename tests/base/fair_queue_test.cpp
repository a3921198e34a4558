#include "base/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace pitstop {
namespace {

using Path = std::vector<std::string>;

std::vector<int> drained(FairQueue<int>& queue) {
    std::vector<int> order;
    while (!queue.empty()) order.push_back(queue.pop());
    return order;
}

TEST(FairQueue, ClientsTakeTurnsAndEachKeepsItsOrder) {
    FairQueue<int> queue;
    for (int i = 0; i < 5; ++i) queue.push(Path{"a"}, i);
    queue.push(Path{"b"}, 10);
    queue.push(Path{"b"}, 11);
    queue.push(Path{"c"}, 20);
    EXPECT_EQ(drained(queue), (std::vector<int>{0, 10, 20, 1, 11, 2, 3, 4}));
}

TEST(FairQueue, WithOnePathTheFirstToComeIsTheFirstServed) {
    FairQueue<int> queue;
    for (const int i : {3, 1, 2}) queue.push(Path{}, i);
    EXPECT_EQ(drained(queue), (std::vector<int>{1, 2, 3}));
}

// A client that invents a thousand names has no more than the share of one neighbour.
TEST(FairQueue, NamesDivideTheShareOfTheLevelAboveThem) {
    FairQueue<int> queue;
    for (int i = 0; i < 1000; ++i) queue.push(Path{"hostile", "name-" + std::to_string(i)}, i);
    for (int i = 0; i < 10; ++i) queue.push(Path{"b"}, 5000 + i);
    std::vector<int> order = drained(queue);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(order[static_cast<std::size_t>(2 * i + 1)], 5000 + i);
}

TEST(FairQueue, AClientThatComesBackIsBehindThoseThatWait) {
    FairQueue<int> queue;
    queue.push(Path{"a"}, 1);
    queue.push(Path{"b"}, 2);
    EXPECT_EQ(queue.pop(), 1);
    queue.push(Path{"a"}, 3);
    EXPECT_EQ(queue.pop(), 2);
    EXPECT_EQ(queue.pop(), 3);
}

TEST(FairQueue, AnErasedItemIsNotServedAndItsClientKeepsItsTurn) {
    FairQueue<int> queue;
    for (const int i : {1, 2}) queue.push(Path{"a"}, i);
    queue.push(Path{"b"}, 10);
    EXPECT_TRUE(queue.erase(Path{"a"}, 1));
    EXPECT_FALSE(queue.erase(Path{"a"}, 1));
    EXPECT_FALSE(queue.erase(Path{"x"}, 2));
    EXPECT_EQ(drained(queue), (std::vector<int>{2, 10}));
}

TEST(FairQueue, TheNewestItemOfTheClientWithTheMostIsTheFirstToGo) {
    FairQueue<int> queue;
    for (int i = 0; i < 3; ++i) queue.push(Path{"a", "x"}, i);
    queue.push(Path{"a"}, 3);
    queue.push(Path{"b"}, 10);
    EXPECT_EQ(queue.last_of_largest(), 2);
    queue.push(Path{"c"}, 20, 100);
    EXPECT_EQ(queue.last_of_largest(), 20);
    EXPECT_EQ(queue.weight_of(Path{"a"}), 4u);
    EXPECT_EQ(queue.weight(), 105u);
}

// Random pushes, erasures and new names. For an item of client A, let n be A's earlier waiting
// items: each other client overtakes the item at most n + 1 times.
TEST(FairQueue, NobodyIsOvertakenMoreThanOncePerTurnWhoeverComes) {
    for (std::uint32_t seed = 1; seed <= 50; ++seed) {
        std::mt19937 random(seed);
        FairQueue<int> queue;
        struct Item {
            std::string client{};
            int num_before = 0;  // the earlier waiting items of the same client
            std::map<std::string, int> overtaken{};
        };
        std::map<int, Item> waiting;
        int next = 0;
        const auto serve = [&] {
            const int id = queue.pop();
            const std::string client = waiting.at(id).client;
            waiting.erase(id);
            for (auto& [other, item] : waiting) {
                if (item.client == client) continue;
                ASSERT_LE(++item.overtaken[client], item.num_before + 1) << "seed " << seed;
            }
        };
        for (int step = 0; step < 400; ++step) {
            const auto draw = random() % 10;
            if (draw < 6) {
                // Four clients push again and again; every other client pushes once.
                const std::string client =
                    draw == 0 ? "new-" + std::to_string(next)
                              : std::string(1, static_cast<char>('a' + random() % 4));
                Item item{.client = client};
                for (const auto& [id, other] : waiting) item.num_before += other.client == client;
                waiting.emplace(next, item);
                queue.push(Path{client}, next++);
            } else if (!queue.empty()) {
                serve();
            }
        }
        while (!queue.empty()) serve();
        EXPECT_TRUE(waiting.empty());
    }
}

TEST(FairQueue, AnItemThatIsPutBackComesFirstAgainWhoeverWasServed) {
    const std::vector<std::string> a{"a"};
    const std::vector<std::string> b{"b"};
    FairQueue<int> queue;
    queue.push(a, 1);
    queue.push(a, 2);
    queue.push(b, 3);
    queue.push(b, 4);
    EXPECT_EQ(queue.pop(), 1);
    EXPECT_EQ(queue.pop(), 3);
    queue.put_back(b, 3);  // the first that was popped is put back last
    queue.put_back(a, 1);
    EXPECT_EQ(queue.pop(), 1);
    EXPECT_EQ(queue.pop(), 3);
    EXPECT_EQ(queue.pop(), 2);
    EXPECT_EQ(queue.pop(), 4);
    EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace pitstop
