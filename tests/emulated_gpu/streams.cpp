#include "tests/emulated_gpu/streams.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/graphs.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/settings.h"
#include "tests/emulated_gpu/tolls.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace pitstop::emulator {
namespace {

using namespace std::chrono_literals;

// With the late policy, work that nothing waits for runs after this time: a host may poll
// page-locked memory, which no CUDA call shows.
constexpr auto kPatience = 10ms;
// This many polls without success count as a wait.
constexpr int kQuestions = 3;
constexpr int kIllegalAddress = 700;  // cudaErrorIllegalAddress
// How often work that depends on another process is checked.
constexpr auto kLook = 200us;

thread_local bool is_executor = false;
thread_local sigjmp_buf recovery;
struct sigaction previous_action[2];

// A GPU's access to closed memory ends the context; the host's access is a bug of the host.
void on_bad_access(int signal, siginfo_t* info, void* context) {
    if (is_executor) siglongjmp(recovery, signal);
    const struct sigaction& previous = previous_action[signal == SIGBUS ? 1 : 0];
    if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr)
        return previous.sa_sigaction(signal, info, context);
    std::fprintf(
        stderr, "emulated GPU: the host accessed %p, which is not its memory\n", info->si_addr
    );
    ::signal(signal, SIG_DFL);
}

class Executor {
  public:
    static Executor& of_process() {
        static Executor* const executor = new Executor;
        return *executor;
    }

    std::shared_ptr<Stream> add(int gpu, int priority, StreamKind kind) {
        const std::scoped_lock lock(mutex_);
        auto stream = std::make_shared<Stream>();
        stream->gpu = gpu;
        stream->priority = priority;
        stream->kind = kind;
        all_.push_back(stream);
        by_handle_[stream.get()] = stream;
        return stream;
    }

    void remove(const std::shared_ptr<Stream>& stream) {
        const std::scoped_lock lock(mutex_);
        by_handle_.erase(stream.get());
        if (stream->queue.empty()) std::erase(all_, stream);
    }

    std::shared_ptr<Stream> find(const void* handle, int gpu) {
        {
            const std::scoped_lock lock(mutex_);
            const auto found = by_handle_.find(handle);
            if (found != by_handle_.end()) return found->second;
            if (handle != nullptr) return nullptr;
            if (const auto legacy = legacy_.find(gpu); legacy != legacy_.end())
                return legacy->second;
        }
        std::shared_ptr<Stream> made = add(gpu, 0, StreamKind::kLegacy);
        const std::scoped_lock lock(mutex_);
        return legacy_[gpu] = made;
    }

    std::vector<std::shared_ptr<Stream>> of_gpu(int gpu) {
        const std::scoped_lock lock(mutex_);
        std::vector<std::shared_ptr<Stream>> found;
        for (const auto& stream : all_) {
            if (stream->gpu == gpu) found.push_back(stream);
        }
        return found;
    }

    Point enqueue(const std::shared_ptr<Stream>& stream, Work work) {
        std::unique_lock lock(mutex_);
        if (settings().has_tolls && stream->queue.size() >= kWorksMax) wait_for_room(stream, lock);
        order_with_legacy(*stream, work);
        stream->queue.push_back(std::move(work));
        ++stream->num_enqueued;
        changed_.notify_all();
        return {stream, stream->num_enqueued};
    }

    Point end_of(const std::shared_ptr<Stream>& stream) {
        const std::scoped_lock lock(mutex_);
        return {stream, stream->num_enqueued};
    }

    bool is_done(const Point& point) {
        const std::scoped_lock lock(mutex_);
        if (point.stream == nullptr || point.stream->num_done >= point.number) return true;
        if (++num_questions_ >= kQuestions) {
            num_questions_ = 0;
            demand(point);
        }
        return false;
    }

    int wait(const std::vector<Point>& points) {
        std::unique_lock lock(mutex_);
        for (const Point& point : points) demand(point);
        changed_.wait(lock, [&] {
            return error_ != 0 || std::all_of(points.begin(), points.end(), [](const Point& point) {
                       return point.stream == nullptr || point.stream->num_done >= point.number;
                   });
        });
        return error_;
    }

