#include "jinja/json.h"

#include "jinja/python_repr.h"
#include "text/utf8.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace pitstop::jinja {
namespace {

using Json = nlohmann::json;

// Builds values from the parser's events, and keeps the first error.
class Builder {
  public:
    bool null() { return add(Value::none()); }
    bool boolean(bool value) { return add(Value::boolean(value)); }
    bool number_integer(std::int64_t value) { return add(Value::integer(value)); }
    bool number_unsigned(std::uint64_t value) {
        if (value <= static_cast<std::uint64_t>(INT64_MAX)) {
            return add(Value::integer(static_cast<std::int64_t>(value)));
        }
        return add(Value::big_integer(fmt::to_string(value)));
    }
    // The parser reports integers that fit no type as reals, with their text.
    bool number_float(double value, const std::string& text) {
        const bool is_whole = text.find_first_of(".eE") == std::string::npos;
        return add(is_whole ? Value::big_integer(text) : Value::real(value));
    }
    bool string(std::string& text) { return add(Value::text(std::move(text))); }
    bool binary(Json::binary_t&) { return false; }
    bool start_object(std::size_t) { return open(/*is_mapping=*/true); }
    bool start_array(std::size_t) { return open(/*is_mapping=*/false); }
    bool key(std::string& key) {
        open_.back().key = std::move(key);
        return true;
    }
    bool end_object() {
        Value value = Value::mapping(std::move(open_.back().mapping));
        open_.pop_back();
        return add(std::move(value));
    }
    bool end_array() {
        Value value = Value::list(std::move(open_.back().items));
        open_.pop_back();
        return add(std::move(value));
    }
    bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
        // a number beyond double: infinity in Python, which JSON does not have
        if (error.id == 406) {
            error_ = make_error(
                ErrorCode::kInvalidArgument, "JSON: a number is out of range at byte {}", position
            );
        } else {
            error_ = make_error(ErrorCode::kInvalidArgument, "not valid JSON at byte {}", position);
        }
        return false;
    }

    Result<Value> take() {
        if (error_) return *error_;
        return std::move(root_);
    }

  private:
    struct Open {
        bool is_mapping = false;
        std::string key{};
        Mapping mapping{};
        std::vector<Value> items{};
    };
    bool open(bool is_mapping) {
        if (open_.size() >= static_cast<std::size_t>(kJsonDepthMax)) {
            error_ = make_error(
                ErrorCode::kTooLarge, "JSON is nested deeper than {} levels", kJsonDepthMax
            );
            return false;
        }
        open_.push_back({.is_mapping = is_mapping});
        return true;
    }
    bool add(Value value) {
        if (++num_values_ > kJsonValuesMax) {
            error_ =
                make_error(ErrorCode::kTooLarge, "JSON has more than {} values", kJsonValuesMax);
            return false;
        }
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (Open& parent = open_.back(); parent.is_mapping) {
            parent.mapping.insert(std::move(parent.key), std::move(value));
        } else {
            parent.items.push_back(std::move(value));
        }
        return true;
    }

    std::vector<Open> open_{};
    std::size_t num_values_ = 0;
    Value root_{};
    std::optional<Error> error_{};
};

class Writer {
  public:
    Writer(const JsonFormat& format, TextBuilder& out) : format_(format), out_(out) {}

    // Writes the value, or returns what is wrong with it.
    Result<> write(const Value& value) {
        RETURN_IF_ERROR(out_.budget().steps());
        if (out_.is_full()) return out_.take().error();
        if (const Text* text = value.as_text()) {
            write_text(text->bytes);
        } else if (value.is_none()) {
            out_.add("null");
        } else if (const bool* flag = value.get_if<bool>()) {
            out_.add(*flag ? "true" : "false");
        } else if (const auto* integer = value.get_if<std::int64_t>()) {
            out_.add(fmt::to_string(*integer));
        } else if (const auto* big = value.get_if<BigInteger>()) {
            out_.add(*big->digits);
        } else if (const double* real = value.get_if<double>()) {
            out_.add(text_of(*real));
        } else if (const Sequence* sequence = value.as_sequence();
                   sequence != nullptr && (sequence->kind == SequenceKind::kList ||
                                           sequence->kind == SequenceKind::kTuple)) {
            return write_list(sequence->items);
        } else if (const Mapping* mapping = value.as_mapping()) {
            return write_mapping(*mapping);
        } else {
            return make_error(
                ErrorCode::kInvalidArgument,
                "tojson: a value of type {} has no JSON",
                value.type_name()
            );
        }
        return Ok{};
    }

  private:
    // Text is flushed in pieces of this size.
    static constexpr std::size_t kPieceBytes = 4096;

    static std::string text_of(double value) {
        if (std::isnan(value)) return "NaN";
        if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
        return repr_of(value);
    }

