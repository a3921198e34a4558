#include "tests/emulated_gpu/tolls.h"

#include "tests/emulated_gpu/settings.h"

#include <chrono>
#include <mutex>
#include <thread>

namespace pitstop::emulator {
namespace {

using namespace std::chrono_literals;

std::mutex& payers() {
    static std::mutex* const instance = new std::mutex;
    return *instance;
}

void pay(std::chrono::nanoseconds toll) {
    if (!settings().has_tolls) return;
    const std::scoped_lock lock(payers());
    std::this_thread::sleep_for(toll);
}

}  // namespace

void wait_for_payers() {
    if (!settings().has_tolls) return;
    const std::scoped_lock lock(payers());
}

void pay_for_page_locking(std::size_t bytes) {
    constexpr auto kOfMebibyte = 540ms / 1024.0;
    const double mebibytes = static_cast<double>(bytes) / (1 << 20);
    pay(std::chrono::duration_cast<std::chrono::nanoseconds>(mebibytes * kOfMebibyte));
}

void pay_for_opening() { pay(1700us); }

void pay_for_closing() { pay(200us); }

int pay_for_freeing(int gpu) {
    if (!settings().has_tolls) return 0;
    std::vector<Point> points;
    for (const auto& stream : streams_of(gpu)) points.push_back(end_of(stream));
    return wait_for(points);
}

}  // namespace pitstop::emulator
