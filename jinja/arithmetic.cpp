#include "jinja/arithmetic.h"

#include "jinja/builtins.h"
#include "jinja/python_repr.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace pitstop::jinja {
namespace {

Error no_operator(std::string_view op, const Value& left, const Value& right) {
    return type_error("'{}' does not accept {} and {}", op, left.type_name(), right.type_name());
}

Error overflow() { return type_error("the result is an integer beyond 64 bits"); }

Result<Value> add(const Value& left, const Value& right, Budget& budget) {
    const Text* a = left.as_text();
    const Text* b = right.as_text();
    if (a != nullptr && b != nullptr) {
        TextBuilder out(budget);
        const bool is_markup = a->is_markup || b->is_markup;
        for (const Text* text : {a, b}) {
            if (is_markup && !text->is_markup) {
                write_escaped(text->bytes, out);
            } else {
                out.add(text->bytes);
            }
        }
        ASSIGN_OR_RETURN(std::string sum, out.take());
        return is_markup ? Value::markup(std::move(sum)) : Value::text(std::move(sum));
    }
    const Sequence* x = left.as_sequence();
    const Sequence* y = right.as_sequence();
    const bool is_addable = x != nullptr && y != nullptr && x->kind == y->kind &&
                            (x->kind == SequenceKind::kList || x->kind == SequenceKind::kTuple);
    if (!is_addable) return no_operator("+", left, right);
    RETURN_IF_ERROR(budget.items(x->items.size() + y->items.size(), sizeof(Value)));
    std::vector<Value> items;
    items.reserve(x->items.size() + y->items.size());
    items.insert(items.end(), x->items.begin(), x->items.end());
    items.insert(items.end(), y->items.begin(), y->items.end());
    return Value::sequence(x->kind, std::move(items));
}

Result<Value> repeat(const Value& of, std::int64_t times, Budget& budget) {
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
    if (const Text* text = of.as_text()) {
        TextBuilder out(budget);
        if (!text->bytes.empty()) out.add(text->bytes, count);
        ASSIGN_OR_RETURN(std::string repeated, out.take());
        return text->is_markup ? Value::markup(std::move(repeated))
                               : Value::text(std::move(repeated));
    }
    const Sequence* sequence = of.as_sequence();
    if (sequence == nullptr ||
        (sequence->kind != SequenceKind::kList && sequence->kind != SequenceKind::kTuple)) {
        return type_error("'*' does not accept {} and int", of.type_name());
    }
    std::vector<Value> items;
    if (!sequence->items.empty()) {
        RETURN_IF_ERROR(budget.items(count, sequence->items.size() * sizeof(Value)));
        items.reserve(count * sequence->items.size());
        for (std::size_t i = 0; i < count; ++i) {
            items.insert(items.end(), sequence->items.begin(), sequence->items.end());
        }
    }
    return Value::sequence(sequence->kind, std::move(items));
}

Result<Value> whole_power(std::int64_t base, std::int64_t exponent) {
    if (exponent < 0) {
        if (base == 0) return type_error("0 to a negative power");
        return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    }
    std::int64_t result = 1;
    while (exponent > 0) {
        if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow();
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
    }
    return Value::integer(result);
}

// Divides and rounds towards minus infinity, like Python.
Result<Value> whole_division(BinaryOp op, std::int64_t a, std::int64_t b) {
    if (b == 0) return type_error("division by zero");
    if (a == INT64_MIN && b == -1) {
        if (op == BinaryOp::kModulo) return Value::integer(0);
        return overflow();
    }
    const std::int64_t remainder = a % b;
    const bool rounds_down = remainder != 0 && (remainder < 0) != (b < 0);
    if (op == BinaryOp::kModulo) return Value::integer(rounds_down ? remainder + b : remainder);
    return Value::integer(a / b - (rounds_down ? 1 : 0));
}

Result<Value> on_wholes(BinaryOp op, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    switch (op) {
        case BinaryOp::kAdd:
            if (__builtin_add_overflow(a, b, &result)) return overflow();
            return Value::integer(result);
        case BinaryOp::kSubtract:
            if (__builtin_sub_overflow(a, b, &result)) return overflow();
            return Value::integer(result);
        case BinaryOp::kMultiply:
            if (__builtin_mul_overflow(a, b, &result)) return overflow();
            return Value::integer(result);
        case BinaryOp::kDivide:
            if (b == 0) return type_error("division by zero");
            return Value::real(
                static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b))
            );
        case BinaryOp::kFloorDivide:
        case BinaryOp::kModulo:
            return whole_division(op, a, b);
        case BinaryOp::kPower:
            return whole_power(a, b);
        case BinaryOp::kAnd:
        case BinaryOp::kOr:
            break;
    }
    return type_error("no arithmetic");
}

