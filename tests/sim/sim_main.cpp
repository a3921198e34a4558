// pitstop_sim: random schedules by the hundred thousand (tests/sim/world.h). The nightly run:
//   pitstop_sim --num 100000
#include "base/flags.h"
#include "tests/sim/problem.h"
#include "tests/sim/world.h"

#include <cstdio>
#include <exception>
#include <string>

namespace pitstop {
namespace {

// An exception is a schedule's problem, too: its seed must be named.
sim::Report run_schedule(
    std::int64_t seed, sim::World::Adapters adapters, sim::World::Experts experts
) {
    try {
        return sim::World(static_cast<std::uint64_t>(seed), adapters, experts).run();
    } catch (const std::exception& thrown) {
        sim::Report report;
        report.problem = std::string("an exception: ") + thrown.what();
        return report;
    }
}

struct AdapterCounts {
    std::int64_t num_loads = 0;
    std::int64_t num_rollbacks = 0;
    std::int64_t num_parts = 0;
    std::int64_t num_sparse_parts = 0;
    std::int64_t num_sessions = 0;
    std::int64_t num_sessions_committed = 0;
    std::int64_t num_sessions_expired = 0;

    void add(const sim::Report& report) {
        num_loads += report.num_adapter_loads;
        num_rollbacks += report.num_adapter_rollbacks;
        num_parts += report.num_adapter_parts;
        num_sparse_parts += report.num_adapter_sparse_parts;
        num_sessions += report.num_adapter_sessions;
        num_sessions_committed += report.num_adapter_sessions_committed;
        num_sessions_expired += report.num_adapter_sessions_expired;
    }
    void print() const {
        std::printf(
            "adapters: %lld versions, of these %lld rollbacks and %lld parts, %lld sparse\n",
            static_cast<long long>(num_loads),
            static_cast<long long>(num_rollbacks),
            static_cast<long long>(num_parts),
            static_cast<long long>(num_sparse_parts)
        );
        std::printf(
            "sessions of adapters: %lld, of these %lld committed and %lld idle for too long\n",
            static_cast<long long>(num_sessions),
            static_cast<long long>(num_sessions_committed),
            static_cast<long long>(num_sessions_expired)
        );
    }
};

}  // namespace
}  // namespace pitstop

int main(int argc, char** argv) {
    using namespace pitstop;
    std::int64_t first = 1;
    std::int64_t num = 100'000;
    bool keep_going = false;
    bool has_adapters = false;
    bool has_experts = false;
    FlagSet flags(
        "pitstop_sim", "Runs the scheduler and the update coordinator through random schedules."
    );
    flags.add("first", &first, "the first seed");
    flags.add("num", &num, "number of seeds, one schedule each");
    flags.add("adapters", &has_adapters, "schedules also load adapters");
    flags.add("experts", &has_experts, "requests also bring routes of experts and ask for routes");
    flags.add("keep-going", &keep_going, "continue after a schedule that fails");
    if (const auto code = flags.read(argc, argv)) return *code;
    std::int64_t num_failed = 0;
    std::int64_t num_events = 0;
    std::int64_t num_tokens = 0;
    AdapterCounts adapters;
    for (std::int64_t seed = first; seed < first + num; ++seed) {
        const sim::Report report = run_schedule(
            seed,
            has_adapters ? sim::World::Adapters::kYes : sim::World::Adapters::kNo,
            has_experts ? sim::World::Experts::kYes : sim::World::Experts::kNo
        );
        num_events += report.num_events;
        num_tokens += report.num_tokens;
        adapters.add(report);
        if (!report.problem) continue;
        ++num_failed;
        sim::print_problem(stdout, seed, *report.problem);
        if (!keep_going) break;
    }
    if (has_adapters) adapters.print();
    std::printf(
        "%lld schedules, %lld events, %lld tokens, %lld failed\n",
        static_cast<long long>(num),
        static_cast<long long>(num_events),
        static_cast<long long>(num_tokens),
        static_cast<long long>(num_failed)
    );
    return num_failed == 0 ? 0 : 1;
}
