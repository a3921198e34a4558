// JSON as a stream of events, for files of a checkpoint that nobody vouches for: nothing is built
// but what a reader keeps, and reading ends where it goes wrong, too deep, or is dropped.
//
// Included by this folder's .cpp files alone, for it knows nlohmann::json.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop {

// A reader of one kind of file says what to do with an event; whatever it returns as a problem ends
// the reading.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
  public:
    // `path` is for the messages.
    JsonEvents(const std::string& path, std::size_t depth_max, const ReadLimits& limits)
        : path_(path), depth_max_(depth_max), limits_(limits) {}

    // The whole of `json`, which must be one object.
    Result<> read(std::string_view json) {
        nlohmann::json_sax<nlohmann::json>* const events = this;
        const bool is_json =
            nlohmann::json::sax_parse(json.data(), json.data() + json.size(), events);
        if (problem_) return *std::move(problem_);
        if (!is_json) return make_error(ErrorCode::kMalformed, "'{}' is not JSON", path_);
        return Ok{};
    }

  protected:
    // A value that is no object and no array. Strings may be taken.
    struct Scalar {
        std::string* text = nullptr;            // null: no string
        std::optional<std::uint64_t> number{};  // a whole one, not negative
    };
    // How deep the event is: 1 in the root object. A start is told before the depth grows, an end
    // after it has shrunk.
    [[nodiscard]] std::size_t depth() const { return depth_; }
    [[nodiscard]] const std::string& path() const { return path_; }

    virtual std::optional<Error> on_key(std::string& name) = 0;
    virtual std::optional<Error> on_scalar(const Scalar& scalar) = 0;
    virtual std::optional<Error> on_object() = 0;
    virtual std::optional<Error> on_array() = 0;
    virtual std::optional<Error> on_end() = 0;  // of either

  private:
    using Json = nlohmann::json;

    bool go_on(std::optional<Error> problem) {
        if (!problem && limits_.is_over()) problem = reading_was_dropped(path_);
        problem_ = std::move(problem);
        return !problem_;
    }
    bool refuse(std::string_view why) {
        return go_on(make_error(ErrorCode::kMalformed, "'{}' {}", path_, why));
    }
    bool scalar(const Scalar& value) {
        if (depth_ == 0) return refuse("is no JSON object");
        return go_on(on_scalar(value));
    }
    bool start(std::optional<Error> problem) {
        ++depth_;
        return go_on(std::move(problem));
    }
    bool end() {
        --depth_;
        return depth_ == 0 || go_on(on_end());
    }

    bool null() override { return scalar({}); }
    bool boolean(bool) override { return scalar({}); }
    bool number_integer(Json::number_integer_t) override { return scalar({}); }
    bool number_unsigned(Json::number_unsigned_t number) override {
        return scalar({.number = number});
    }
    bool number_float(Json::number_float_t, const std::string&) override { return scalar({}); }
    bool string(std::string& text) override { return scalar({.text = &text}); }
    bool binary(Json::binary_t&) override { return scalar({}); }  // never in text
    bool key(std::string& name) override { return go_on(on_key(name)); }
    bool start_object(std::size_t) override {
        if (depth_ >= depth_max_) return refuse("is nested too deeply");
        return start(depth_ == 0 ? std::nullopt : on_object());
    }
    bool start_array(std::size_t) override {
        if (depth_ == 0) return refuse("is no JSON object");
        if (depth_ >= depth_max_) return refuse("is nested too deeply");
        return start(on_array());
    }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
        return false;
    }

    const std::string& path_;
    std::size_t depth_max_;
    ReadLimits limits_;
    std::size_t depth_ = 0;
    std::optional<Error> problem_{};
};

}  // namespace pitstop
