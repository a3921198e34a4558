// Reads typed values from one JSON object of a checkpoint's configuration, and collects all
// problems. An absent key gets the caller's default. Null differs from absent: as in transformers,
// it is a problem unless the function that reads the key allows it.
#pragma once

#include "base/result.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// The problems of one file.
struct ConfigProblems {
    std::vector<std::string> list{};
    bool any_unsupported = false;  // false: each value is malformed
};

class ConfigReader {
  public:
    using Json = nlohmann::json;

    // `prefix` precedes each problem: the object's place in its file.
    ConfigReader(const Json& object, std::string prefix, ConfigProblems* problems)
        : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

    // Returns the key's value, or a null pointer if absent.
    [[nodiscard]] const Json* find(const char* key) const;
    // Returns the key's value, or a null pointer if it is absent or a JSON null.
    [[nodiscard]] const Json* find_value(const char* key) const;

    template <class... Args>
    void malformed(fmt::format_string<Args...> format, Args&&... args) {
        problems_->list.push_back(prefix_ + fmt::format(format, std::forward<Args>(args)...));
    }
    template <class... Args>
    void unsupported(fmt::format_string<Args...> format, Args&&... args) {
        problems_->any_unsupported = true;
        problems_->list.push_back(prefix_ + fmt::format(format, std::forward<Args>(args)...));
    }

    // Reads a whole number from 1 to `max`; `absent` empty: the key is required.
    std::int64_t whole(const char* key, std::optional<std::int64_t> absent, std::int64_t max);
    // Reads any whole number, for keys whose value may not matter; clamped to +-2^62.
    std::int64_t any_whole(const char* key, std::int64_t absent);
    // Reads a number > 0, or >= 0, that fp32 can represent.
    double positive(const char* key, std::optional<double> absent);
    double not_negative(const char* key, double absent);
    bool flag(const char* key, bool absent);
    std::string text(const char* key, std::string_view absent);

    [[nodiscard]] static std::string shown(const Json& value);

  private:
    const Json& object_;
    std::string prefix_;
    ConfigProblems* problems_;
};

}  // namespace pitstop::tp_worker
