// Writes an update's durations into a JSON answer, under their names on the bus.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace pitstop::http {

// `seconds`: messages::UpdateSeconds, or a rank's messages::StageSeconds.
template <class T>
void add_seconds(nlohmann::ordered_json& json, T seconds) {
    seconds.fields_in([&](const char* name, double value, const char* /*about*/) {
        json[name] = value;
    });
}

}  // namespace pitstop::http
