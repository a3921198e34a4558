// Filters of numbers and of any value, and the list of all filters. Source: Jinja 3.1, filters.py.
#include "jinja/filters.h"

#include "base/utf8.h"
#include "jinja/arithmetic.h"
#include "jinja/format.h"
#include "jinja/python_repr.h"
#include "jinja/text_methods.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace pitstop::jinja {
namespace {

Result<Value> filter_abs(Env&, const Value& self, const Given&) {
    if (self.is_undefined()) return undefined_error(self);
    if (self.is_whole()) {
        return self.whole() < 0 ? unary(UnaryOp::kMinus, self) : Value::integer(self.whole());
    }
    if (!self.is_number()) return type_error("does not accept {}", self.type_name());
    return Value::real(std::abs(self.number()));
}

Result<Value> filter_int(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t base, given.integer(1, "base", 10));
    const Value otherwise = given[0] != nullptr ? *given[0] : Value::integer(0);
    if (self.is_undefined()) return undefined_error(self);
    if (self.is_whole()) return Value::integer(self.whole());
    if (self.is<BigInteger>()) return self;
    std::optional<double> real;
    if (self.is<double>()) real = self.number();
    if (const Text* text = self.as_text()) {
        RETURN_IF_ERROR(env.budget.items(3, text->bytes.size()));
        RETURN_IF_ERROR(env.budget.look_up(text->bytes.size()));
        if (std::optional<Value> whole = parse_whole(text->bytes, base)) return *std::move(whole);
        real = parse_real(text->bytes);
    }
    if (!real || !std::isfinite(*real)) return otherwise;
    if (std::abs(*real) >= 9.2e18) return type_error("the result is an integer beyond 64 bits");
    return Value::integer(static_cast<std::int64_t>(*real));
}

Result<Value> filter_float(Env& env, const Value& self, const Given& given) {
    if (self.is_undefined()) return undefined_error(self);
    if (self.is_number()) return Value::real(self.number());
    if (const Text* text = self.as_text()) {
        RETURN_IF_ERROR(env.budget.bytes(text->bytes.size()));
        RETURN_IF_ERROR(env.budget.look_up(text->bytes.size()));
        if (const std::optional<double> real = parse_real(text->bytes)) return Value::real(*real);
    }
    return given[0] != nullptr ? *given[0] : Value::real(0.0);
}

Result<Value> filter_round(Env&, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t precision, given.integer(0, "precision", 0));
    ASSIGN_OR_RETURN(const std::string_view method, given.text(1, "method", "common"));
    if (self.is_undefined()) return undefined_error(self);
    if (!self.is_number()) return type_error("does not accept {}", self.type_name());
    if (precision < -18 || precision > 100)
        return type_error("its precision must be in [-18, 100]");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    if (method == "ceil") return Value::real(std::ceil(self.number() * scale) / scale);
    if (method == "floor") return Value::real(std::floor(self.number() * scale) / scale);
    if (method != "common") return type_error("its method must be common, ceil or floor");
    if (self.is_whole()) {
        if (precision >= 0) return Value::integer(self.whole());
        std::int64_t unit = 1;
        for (std::int64_t i = 0; i < -precision; ++i) unit *= 10;
        std::int64_t rest = self.whole() % unit;
        if (rest < 0) rest += unit;
        const std::int64_t down = self.whole() - rest;
        const bool is_odd = (down / unit) % 2 != 0;
        const bool rounds_up = rest > unit - rest || (rest == unit - rest && is_odd);
        return Value::integer(rounds_up ? down + unit : down);
    }
    if (!std::isfinite(self.number())) return self;
    if (precision < 0) {
        return Value::real(std::nearbyint(self.number() * scale) / scale);
    }
    // Like Python, printf rounds the exact value to the nearest digit, ties to even.
    const std::string digits = formatted(self.number(), fmt::format("%.{}f", precision));
    double rounded = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
    return Value::real(rounded);
}

Result<Value> filter_default(Env&, const Value& self, const Given& given) {
    const bool is_replaced = self.is_undefined() || (given.flag(1, false) && !self.is_true());
    if (!is_replaced) return self;
    return given[0] != nullptr ? *given[0] : Value::text("");
}

Result<Value> filter_attr(Env&, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view name, given.text(0, "name", ""));
    if (self.is_undefined()) return undefined_error(self);
    if (Namespace* const* space = self.get_if<Namespace*>()) {
        if (const Value* found = (*space)->attributes.find(name)) return *found;
    } else if (const Builtin* method = find_method(self, name)) {
        return Value::method(self, *method);
    }
    return Value::undefined(
        fmt::format("'{} object' has no attribute '{}'", self.type_name(), utf8_prefix(name, 256))
    );
}

constexpr std::array kFilters{
    Builtin{"abs", "", 0, filter_abs},
    Builtin{"attr", "name", 1, filter_attr},
    Builtin{"d", "default_value boolean", 0, filter_default},
    Builtin{"default", "default_value boolean", 0, filter_default},
    Builtin{"float", "default", 0, filter_float},
    Builtin{"int", "default base", 0, filter_int},
    Builtin{"round", "precision method", 0, filter_round},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
    const std::array<std::span<const Builtin>, 3> tables{
        kFilters, text_filters(), sequence_filters()};
    for (const std::span<const Builtin> table : tables) {
        const auto found = std::ranges::find(table, name, &Builtin::name);
        if (found != table.end()) return &*found;
    }
    return nullptr;
}

}  // namespace pitstop::jinja
