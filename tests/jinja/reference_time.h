// The time that the Python reference's strftime_now saw (tests/golden/make_templates.py).
#pragma once

#include <ctime>

namespace pitstop::jinja {

// Returns Saturday, 14 March 2026, 15:09:26.
inline std::tm reference_time() {
    std::tm now{};
    now.tm_year = 2026 - 1900;
    now.tm_mon = 2;
    now.tm_mday = 14;
    now.tm_hour = 15;
    now.tm_min = 9;
    now.tm_sec = 26;
    now.tm_wday = 6;
    now.tm_yday = 72;
    return now;
}

}  // namespace pitstop::jinja
