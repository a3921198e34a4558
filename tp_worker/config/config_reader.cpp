#include "tp_worker/config/config_reader.h"

#include <algorithm>

namespace pitstop::tp_worker {

using Json = nlohmann::json;

namespace {

constexpr double kNumberMax = 1e30;  // fp32 can represent each number, and the quotient of two

}  // namespace

const Json* ConfigReader::find(const char* key) const {
    const auto place = object_.find(key);
    return place == object_.end() ? nullptr : &*place;
}

const Json* ConfigReader::find_value(const char* key) const {
    const Json* value = find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::int64_t ConfigReader::whole(
    const char* key, std::optional<std::int64_t> absent, std::int64_t max
) {
    const Json* value = find(key);
    if (value == nullptr) {
        if (!absent) malformed("{} is missing", key);
        return absent.value_or(1);
    }
    if (!value->is_number_integer() || *value < 1 || *value > max) {
        malformed("{} must be a whole number from 1 to {}, not {}", key, max, shown(*value));
        return 1;
    }
    return value->get<std::int64_t>();
}

std::int64_t ConfigReader::any_whole(const char* key, std::int64_t absent) {
    constexpr std::int64_t kMax = std::int64_t{1} << 62;
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number_integer()) {
        malformed("{} must be a whole number, not {}", key, shown(*value));
        return absent;
    }
    if (value->is_number_unsigned()) {
        const auto number = value->get<std::uint64_t>();
        return static_cast<std::int64_t>(std::min<std::uint64_t>(number, kMax));
    }
    return std::clamp(value->get<std::int64_t>(), -kMax, kMax);
}

double ConfigReader::positive(const char* key, std::optional<double> absent) {
    const Json* value = find(key);
    if (value == nullptr) {
        if (!absent) malformed("{} is missing", key);
        return absent.value_or(1.0);
    }
    const double number = value->is_number() ? value->get<double>() : 0.0;
    if (!(number >= 1.0 / kNumberMax && number <= kNumberMax)) {
        malformed(
            "{} must be a number > 0 ({} to {}), not {}",
            key,
            1.0 / kNumberMax,
            kNumberMax,
            shown(*value)
        );
        return 1.0;
    }
    return number;
}

double ConfigReader::not_negative(const char* key, double absent) {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    const double number = value->is_number() ? value->get<double>() : -1.0;
    if (!(number >= 0.0 && number <= kNumberMax)) {
        malformed("{} must be a number from 0 to {}, not {}", key, kNumberMax, shown(*value));
        return absent;
    }
    return number;
}

bool ConfigReader::flag(const char* key, bool absent) {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) {
        malformed("{} must be true or false, not {}", key, shown(*value));
        return absent;
    }
    return value->get<bool>();
}

std::string ConfigReader::text(const char* key, std::string_view absent) {
    const Json* value = find(key);
    if (value == nullptr) return std::string(absent);
    if (!value->is_string()) {
        malformed("{} must be a string, not {}", key, shown(*value));
        return std::string(absent);
    }
    return value->get<std::string>();
}

std::string ConfigReader::shown(const Json& value) {
    constexpr std::size_t kShownMax = 80;
    std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    if (text.size() > kShownMax) text.replace(kShownMax, std::string::npos, "...");
    return text;
}

}  // namespace pitstop::tp_worker
