// Fails a CUDA call in each phase of an update, on the GPU in software: every function that the
// phase calls, in every mode. Each run is a process of its own (a rank's *life*), because such an
// error ends it. The first life of a mode counts calls; in each later life one call fails.
//
// Two results are accepted. Either the handler ends the process, with a line that names the call
// and the error. The launcher then ends the tree, and the answer names rank and phase
// (tests/tree/test_gpu_faults.py). Or the order is refused by name, and succeeds when repeated. All
// bits of the old version are unchanged then; after a direct update the overwritten copy is torn.
//
// With PITSTOP_EMULATED_GPU_ALL in the environment, all phases of all modes, and more calls of each
// function than its first.
#include "tests/emulated_gpu/errors.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/in_process.h"
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr int kWhole = 0;       // every order succeeded
constexpr int kWrong = 1;       // an expectation failed
constexpr int kRefused = 10;    // an order was refused, and succeeded when repeated
constexpr int kUnreached = 11;  // the call did not occur
constexpr int kEnded = 12;      // the handler of CUDA's failures ended the process

constexpr const char* kFault = "PITSTOP_LIFE_FAULT";    // "phase function number error"
constexpr const char* kReport = "PITSTOP_LIFE_REPORT";  // a file of lines: result, phase, details

void report(const std::string& line) {
    std::ofstream(std::getenv(kReport), std::ios::app) << line << '\n';
}

std::string phase_now;  // of this process's life

// A rank's life, from its first update to a dropped stage.
class Life : public OneRankUpdaterTest {
  public:
    explicit Life(UpdateRoom room) : room_(room) {
        if (const char* const fault = std::getenv(kFault)) {
            std::istringstream words(fault);
            std::string error;
            words >> phase_ >> function_ >> number_ >> error;
            error_ = emulator::error_named(error).value();
        }
    }
    void TestBody() override {}

    int live() {
        EngineOptions options = options_on(DeviceKind::kCuda);
        options.update_room = room_;
        open(options);
        if (HasFailure()) return kWrong;
        update();
        if (room_ == UpdateRoom::kStaged || room_ == UpdateRoom::kHost) {
            in("rollback", [&] { return commit_it(/*rollback=*/true); });
            EXPECT_EQ(live_digest(), expected("stories"));
        }
        const std::string serving = live_digest();
        const std::vector both{messages::MemoryTag::kWeights, messages::MemoryTag::kKvCache};
        in("release", [&] { return change(messages::MemoryAction::kRelease, both); });
        in("resume", [&] { return change(messages::MemoryAction::kResume, both); });
        EXPECT_EQ(live_digest(), serving);
        if (room_ != UpdateRoom::kDirect) {
            lend();
            EXPECT_TRUE(stage_it(model_dir("bard")));
            in("drop", [&]() -> Result<> { return drop(), Ok{}; });
            EXPECT_EQ(live_digest(), serving);
        }
        if (HasFailure()) return kWrong;
        if (was_refused_) return kRefused;
        return function_.empty() || is_reached() ? kWhole : kUnreached;
    }

  private:
    void update() {
        lend();
        in("stage", [&] { return stage_it(model_dir("bard")); });
        in("commit", [&] { return commit_it(/*rollback=*/false); });
        if (room_ == UpdateRoom::kLend)
            in("return", [&] {
                return change(messages::MemoryAction::kResume, {messages::MemoryTag::kKvCache});
            });
        in("step", [&]() -> Result<> { return expect_generates_as("bard"), Ok{}; });
        in("digest", [&]() -> Result<> {
            EXPECT_EQ(live_digest(), expected("bard"));
            return Ok{};
        });
    }

    // Before a stage in this mode, the scheduler makes the KV cache lend its memory.
    void lend() {
        if (room_ != UpdateRoom::kLend) return;
        in("lend", [&] {
            return change(messages::MemoryAction::kRelease, {messages::MemoryTag::kKvCache});
        });
    }

    // Gives the order, and repeats it if it was refused.
    void in(const std::string& phase, const std::function<Result<>()>& order) {
        phase_now = phase;
        if (phase == phase_ && !is_armed_) {
            is_armed_ = true;
            last_ = emulator::num_calls(function_) + number_;
            emulator::fail_call(function_, number_, error_);
        }
        const std::map<std::string, std::int64_t> before = emulator::all_num_calls();
        const Result<> done = order();
        for (const auto& [function, num] : emulator::all_num_calls()) {
            const auto found = before.find(function);
            const std::int64_t num_here = num - (found == before.end() ? 0 : found->second);
            if (num_here > 0) report(fmt::format("calls {} {} {}", phase, function, num_here));
        }
        if (done) return;
        report(fmt::format("refused {} {}", phase, done.error().message));
        EXPECT_TRUE(is_armed_) << phase << ": " << done.error().message;
        was_refused_ = true;
        const Result<> again = order();
        EXPECT_TRUE(again) << phase << ": " << again.error().message;
    }
    [[nodiscard]] bool is_reached() const {
        return is_armed_ && emulator::num_calls(function_) >= last_;
    }

