#include "http_proc/format/ordered_json.h"

#include "http_proc/format/json_body.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Builds an ordered value from the parser's events.
class OrderedBuilder final : public nlohmann::json_sax<OrderedJson> {
  public:
    [[nodiscard]] OrderedJson take() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t& /*text*/) override {
        return add(value);
    }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t& value) override { return add(std::move(value)); }
    bool start_object(std::size_t /*size*/) override { return open(OrderedJson::object()); }
    bool start_array(std::size_t /*size*/) override { return open(OrderedJson::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        Open& object = open_.back();
        auto& members = object.value.get_ref<OrderedJson::object_t&>();
        const auto [place, is_new] = object.places.emplace(name, members.size());
        object.next = place->second;
        if (is_new) members.emplace_back(std::move(name), nullptr);
        return true;
    }
    bool parse_error(
        std::size_t /*position*/,
        const std::string& /*last*/,
        const nlohmann::detail::exception& /*error*/
    ) override {
        return false;
    }

  private:
    struct Open {
        OrderedJson value;
        std::unordered_map<std::string, std::size_t> places{};  // of an object's members
        std::size_t next = 0;                                   // place of the next value
    };

    bool add(OrderedJson value) {
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (Open& last = open_.back(); last.value.is_object()) {
            auto& members = last.value.get_ref<OrderedJson::object_t&>();
            (members.begin() + static_cast<std::ptrdiff_t>(last.next))->second = std::move(value);
        } else {
            last.value.push_back(std::move(value));
        }
        return true;
    }
    bool open(OrderedJson value) {
        open_.push_back({.value = std::move(value)});
        return open_.size() <= static_cast<std::size_t>(kJsonDepthMax);
    }
    bool close() {
        OrderedJson value = std::move(open_.back().value);
        open_.pop_back();
        return add(std::move(value));
    }

    OrderedJson root_{};
    std::vector<Open> open_{};
};

}  // namespace

Result<OrderedJson> parse_ordered_json(std::string_view text) {
    OrderedBuilder builder;
    if (OrderedJson::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
    return make_error(
        ErrorCode::kMalformed, "the text is not JSON of at most {} levels", kJsonDepthMax
    );
}

}  // namespace pitstop::http