    // REQUIRES: called by the executor's own thread.
    void lose_patience() { has_lost_patience_ = true; }

    int error() {
        const std::scoped_lock lock(mutex_);
        return error_;
    }

    void end_context(int error) {
        const std::scoped_lock lock(mutex_);
        if (error_ == 0) error_ = error;
        changed_.notify_all();
    }

  private:
    Executor() : random_(settings().seed) {
        struct sigaction action {};
        action.sa_sigaction = on_bad_access;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        ::sigaction(SIGSEGV, &action, &previous_action[0]);
        ::sigaction(SIGBUS, &action, &previous_action[1]);
        std::thread([this] { run(); }).detach();
    }

    // The legacy default stream waits for all blocking streams, and they for it. Source: CUDA
    // Runtime API, "Stream synchronization behavior".
    void order_with_legacy(const Stream& stream, Work& work) {
        if (stream.kind == StreamKind::kNonBlocking) return;
        for (const auto& other : all_) {
            const bool is_ordered =
                other.get() != &stream && other->gpu == stream.gpu &&
                other->kind != StreamKind::kNonBlocking &&
                (other->kind == StreamKind::kLegacy || stream.kind == StreamKind::kLegacy);
            if (is_ordered && other->num_enqueued > other->num_done)
                work.after.push_back({other, other->num_enqueued});
        }
    }

    void wait_for_room(const std::shared_ptr<Stream>& stream, std::unique_lock<std::mutex>& lock) {
        demand({stream, stream->num_done + 1});
        changed_.wait(lock, [&] { return error_ != 0 || stream->queue.size() < kWorksMax; });
    }

    void demand(const Point& point) {
        if (point.stream == nullptr) return;
        std::uint64_t& demanded = point.stream->num_demanded;
        if (demanded >= point.number) return;
        demanded = point.number;
        changed_.notify_all();
    }

    // Everything that demanded work waits for is demanded, too.
    void pass_demands_on() {
        for (bool has_changed = true; has_changed;) {
            has_changed = false;
            for (const auto& stream : all_) {
                if (stream->num_demanded <= stream->num_done || stream->queue.empty()) continue;
                for (const Point& point : stream->queue.front().after) {
                    if (point.stream->num_demanded >= point.number) continue;
                    point.stream->num_demanded = point.number;
                    has_changed = true;
                }
            }
        }
    }

    bool may_go_on(const Stream& stream) {
        if (stream.queue.empty()) return false;
        if (stream.running) return true;
        const Work& work = stream.queue.front();
        for (const Point& point : work.after) {
            if (point.stream->num_done < point.number) return false;
        }
        if (!work.may_begin) return true;
        const bool may_begin = work.may_begin();
        has_outside_waits_ = has_outside_waits_ || !may_begin;
        return may_begin;
    }

    // Returns the stream whose first work gets a turn; null: no stream may run, or none must run
    // yet.
    std::shared_ptr<Stream> choose() {
        has_outside_waits_ = false;
        pass_demands_on();
        std::vector<std::shared_ptr<Stream>> candidates;
        std::vector<std::shared_ptr<Stream>> demanded;
        for (const auto& stream : all_) {
            if (!may_go_on(*stream)) continue;
            candidates.push_back(stream);
            if (stream->num_demanded > stream->num_done) demanded.push_back(stream);
        }
        const Policy policy = settings().policy;
        const bool is_hesitant =
            policy == Policy::kLate || (policy == Policy::kRandom && random_.below(8) == 0);
        if (is_hesitant && !has_lost_patience_) candidates = std::move(demanded);
        if (candidates.empty()) return nullptr;
        return candidates[random_.below(candidates.size())];
    }