    void write_text(std::string_view text) {
        if (!out_.look_up(text.size())) return;
        std::string quoted = "\"";
        for (std::size_t pos = 0; pos < text.size();) {
            if (quoted.size() >= kPieceBytes) {
                if (!out_.add(quoted)) return;
                quoted.clear();
            }
            const std::size_t begin = pos;
            const char32_t c = text::next_code_point(text, pos);
            switch (c) {
                case '"':
                    quoted += "\\\"";
                    continue;
                case '\\':
                    quoted += "\\\\";
                    continue;
                case '\n':
                    quoted += "\\n";
                    continue;
                case '\r':
                    quoted += "\\r";
                    continue;
                case '\t':
                    quoted += "\\t";
                    continue;
                case '\f':
                    quoted += "\\f";
                    continue;
                case '\b':
                    quoted += "\\b";
                    continue;
                default:
                    break;
            }
            const auto code = static_cast<std::uint32_t>(c);
            if (c < 0x20 || (format_.ascii_only && c >= 0x7f && c < 0x10000)) {
                if (c == 0x7f) {
                    quoted += '\x7f';
                } else {
                    quoted += fmt::format("\\u{:04x}", code);
                }
            } else if (format_.ascii_only && c >= 0x10000) {
                quoted += fmt::format(
                    "\\u{:04x}\\u{:04x}",
                    0xd800 + ((code - 0x10000) >> 10),
                    0xdc00 + ((code - 0x10000) & 0x3ff)
                );
            } else {
                quoted += text.substr(begin, pos - begin);
            }
        }
        quoted += '"';
        out_.add(quoted);
    }

    void new_line() {
        if (!format_.indent) return;
        out_.add("\n");
        out_.add(*format_.indent, static_cast<std::size_t>(level_));
    }

    Result<> write_list(const std::vector<Value>& items) {
        if (items.empty()) {
            out_.add("[]");
            return Ok{};
        }
        out_.add("[");
        ++level_;
        for (std::size_t i = 0; i < items.size(); ++i) {
            if (i != 0) out_.add(format_.item_separator);
            new_line();
            RETURN_IF_ERROR(write(items[i]));
        }
        --level_;
        new_line();
        out_.add("]");
        return Ok{};
    }

    Result<> write_key(const Value& key) {
        if (const Text* text = key.as_text()) {
            write_text(text->bytes);
        } else if (const double* real = key.get_if<double>()) {
            write_text(text_of(*real));
        } else if (const bool* flag = key.get_if<bool>()) {
            write_text(*flag ? "true" : "false");
        } else if (key.is_none()) {
            write_text("null");
        } else if (const auto* integer = key.get_if<std::int64_t>()) {
            write_text(fmt::to_string(*integer));
        } else if (const auto* big = key.get_if<BigInteger>()) {
            write_text(*big->digits);
        } else {
            return make_error(
                ErrorCode::kInvalidArgument,
                "tojson: a key of type {}; accepted are str, int, float, bool and None",
                key.type_name()
            );
        }
        return Ok{};
    }

    // Returns the output order of the entries.
    [[nodiscard]] Result<std::vector<std::size_t>> order_of(const Mapping& mapping) const {
        const auto& entries = mapping.entries();
        RETURN_IF_ERROR(out_.budget().items(entries.size(), sizeof(std::size_t)));
        std::vector<std::size_t> order(entries.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        if (!format_.sort_keys) return order;
        const auto text_of_key = [&](std::size_t i) { return entries[i].first.as_text(); };
        for (const std::size_t i : order) {
            if (text_of_key(i) != nullptr) continue;
            return make_error(
                ErrorCode::kInvalidArgument, "tojson: sort_keys needs keys that are strings"
            );
        }
        Result<> charged = Ok{};
        std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
            const std::string& left = text_of_key(a)->bytes;
            const std::string& right = text_of_key(b)->bytes;
            if (charged) charged = out_.budget().look_up(std::min(left.size(), right.size()) + 1);
            return charged && left < right;
        });
        RETURN_IF_ERROR(std::move(charged));
        return order;
    }

    Result<> write_mapping(const Mapping& mapping) {
        if (mapping.size() == 0) {
            out_.add("{}");
            return Ok{};
        }
        ASSIGN_OR_RETURN(const std::vector<std::size_t> order, order_of(mapping));
        out_.add("{");
        ++level_;
        bool is_first = true;
        for (const std::size_t i : order) {
            if (!std::exchange(is_first, false)) out_.add(format_.item_separator);
            new_line();
            RETURN_IF_ERROR(write_key(mapping.entries()[i].first));
            out_.add(format_.key_separator);
            RETURN_IF_ERROR(write(mapping.entries()[i].second));
        }
        --level_;
        new_line();
        out_.add("}");
        return Ok{};
    }

    const JsonFormat& format_;
    TextBuilder& out_;
    int level_ = 0;
};

}  // namespace

Result<Value> parse_json(std::string_view json) {
    Builder builder;
    Json::sax_parse(json.begin(), json.end(), &builder);
    return builder.take();
}

Result<std::string> to_json(const Value& value, const JsonFormat& format, Budget& budget) {
    TextBuilder out(budget);
    RETURN_IF_ERROR(Writer(format, out).write(value));
    return out.take();
}

}  // namespace pitstop::jinja
