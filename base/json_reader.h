// Reads JSON of files that nobody vouches for: a checkpoint's header, index and configuration, a
// tokenizer.json. It is read as a stream of events, so that nothing is built but what a reader
// keeps; reading ends where the text goes wrong, lies too deep, or is wanted no more. JsonTree
// keeps values as they are, and counts them.
//
// Only .cpp files include it, for it knows nlohmann::json.
//
// Bounded: JsonLimits::depth_max, JsonTree's values_max; what a reader keeps is its own to bound.
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
    std::size_t depth_max = 64;  // objects and arrays in each other, the root among them
    Interrupt interrupt{};       // asked at every event
};

// A reader of one kind of file says what to do with an event; whatever it returns as a problem ends
// the reading.
class JsonReader : private nlohmann::json_sax<nlohmann::json> {
  public:
    using Json = nlohmann::json;

    // `where` stands before the messages of this class: the file.
    JsonReader(std::string where, JsonLimits limits)
        : where_(std::move(where)), limits_(std::move(limits)) {}

    // Reads the whole of `json`, which must be one object. Errors: the reader's and the interrupt's
    // own; kMalformed: no JSON (at which byte), no object, nested deeper than the limit.
    Result<> read(std::string_view json);

  protected:
    // Holds a value that is no object and no array.
    struct Scalar {
        std::string* text = nullptr;  // a string, which may be taken; null: another value,
        Json other{};                 // the value, if it is no string
    };
    // Says how deep the event is: 1 in the root object. A start is told before the depth grows, an
    // end after it has shrunk; the root's own are not told.
    [[nodiscard]] std::size_t depth() const { return depth_; }

    virtual std::optional<Error> on_key(std::string& name) = 0;
    virtual std::optional<Error> on_scalar(const Scalar& scalar) = 0;
    virtual std::optional<Error> on_object() = 0;
    virtual std::optional<Error> on_array() = 0;
    virtual std::optional<Error> on_end() = 0;  // ends an object or an array

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
    bool binary(Json::binary_t&) override { return scalar({}); }  // JSON text has none
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

// Builds an object from a reader's events. A value takes 16 to 100 bytes however few it is written
// with ("[],[],[]"), so that their number is what bounds the memory.
class JsonTree {
  public:
    // `where` stands before the message, as a reader's does.
    JsonTree(std::string where, std::size_t values_max)
        : where_(std::move(where)), values_max_(values_max) {}

    // Sets the key of the next value.
    void set_key(std::string name) { key_ = std::move(name); }
    // Puts a value where the tree is open. kTooLarge: there are values_max already.
    [[nodiscard]] std::optional<Error> add(nlohmann::json value);
    // Puts an object or an array there, which is open from then on, until it is closed.
    [[nodiscard]] std::optional<Error> open(nlohmann::json value);
    // REQUIRES: one is open.
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
    std::vector<nlohmann::json*> open_{};  // from the root to the innermost that is open
};

// Reads all of a file's object. Where a key is there twice, the last value is kept.
[[nodiscard]] Result<nlohmann::json> read_json_tree(
    std::string_view json, const std::string& where, JsonLimits limits, std::size_t values_max
);

}  // namespace pitstop
