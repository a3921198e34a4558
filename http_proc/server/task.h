// The coroutines of the HTTP server: a handler returns a Task.
//
//   Task<Response> ping(Exchange& exchange) { co_return Response::empty(200); }
//
// A Task starts when it is awaited, and is awaited once. Its body always runs to its end: no code
// destroys a suspended task, so a handler need not expect to be cut off. If the client leaves,
// write() returns false and streams end early (exchange.h).
//
// asio::awaitable is not used, for three reasons. Handlers compile without Asio (1 s less a file).
// A wait resumes where its value arrives, without a queue. Tests drive handlers without sockets.
//
// Three forms that GCC 12 miscompiles are refused (tests/tidy/test_coroutines.py shows them):
// co_await inside `?:`, `&&` or `||` (evaluated even if it must not be); in the condition of a
// function that declares no variable (nothing runs); and in one expression with braces that make an
// aggregate (its members are destroyed twice).
//
// Thread: the server's loop.
#pragma once

#include "base/check.h"

#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace pitstop::http {

template <class T = void>
class Task;

namespace task_detail {

struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> done) noexcept {
        return done.promise().continuation;
    }
    void await_resume() noexcept {}
};

struct PromiseBase {
    std::coroutine_handle<> continuation = std::noop_coroutine();
    // An exception of a handler (a JSON accessor, bad_alloc) ends its own request, not the server.
    std::exception_ptr thrown{};

    std::suspend_always initial_suspend() noexcept { return {}; }
    FinalAwaiter final_suspend() noexcept { return {}; }
    void unhandled_exception() noexcept { thrown = std::current_exception(); }
};

template <class T>
struct Promise : PromiseBase {
    std::optional<T> value{};

    Task<T> get_return_object();
    void return_value(T result) { value.emplace(std::move(result)); }
    T take() {
        if (thrown) std::rethrow_exception(thrown);
        return std::move(*value);
    }
};

template <>
struct Promise<void> : PromiseBase {
    Task<void> get_return_object();
    void return_void() {}
    void take() {
        if (thrown) std::rethrow_exception(thrown);
    }
};

}  // namespace task_detail

template <class T>
class [[nodiscard]] Task {
  public:
    using promise_type = task_detail::Promise<T>;

    explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
    Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
    Task& operator=(Task&&) = delete;
    ~Task() {
        if (frame_) frame_.destroy();
    }

    bool await_ready() noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiter) noexcept {
        frame_.promise().continuation = waiter;
        return frame_;
    }
    T await_resume() { return frame_.promise().take(); }

  private:
    std::coroutine_handle<promise_type> frame_;
};

template <class T>
Task<T> task_detail::Promise<T>::get_return_object() {
    return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> task_detail::Promise<void>::get_return_object() {
    return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

// Runs a task that no code awaits. REQUIRES: the task does not throw.
namespace task_detail {
struct Detached {
    struct promise_type {
        Detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() noexcept { CHECK(false); }
    };
};
}  // namespace task_detail

inline task_detail::Detached run_detached(Task<> task) { co_await task; }

// A value that arrives once: one side sets it and the other awaits it, in either order.
//
//   Later<int> later;
//   start([setter = later.setter()](int value) { setter.set(value); });
//   int value = co_await later;
template <class T>
class Later {
    struct State {
        std::optional<T> value{};
        std::coroutine_handle<> waiter{};
    };

  public:
    class Setter {
      public:
        // Resumes the waiter before it returns. REQUIRES: called at most once.
        void set(T value) const {
            CHECK(!state_->value);
            // the waiter may destroy this setter's owner
            const std::shared_ptr<State> state = state_;
            state->value.emplace(std::move(value));
            if (state->waiter) state->waiter.resume();
        }

      private:
        friend class Later;
        explicit Setter(std::shared_ptr<State> state) : state_(std::move(state)) {}
        std::shared_ptr<State> state_;  // shared by the setter and the waiter
    };

    Later() : state_(std::make_shared<State>()) {}
    [[nodiscard]] Setter setter() const { return Setter(state_); }

    bool await_ready() const noexcept { return state_->value.has_value(); }
    void await_suspend(std::coroutine_handle<> waiter) noexcept { state_->waiter = waiter; }
    T await_resume() { return std::move(*state_->value); }

  private:
    std::shared_ptr<State> state_;
};

}  // namespace pitstop::http
