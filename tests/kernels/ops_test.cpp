// Tests the table, the levels, the threads, and what KERNELS.md promises about them.
#include "base/isa.h"
#include "tests/kernels/backend.h"
#include "tests/source_dir.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace pitstop::kernels::test {
namespace {

std::vector<void (*)()> entries(const Ops& ops) {
    std::vector<void (*)()> all(
        1 + (sizeof(Ops) - sizeof(std::string_view)) / sizeof(void (*)()) - 1
    );
    std::memcpy(
        static_cast<void*>(all.data()),
        reinterpret_cast<const char*>(&ops) + sizeof(std::string_view),
        sizeof(Ops) - sizeof(std::string_view)
    );
    return all;
}

TEST(OpsTable, HasEveryOpOnEveryLevel) {
    std::vector<const Ops*> tables = {reference_ops()};
    for (const Backend& backend : backends(Order::kDefault)) tables.push_back(backend.ops);
    for (const Ops* ops : tables) {
        Ops all = *ops;
        EXPECT_EQ(all.tune_linear, nullptr) << "a CPU has nothing to choose";
        all.tune_linear = [](std::span<const LinearArgs>) { return 0; };
        EXPECT_EQ(all.linear_silu_mul, nullptr) << "one op spares a CPU nothing";
        all.linear_silu_mul = [](const LinearArgs&, const ActView&) { return false; };
        for (void (*entry)() : entries(all)) EXPECT_NE(entry, nullptr) << ops->name;
    }
}

TEST(Isa, ChoosesWhatIsAskedOrSaysWhatIsAccepted) {
    EXPECT_EQ(*choose_isa("scalar"), IsaLevel::kScalar);
    EXPECT_EQ(*choose_isa(name_of(best_isa())), best_isa());
    const Result<IsaLevel> unknown = choose_isa("sse9");
    ASSERT_FALSE(unknown.has_value());
    EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(unknown.error().message.find("avx512bf16"), std::string::npos);
    if (best_isa() != IsaLevel::kAvx512Bf16) {
        EXPECT_EQ(choose_isa("avx512bf16").error().code, ErrorCode::kUnsupported);
    }
}

TEST(Isa, TheEnvironmentDecidesWhereNothingIsAsked) {
    setenv("PITSTOP_CPU", "scalar", 1);
    EXPECT_EQ(*choose_isa(""), IsaLevel::kScalar);
    EXPECT_EQ(*choose_isa(name_of(best_isa())), best_isa());
    setenv("PITSTOP_CPU", "nonsense", 1);
    EXPECT_FALSE(choose_isa("").has_value());
    unsetenv("PITSTOP_CPU");
    EXPECT_EQ(*choose_isa(""), best_isa());
}

TEST(ThreadPool, RunsEveryItemOnceWithTheSameRanges) {
    for (const int num_threads : {1, 2, 5}) {
        ThreadPool pool(num_threads);
        for (const std::int64_t items : {0, 1, 2, 3, 17, 1000}) {
            for (const std::int64_t grain : {1, 4, 1000}) {
                std::vector<std::atomic<int>> hits(static_cast<std::size_t>(items));
                std::atomic<int> ranges{0};
                auto work = [&](std::int64_t begin, std::int64_t end, int thread) {
                    EXPECT_LT(thread, num_threads);
                    EXPECT_EQ(begin % grain, 0);
                    EXPECT_EQ(end, std::min(begin + grain, items));
                    for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
                    ++ranges;
                };
                parallel_for(stream_of(pool), items, grain, work);
                EXPECT_EQ(ranges, (items + grain - 1) / grain);
                for (const std::atomic<int>& hit : hits) EXPECT_EQ(hit, 1);
            }
        }
    }
}

// Jobs back to back, too short for every thread to wake: a sleeper must not take part in the next
// one.
TEST(ThreadPool, ShortJobsInARowDoNotMix) {
    ThreadPool pool(4);
    for (int job = 0; job < 20000; ++job) {
        std::int64_t sums[2] = {0, 0};  // each range has a cell of its own
        auto work = [&](std::int64_t begin, std::int64_t, int) { sums[begin] += job; };
        parallel_for(stream_of(pool), 2, 1, work);
        ASSERT_EQ(sums[0] + sums[1], 2 * job);
    }
}

TEST(ThreadPool, ParkedThreadsWakeUp) {
    ThreadPool pool(2);
    for (int job = 0; job < 3; ++job) {
        // Long past kSpinIterations: the other thread has parked when the job comes.
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
        while (std::chrono::steady_clock::now() < until) {
        }
        std::set<int> threads;
        std::atomic<int> inside{0};
        auto meet = [&](std::int64_t, std::int64_t, int
                    ) {  // both ranges wait for each other: two threads or a hang
            ++inside;
            const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
            while (inside < 2 && std::chrono::steady_clock::now() < deadline)
                std::this_thread::yield();
        };
        parallel_for(stream_of(pool), 2, 1, meet);
        EXPECT_EQ(inside, 2);
    }
}

std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// Every family header has its row, and the row has every column filled.
TEST(KernelsMd, HasARowForEveryFamily) {
    const std::filesystem::path folder = std::filesystem::path(source_dir()) / "kernels";
    const std::string text = read_file(folder / "KERNELS.md");
    int families = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".h") continue;
        if (read_file(entry.path()).find("_ref(const ") == std::string::npos) continue;
        ++families;
        const std::string row_begin = "| `" + entry.path().stem().string() + "` |";
        const std::size_t begin = text.find(row_begin);
        ASSERT_NE(begin, std::string::npos)
            << "KERNELS.md has no row for " << entry.path().filename();
        std::istringstream row(text.substr(begin, text.find('\n', begin) - begin));
        std::string cell;
        std::getline(row, cell, '|');
        int cells = 0;
        while (std::getline(row, cell, '|')) {
            ++cells;
            EXPECT_NE(cell.find_first_not_of(' '), std::string::npos)
                << "empty cell " << cells << " for " << entry.path().stem();
        }
        EXPECT_EQ(cells, 8) << "family, formula, shapes and dtypes, order of sums, bound, share of "
                               "peak, tolerance, source";
    }
    EXPECT_GE(families, 12);
}

}  // namespace
}  // namespace pitstop::kernels::test