    Result<> stage_it(const std::string& path) {
        const std::string before = room_ == UpdateRoom::kDirect ? "" : live_digest();
        messages::UpdateSpec spec;
        spec.source.path = path;
        if (room_ == UpdateRoom::kDirect) spec.mode = messages::UpdateMode::kDirect;
        const messages::WorkerStaged vote = stage(spec);
        if (vote.outcome.ok) return Ok{};
        drop();
        if (room_ != UpdateRoom::kDirect) {
            EXPECT_EQ(live_digest(), before);
        }
        EXPECT_FALSE(vote.outcome.problems.empty());
        return Error{
            vote.outcome.code.value_or(ErrorCode::kInternal),
            fmt::format("{}", fmt::join(vote.outcome.problems, "; "))};
    }
    Result<> commit_it(bool rollback) {
        commit(rollback);
        return Ok{};
    }
    Result<> change(messages::MemoryAction action, std::vector<messages::MemoryTag> tags) {
        messages::WorkerMemory order;
        order.call = CallId{1};
        order.action = action;
        order.tags = std::move(tags);
        order.keep_weights = true;
        const auto done = ask<messages::WorkerMemoryDone>(order);
        if (done.verdict.is_done()) return Ok{};
        return done.verdict.error();
    }
    std::string live_digest() {
        const auto version = messages::version_digest({{{Rank{}, live_digests()}}});
        EXPECT_TRUE(version) << version.error().message;
        return version ? to_hex(version->digest) : "";
    }
    static std::string expected(const std::string& model) {
        return load_json("tests/data/golden/digests.json")["models"][model]["digest"];
    }
    void expect_generates_as(const std::string& model) {
        constexpr std::size_t kNum = 2;  // few, because the GPU in software is slow
        const Json entry =
            load_json("tests/data/models/reference.json")["models"][model]["greedy"][0];
        std::vector<TokenId> continuation = ids_of(entry["continuation"]);
        continuation.resize(kNum);
        EXPECT_EQ(generate(replica_.get(), ids_of(entry["ids"]), kNum), continuation);
    }

    UpdateRoom room_;
    std::string phase_{};
    std::string function_{};
    std::int64_t number_ = 0;
    int error_ = 0;
    bool is_armed_ = false;
    std::int64_t last_ = 0;  // the number of the failing call, from the start
    bool was_refused_ = false;
};

constexpr UpdateRoom kRooms[] = {
    UpdateRoom::kStaged, UpdateRoom::kHost, UpdateRoom::kLend, UpdateRoom::kDirect};

bool define_lives() {
    for (const UpdateRoom room : kRooms) {
        emulator::define_part(std::string(name_of(room)), [room] {
            kernels::set_cuda_failure_handler([](const std::string& line) {
                report(fmt::format("ended {} {}", phase_now, line));
                ::_exit(kEnded);
            });
            return why_no_gpu().empty() ? Life(room).live() : kWrong;
        });
    }
    return true;
}
const bool are_lives_defined = define_lives();

struct Fault {
    std::string phase{};
    std::string function{};
    std::int64_t number = 0;
    std::string error{};
};

// Runs lives in processes of their own, two at a time.
class GpuFaults : public testing::TestWithParam<UpdateRoom> {
  protected:
    struct Child {
        Fault fault{};
        std::string place{};  // the files of its machine and its report
        int process = -1;
    };
    Child start(Fault fault) {
        EXPECT_TRUE(are_lives_defined);
        Child child{.fault = std::move(fault)};
        child.place = fmt::format("{}pitstop-life-{}-{}", testing::TempDir(), ::getpid(), ++num_);
        std::map<std::string, std::string> environment{
            {"PITSTOP_EMULATED_MACHINE", child.place + ".machine"},
            {"PITSTOP_EMULATED_POLICY", "early"},
            {kReport, child.place + ".report"}};
        const Fault& f = child.fault;
        if (!f.function.empty())
            environment[kFault] =
                fmt::format("{} {} {} {}", f.phase, f.function, f.number, f.error);
        child.process = emulator::start_part(std::string(name_of(GetParam())), environment);
        return child;
    }
    // Returns the process's exit status, and the lines that it reported.
    static std::pair<int, std::vector<std::string>> wait(const Child& child) {
        const int status = emulator::wait_part(child.process);
        std::vector<std::string> lines;
        std::ifstream file(child.place + ".report");
        for (std::string line; std::getline(file, line);) lines.push_back(line);
        for (const char* const kind : {".machine", ".report"})
            ::unlink((child.place + kind).c_str());
        return {status, lines};
    }

