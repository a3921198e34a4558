// Reads JSON from untrusted files: a checkpoint's header, index and configuration, a
// tokenizer.json. The text is read as a stream of events, so memory holds only what a reader keeps.
// Reading ends where the text is malformed or nested too deep, or when it is interrupted. JsonTree
// builds values and limits their number.
//
// Only .cpp files include this header, because it includes nlohmann::json.
//
// Bounded: JsonLimits::depth_max, JsonTree's values_max; a reader bounds what it keeps itself.
#pragma once

#include "base/interrupt.h"
#include "base/result.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop {

struct JsonLimits {
    std::size_t depth_max = 64;  // nested objects and arrays, including the root
    Interrupt interrupt{};       // called at every event
};

// A derived reader handles the events of one kind of file; any problem that it returns
// ends the reading.
class JsonReader : private nlohmann::json_sax<nlohmann::json> {
  public:
    using Json = nlohmann::json;

    // `where`, the file, precedes the messages of this class.
    JsonReader(std::string where, JsonLimits limits)
        : where_(std::move(where)), limits_(std::move(limits)) {}

    // Reads the whole of `json`, which must be one object. Errors: the derived reader's and the
    // interrupt's; kMalformed: not JSON (with the position in bytes), not an object, nested deeper
    // than the limit.
    Result<> read(std::string_view json);

  protected:
    // A value that is neither an object nor an array.
    struct Scalar {
        // a string, which may be moved from; null: the value is in `other`
        std::string* text = nullptr;
        Json other{};  // the value, unless it is a string
    };
    // Returns the depth of the event: 1 in the root object. A start is reported before the depth
    // increases, an end after it has decreased; the root's own start and end are not reported.
    [[nodiscard]] std::size_t depth() const { return depth_; }

    virtual std::optional<Error> on_key(std::string& name) = 0;
    virtual std::optional<Error> on_scalar(const Scalar& scalar) = 0;
    virtual std::optional<Error> on_object() = 0;
    virtual std::optional<Error> on_array() = 0;
    virtual std::optional<Error> on_end() = 0;  // the end of an object or an array

  private:
    bool go_on(std::optional<Error> problem);
    bool refuse(std::string_view why);
    bool scalar(const Scalar& value);
    bool start(std::optional<Error> problem);
    bool end();

    bool null() override { return scalar({}); }
    bool boolean(bool value) override { return scalar({.other = value}); }
    bool number_integer(Json::number_integer_t value) override { return scalar({.other = value}); }
    bool number_unsigned(Json::number_unsigned_t value) override {
        return scalar({.other = value});
    }
    bool number_float(Json::number_float_t value, const std::string&) override {
        return scalar({.other = value});
    }
    bool string(std::string& text) override { return scalar({.text = &text}); }
    bool binary(Json::binary_t&) override { return scalar({}); }  // does not occur in JSON text
    bool key(std::string& name) override { return go_on(on_key(name)); }
    bool start_object(std::size_t) override;
    bool start_array(std::size_t) override;
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool parse_error(std::size_t byte, const std::string&, const Json::exception& error) override;

    std::string where_;
    JsonLimits limits_;
    std::size_t depth_ = 0;
    std::optional<Error> problem_{};
};

// Builds an object from a reader's events. A value takes 16 to 100 bytes even if its text is as
// short as in "[],[],[]", so the memory is bounded by the number of values.
class JsonTree {
  public:
    // `where` precedes the message, as in JsonReader.
    JsonTree(std::string where, std::size_t values_max)
        : where_(std::move(where)), values_max_(values_max) {}

    // Sets the key of the next value.
    void set_key(std::string name) { key_ = std::move(name); }
    // Adds a value to the innermost open object or array. kTooLarge: there are values_max already.
    [[nodiscard]] std::optional<Error> add(nlohmann::json value);
    // Adds an object or an array, which is open from then on until close().
    [[nodiscard]] std::optional<Error> open(nlohmann::json value);
    // REQUIRES: an object or an array is open.
    void close() { open_.pop_back(); }
    // REQUIRES: none is open.
    [[nodiscard]] nlohmann::json take() { return std::move(root_); }

  private:
    // Returns null if there are values_max already.
    nlohmann::json* place(nlohmann::json value);
    [[nodiscard]] Error too_many() const;

    std::string where_;
    std::size_t values_max_;
    std::size_t num_values_ = 0;
    std::string key_{};
    nlohmann::json root_ = nlohmann::json::object();
    std::vector<nlohmann::json*> open_{};  // from the root to the innermost open one
};

// Reads all of a file's object. If a key occurs twice, the last value is kept.
[[nodiscard]] Result<nlohmann::json> read_json_tree(
    std::string_view json, const std::string& where, JsonLimits limits, std::size_t values_max
);

}  // namespace pitstop