    void run() {
        is_executor = true;
        std::unique_lock lock(mutex_);
        std::optional<DeviceAccess> access;
        while (true) {
            const std::shared_ptr<Stream> stream = error_ == 0 ? choose() : nullptr;
            if (stream != nullptr) {
                if (!access) access.emplace();
                advance(*stream, lock);
                continue;
            }
            access.reset();
            const auto patience = has_outside_waits_ ? std::chrono::microseconds(kLook)
                                                     : std::chrono::microseconds(kPatience);
            has_lost_patience_ = changed_.wait_for(lock, patience) == std::cv_status::timeout;
        }
    }

    // The longjmp of a bad access returns into this function, so all its variables are members.
    void run_step() {
        is_last_ = true;
        if (sigsetjmp(recovery, 1) == 0) {
            if (begin_) step_ = begin_();
            is_last_ = !step_ || step_();
            return;
        }
        std::fprintf(stderr, "emulated GPU: an access to closed memory by the device\n");
        end_context(kIllegalAddress);
    }

    void advance(Stream& stream, std::unique_lock<std::mutex>& lock) {
        begin_ = stream.running ? nullptr : stream.queue.front().begin;
        step_ = std::exchange(stream.running, nullptr);
        const int gpu = stream.queue.front().gpu;
        lock.unlock();
        open_memory_for(gpu);
        run_step();
        lock.lock();
        begin_ = nullptr;
        if (!is_last_) {
            stream.running = std::move(step_);
            return;
        }
        step_ = nullptr;
        has_lost_patience_ = false;
        stream.queue.pop_front();
        ++stream.num_done;
        if (stream.queue.empty() && !by_handle_.contains(&stream)) {
            std::erase_if(all_, [&](const auto& other) { return other.get() == &stream; });
        }
        changed_.notify_all();
    }

    std::mutex mutex_{};
    std::condition_variable changed_{};
    std::vector<std::shared_ptr<Stream>> all_{};
    std::map<const void*, std::shared_ptr<Stream>> by_handle_{};
    std::map<int, std::shared_ptr<Stream>> legacy_{};
    Random random_;
    // The current work's state; for the executor only.
    std::function<Step()> begin_{};
    Step step_{};
    bool is_last_ = false;
    int num_questions_ = 0;
    bool has_outside_waits_ = false;
    bool has_lost_patience_ = false;
    int error_ = 0;
};

}  // namespace

std::shared_ptr<Stream> add_stream(int gpu, int priority, StreamKind kind) {
    return Executor::of_process().add(gpu, priority, kind);
}

void remove_stream(const std::shared_ptr<Stream>& stream) { Executor::of_process().remove(stream); }

std::shared_ptr<Stream> find_stream(const void* handle, int gpu) {
    return Executor::of_process().find(handle, gpu);
}

std::vector<std::shared_ptr<Stream>> streams_of(int gpu) {
    return Executor::of_process().of_gpu(gpu);
}

Point enqueue(const std::shared_ptr<Stream>& stream, Work work) {
    if (stream->capture != nullptr) {
        add_node(*stream, std::move(work));
        return {};
    }
    return Executor::of_process().enqueue(stream, std::move(work));
}

Point end_of(const std::shared_ptr<Stream>& stream) {
    return Executor::of_process().end_of(stream);
}

bool is_done(const Point& point) { return Executor::of_process().is_done(point); }

void let_other_works_run() { Executor::of_process().lose_patience(); }

namespace {
thread_local bool has_host_function = false;
}

bool is_in_host_function() { return has_host_function; }

InHostFunction::InHostFunction() { has_host_function = true; }
InHostFunction::~InHostFunction() { has_host_function = false; }

int wait_for(const std::vector<Point>& points) { return Executor::of_process().wait(points); }

namespace {
std::atomic<double> clock_ahead_ms{0.0};
}

double gpu_clock_ms() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count() + clock_ahead_ms;
}

void advance_gpu_clock(double ms) { clock_ahead_ms.fetch_add(ms); }

int sticky_error() { return Executor::of_process().error(); }

void end_context(int error) { Executor::of_process().end_context(error); }

}  // namespace pitstop::emulator