    // Returns whether the phase differs between this mode and the others. `staged` runs the phases
    // that are equal in all modes.
    static bool is_always(const std::string& phase) {
        static const std::map<UpdateRoom, std::set<std::string>> phases{
            {UpdateRoom::kStaged, {"stage", "digest", "release", "resume"}},
            {UpdateRoom::kHost, {"stage", "commit", "rollback"}},
            {UpdateRoom::kLend, {"lend", "return", "drop"}},
            {UpdateRoom::kDirect, {"stage"}}};
        return phases.at(GetParam()).contains(phase);
    }
    // Returns a fault for each function that a phase of this life calls. Functions that allocate
    // memory also fail with an allocation error.
    static std::vector<Fault> faults_in(const std::vector<std::string>& lines) {
        const bool is_all = std::getenv("PITSTOP_EMULATED_GPU_ALL") != nullptr;
        const std::set<std::string> takers{"cudaMalloc", "cudaMallocHost", "cuMemCreate"};
        std::set<std::pair<std::string, std::string>> seen;
        std::vector<Fault> faults;
        for (const std::string& line : lines) {
            std::istringstream words(line);
            std::string what, phase, function;
            std::int64_t num = 0;
            if (!(words >> what >> phase >> function) || what != "calls") continue;
            if (function == "pageable") continue;  // counted as copies already
            if (!is_all && !is_always(phase)) continue;
            if (!(words >> num) || !seen.insert({phase, function}).second) continue;
            const bool is_work = function == "kernel" || function == "copy";
            const std::string error = is_work ? "cudaErrorLaunchFailure" : "cudaErrorUnknown";
            std::set<std::int64_t> numbers{1};
            if (is_all) numbers.insert({std::min<std::int64_t>(2, num), (num + 1) / 2, num});
            for (const std::int64_t number : numbers) {
                faults.push_back({phase, function, number, error});
                if (takers.contains(function))
                    faults.push_back({phase, function, number, "cudaErrorMemoryAllocation"});
            }
        }
        return faults;
    }

    void check(const Child& child) {
        const Fault& fault = child.fault;
        const auto [status, lines] = wait(child);
        const std::string all = fmt::format("{}", fmt::join(lines, "\n"));
        SCOPED_TRACE(fmt::format(
            "{}: call {} of {} in {} fails with {}\n{}",
            name_of(GetParam()),
            fault.number,
            fault.function,
            fault.phase,
            fault.error,
            all
        ));
        // The number of polls of the GPU depends on the machine.
        if (status == kUnreached && fault.number > 1) return;
        if (fault.error == "cudaErrorMemoryAllocation") {
            EXPECT_EQ(status, kRefused);
            EXPECT_NE(all.find("refused " + fault.phase + " "), std::string::npos);
            return;
        }
        EXPECT_EQ(status, kEnded);
        const std::size_t ended = all.find("ended ");
        ASSERT_NE(ended, std::string::npos);
        const std::string line = all.substr(ended);
        const bool is_driver = fault.function.starts_with("cuMem");
        EXPECT_NE(line.find(is_driver ? "CUDA_ERROR_UNKNOWN" : fault.error), std::string::npos);
        // A launch is named by its kernel. cudaMemset calls its asynchronous variant here.
        if (fault.function.starts_with("cu") && fault.function != "cudaLaunchKernelEx") {
            const std::string call = fault.function.substr(0, fault.function.find("Async"));
            EXPECT_NE(line.find(call), std::string::npos);
        }
    }

  private:
    int num_ = 0;
};

TEST_P(GpuFaults, P2_P5_ACallThatFailsEndsTheRankByItsNameOrIsRefusedAndMended) {
    const auto [status, lines] = wait(start({}));
    ASSERT_EQ(status, kWhole) << fmt::format("{}", fmt::join(lines, "\n"));
    const std::vector<Fault> faults = faults_in(lines);
    EXPECT_GT(faults.size(), 8u);
    std::optional<Child> other;  // two at a time
    for (const Fault& fault : faults) {
        Child child = start(fault);
        if (other) check(*other);
        other = std::move(child);
    }
    if (other) check(*other);
    std::printf("%zu calls failed\n", faults.size());
}

INSTANTIATE_TEST_SUITE_P(Rooms, GpuFaults, testing::ValuesIn(kRooms), [](const auto& room) {
    return std::string(name_of(room.param));
});

}  // namespace
}  // namespace pitstop::tp_worker