// Source: CPython's float_divmod.
Result<Value> real_division(BinaryOp op, double a, double b) {
    if (b == 0) return type_error("division by zero");
    double modulo = std::fmod(a, b);
    double quotient = (a - modulo) / b;
    if (modulo != 0) {
        if ((b < 0) != (modulo < 0)) {
            modulo += b;
            quotient -= 1;
        }
    } else {
        modulo = std::copysign(0.0, b);
    }
    if (op == BinaryOp::kModulo) return Value::real(modulo);
    if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
    double floored = std::floor(quotient);
    if (quotient - floored > 0.5) floored += 1;
    return Value::real(floored);
}

Result<Value> on_reals(BinaryOp op, double a, double b) {
    switch (op) {
        case BinaryOp::kAdd:
            return Value::real(a + b);
        case BinaryOp::kSubtract:
            return Value::real(a - b);
        case BinaryOp::kMultiply:
            return Value::real(a * b);
        case BinaryOp::kDivide:
            if (b == 0) return type_error("division by zero");
            return Value::real(a / b);
        case BinaryOp::kFloorDivide:
        case BinaryOp::kModulo:
            return real_division(op, a, b);
        case BinaryOp::kPower:
            if (a == 0 && b < 0) return type_error("0 to a negative power");
            if (a < 0 && b != std::floor(b))
                return type_error("the result would be a complex number");
            if (std::isfinite(a) && std::isfinite(b) && std::isinf(std::pow(a, b))) {
                return type_error("the power is out of range");
            }
            return Value::real(std::pow(a, b));
        case BinaryOp::kAnd:
        case BinaryOp::kOr:
            break;
    }
    return type_error("no arithmetic");
}

std::string_view symbol_of(BinaryOp op) {
    switch (op) {
        case BinaryOp::kAdd:
            return "+";
        case BinaryOp::kSubtract:
            return "-";
        case BinaryOp::kMultiply:
            return "*";
        case BinaryOp::kDivide:
            return "/";
        case BinaryOp::kFloorDivide:
            return "//";
        case BinaryOp::kModulo:
            return "%";
        case BinaryOp::kPower:
            return "**";
        case BinaryOp::kAnd:
            return "and";
        case BinaryOp::kOr:
            return "or";
    }
    return "?";
}

}  // namespace

Result<Value> binary(BinaryOp op, const Value& left, const Value& right, Budget& budget) {
    if (left.is_undefined()) return undefined_error(left);
    if (op == BinaryOp::kModulo && left.as_text() != nullptr) {
        return type_error("'%' after a text is not served: '~' joins texts, .format() fills fields"
        );
    }
    if (right.is_undefined()) return undefined_error(right);
    if (left.is_whole() && right.is_whole()) return on_wholes(op, left.whole(), right.whole());
    if (left.is_number() && right.is_number()) return on_reals(op, left.number(), right.number());
    if (op == BinaryOp::kAdd) return add(left, right, budget);
    if (op == BinaryOp::kMultiply && right.is_whole()) return repeat(left, right.whole(), budget);
    if (op == BinaryOp::kMultiply && left.is_whole()) return repeat(right, left.whole(), budget);
    return no_operator(symbol_of(op), left, right);
}

Result<Value> unary(UnaryOp op, const Value& of) {
    if (op == UnaryOp::kNot) return Value::boolean(!of.is_true());
    if (of.is_undefined()) return undefined_error(of);
    if (of.is_whole()) {
        if (op == UnaryOp::kPlus) return Value::integer(of.whole());
        if (of.whole() == INT64_MIN) return overflow();
        return Value::integer(-of.whole());
    }
    if (!of.is_number()) return type_error("a sign cannot precede {}", of.type_name());
    return Value::real(op == UnaryOp::kPlus ? of.number() : -of.number());
}

}  // namespace pitstop::jinja
