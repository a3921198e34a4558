#include "jinja/operators.h"

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pitstop::jinja {
namespace {

// Exact for every 64-bit integer and every double.
long double exact(const Value& value) {
    if (value.is_whole()) return static_cast<long double>(value.whole());
    return static_cast<long double>(value.number());
}

Result<bool> equals_items(
    const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget
) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSIGN_OR_RETURN(const bool is_equal, equals(a[i], b[i], budget));
        if (!is_equal) return false;
    }
    return true;
}

Result<bool> equals_mappings(const Mapping& a, const Mapping& b, Budget& budget) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.entries()) {
        ASSIGN_OR_RETURN(const Value* other, find_item(b, key, budget));
        if (other == nullptr) return false;
        ASSIGN_OR_RETURN(const bool is_equal, equals(value, *other, budget));
        if (!is_equal) return false;
    }
    return true;
}

Error no_operator(std::string_view op, const Value& left, const Value& right) {
    return type_error("'{}' is not for {} and {}", op, left.type_name(), right.type_name());
}

Error overflow() { return type_error("an integer beyond 64 bits"); }

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
        return type_error("'*' is not for {} and int", of.type_name());
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

// Towards minus infinity, as Python divides.
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
            if (a < 0 && b != std::floor(b)) return type_error("a complex number");
            if (std::isfinite(a) && std::isfinite(b) && std::isinf(std::pow(a, b))) {
                return type_error("a power out of range");
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

Error no_order(const Value& a, const Value& b) {
    return type_error("'{}' and '{}' have no order", a.type_name(), b.type_name());
}

// As Jinja's object_type_repr.
std::string described(const Value& value) {
    return value.is_none() ? "None" : fmt::format("{} object", value.type_name());
}

bool is_mutator(const Value& of, std::string_view name) {
    static constexpr std::string_view kOfMapping[] = {
        "clear", "pop", "popitem", "setdefault", "update"};
    static constexpr std::string_view kOfList[] = {
        "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    if (of.as_mapping() != nullptr) return std::ranges::count(kOfMapping, name) != 0;
    const Sequence* sequence = of.as_sequence();
    return sequence != nullptr && sequence->kind == SequenceKind::kList &&
           std::ranges::count(kOfList, name) != 0;
}

// A method, or why there is none.
std::optional<Value> method_of(const Value& of, std::string_view name) {
    if (const Builtin* method = find_method(of, name)) return Value::method(of, *method);
    if (is_mutator(of, name)) {
        return Value::undefined(fmt::format(
            "access to attribute '{}' of '{}' object is unsafe: a template may not change values",
            name,
            of.type_name()
        ));
    }
    return std::nullopt;
}

Result<std::optional<Value>> item_of(const Value& of, const Value& key, Budget& budget) {
    constexpr std::optional<Value> kNone{};
    if (const Mapping* mapping = of.as_mapping()) {
        ASSIGN_OR_RETURN(const Value* found, find_item(*mapping, key, budget));
        return found == nullptr ? kNone : std::optional(*found);
    }
    if (!key.is_whole()) return kNone;
    std::int64_t index = key.whole();
    if (const Text* text = of.as_text()) {
        RETURN_IF_ERROR(budget.scan(2 * text->bytes.size()));  // positions are counted
        const auto len = static_cast<std::int64_t>(num_code_points(text->bytes));
        if (index < 0) index += len;
        if (index < 0 || index >= len) return kNone;
        const std::size_t begin = byte_at(text->bytes, static_cast<std::size_t>(index));
        const std::string_view rest = std::string_view(text->bytes).substr(begin);
        std::string one(rest.substr(0, byte_at(rest, 1)));
        return std::optional(
            text->is_markup ? Value::markup(std::move(one)) : Value::text(std::move(one))
        );
    }
    const Sequence* sequence = of.as_sequence();
    if (sequence == nullptr || sequence->kind > SequenceKind::kRange) return kNone;
    const auto len = static_cast<std::int64_t>(sequence->items.size());
    if (index < 0) index += len;
    if (index < 0 || index >= len) return kNone;
    return std::optional(sequence->items[static_cast<std::size_t>(index)]);
}

// The entry of a key that is no text.
Result<std::optional<std::size_t>> place_of(
    const Mapping& mapping, const Value& key, Budget& budget
) {
    const auto& entries = mapping.entries();
    RETURN_IF_ERROR(budget.scan(entries.size() * sizeof(entries[0])));
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].first.as_text() != nullptr) continue;
        ASSIGN_OR_RETURN(const bool is_equal, equals(entries[i].first, key, budget));
        if (is_equal) return std::optional(i);
    }
    return std::optional<std::size_t>{};
}

// A name fit for a message.
std::string_view shown(std::string_view name) {
    constexpr std::size_t kNameShown = 256;
    return utf8_prefix(name, kNameShown);
}

}  // namespace

Error undefined_error(const Value& value) {
    const auto* undefined = value.get_if<Undefined>();
    if (undefined == nullptr || !undefined->why) return type_error("the value is undefined");
    return type_error("{}", *undefined->why);
}

Result<bool> equals(const Value& a, const Value& b, Budget& budget) {
    RETURN_IF_ERROR(budget.steps());
    if (const Text* text = a.as_text()) {
        const Text* other = b.as_text();
        if (other == nullptr || text->bytes.size() != other->bytes.size()) return false;
        RETURN_IF_ERROR(budget.scan(text->bytes.size()));
        return text->bytes == other->bytes;
    }
    if (a.is_number()) return b.is_number() && exact(a) == exact(b);
    if (a.is_none()) return b.is_none();
    if (a.is_undefined()) return b.is_undefined();
    if (const auto* big = a.get_if<BigInteger>()) {
        const auto* other = b.get_if<BigInteger>();
        return other != nullptr && *big->digits == *other->digits;
    }
    if (const Sequence* sequence = a.as_sequence()) {
        const Sequence* other = b.as_sequence();
        if (other == nullptr || other->kind != sequence->kind) return false;
        return equals_items(sequence->items, other->items, budget);
    }
    if (const Mapping* mapping = a.as_mapping()) {
        const Mapping* other = b.as_mapping();
        return other != nullptr ? equals_mappings(*mapping, *other, budget) : false;
    }
    if (const Iterator* iterator = a.as_iterator()) return iterator == b.as_iterator();
    if (const auto* space = a.get_if<Namespace*>()) {
        const auto* other = b.get_if<Namespace*>();
        return other != nullptr && *space == *other;
    }
    if (const auto* macro = a.get_if<const Macro*>()) {
        const auto* other = b.get_if<const Macro*>();
        return other != nullptr && *macro == *other;
    }
    return false;
}

Result<std::partial_ordering> order(const Value& a, const Value& b, Budget& budget) {
    RETURN_IF_ERROR(budget.steps());
    if (a.is_undefined()) return undefined_error(a);
    if (b.is_undefined()) return undefined_error(b);
    if (a.is_number() && b.is_number()) return exact(a) <=> exact(b);
    if (const Text* text = a.as_text()) {
        const Text* other = b.as_text();
        if (other == nullptr) return no_order(a, b);
        RETURN_IF_ERROR(budget.scan(std::min(text->bytes.size(), other->bytes.size())));
        const int sign = text->bytes.compare(other->bytes);  // bytes: the order of code points
        return std::partial_ordering(sign <=> 0);
    }
    const Sequence* x = a.as_sequence();
    const Sequence* y = b.as_sequence();
    if (x == nullptr || y == nullptr || x->kind != y->kind || x->kind > SequenceKind::kTuple) {
        return no_order(a, b);
    }
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
        ASSIGN_OR_RETURN(const bool is_equal, equals(x->items[i], y->items[i], budget));
        if (!is_equal) return order(x->items[i], y->items[i], budget);
    }
    return std::partial_ordering(x->items.size() <=> y->items.size());
}

Result<bool> contains(const Value& container, const Value& item, Budget& budget) {
    RETURN_IF_ERROR(budget.steps());
    if (container.is_undefined()) return false;
    if (const Text* text = container.as_text()) {
        const Text* part = item.as_text();
        if (part == nullptr) {
            if (item.is_undefined()) return undefined_error(item);
            return type_error("'in <string>' needs a string on its left, not {}", item.type_name());
        }
        ASSIGN_OR_RETURN(const std::size_t at, find_text(text->bytes, part->bytes, budget));
        return at != std::string::npos;
    }
    const Sequence* sequence = container.as_sequence();
    const bool is_keys = sequence != nullptr && sequence->kind == SequenceKind::kKeys;
    if (is_keys || container.as_mapping() != nullptr) {
        const Sequence* list = item.as_sequence();
        const bool is_list = list != nullptr && list->kind != SequenceKind::kTuple;
        if (is_list || item.as_mapping() != nullptr) {
            return type_error("a {} is no key", item.type_name());
        }
    }
    if (const Mapping* mapping = container.as_mapping()) {
        ASSIGN_OR_RETURN(const Value* found, find_item(*mapping, item, budget));
        return found != nullptr;
    }
    if (sequence != nullptr) {
        for (const Value& one : sequence->items) {
            ASSIGN_OR_RETURN(const bool is_equal, equals(one, item, budget));
            if (is_equal) return true;
        }
        return false;
    }
    if (Iterator* iterator = container.as_iterator()) {
        while (iterator->next < iterator->items.size()) {
            ASSIGN_OR_RETURN(
                const bool is_equal, equals(iterator->items[iterator->next++], item, budget)
            );
            if (is_equal) return true;
        }
        return false;
    }
    return type_error("nothing is 'in' a value of type {}", container.type_name());
}

Result<bool> compare(CompareOp op, const Value& left, const Value& right, Budget& budget) {
    if (op == CompareOp::kEqual) return equals(left, right, budget);
    if (op == CompareOp::kIn) return contains(right, left, budget);
    if (op == CompareOp::kNotEqual || op == CompareOp::kNotIn) {
        const bool is_in = op == CompareOp::kNotIn;
        ASSIGN_OR_RETURN(
            const bool holds, is_in ? contains(right, left, budget) : equals(left, right, budget)
        );
        return !holds;
    }
    ASSIGN_OR_RETURN(const std::partial_ordering sign, order(left, right, budget));
    switch (op) {
        case CompareOp::kLess:
            return sign < 0;
        case CompareOp::kLessEqual:
            return sign <= 0;
        case CompareOp::kGreater:
            return sign > 0;
        default:
            return sign >= 0;
    }
}

Result<Value> binary(BinaryOp op, const Value& left, const Value& right, Budget& budget) {
    // A format does not ask what it formats; every other operator does.
    const bool is_format = op == BinaryOp::kModulo && left.as_text() != nullptr;
    if (left.is_undefined()) return undefined_error(left);
    if (is_format) return percent_format(*left.as_text(), right, budget);
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
    if (!of.is_number()) return type_error("a sign is not for {}", of.type_name());
    return Value::real(op == UnaryOp::kPlus ? of.number() : -of.number());
}

Result<Value> get_attribute(const Value& of, const std::string& name) {
    if (of.is_undefined()) return undefined_error(of);
    if (Namespace* const* space = of.get_if<Namespace*>()) {
        const Value* found = (*space)->attributes.find(name);
        if (found != nullptr) return *found;
    } else if (!name.starts_with('_')) {
        if (std::optional<Value> method = method_of(of, name)) return *std::move(method);
    }
    if (const Mapping* mapping = of.as_mapping()) {
        if (const Value* found = mapping->find(name)) return *found;
    }
    return Value::undefined(fmt::format("'{}' has no attribute '{}'", described(of), shown(name)));
}

Result<const Value*> find_item(const Mapping& mapping, const Value& key, Budget& budget) {
    if (const Text* text = key.as_text()) {
        RETURN_IF_ERROR(budget.scan(text->bytes.size()));
        return mapping.find(text->bytes);
    }
    ASSIGN_OR_RETURN(const std::optional<std::size_t> place, place_of(mapping, key, budget));
    return place ? &mapping.entries()[*place].second : nullptr;
}

Result<> set_item(Mapping& mapping, Value key, Value value, Budget& budget) {
    RETURN_IF_ERROR(budget.bytes(kEntryBytes));
    if (const Text* text = key.as_text()) {
        RETURN_IF_ERROR(budget.items(2, text->bytes.size()));
        mapping.insert(text->bytes, std::move(value));
        return Ok{};
    }
    ASSIGN_OR_RETURN(const std::optional<std::size_t> place, place_of(mapping, key, budget));
    mapping.put(place, std::move(key), std::move(value));
    return Ok{};
}

Result<Value> get_item(const Value& of, const Value& key, Budget& budget) {
    RETURN_IF_ERROR(budget.steps());
    if (of.is_undefined()) return undefined_error(of);
    ASSIGN_OR_RETURN(std::optional<Value> item, item_of(of, key, budget));
    if (item) return *std::move(item);
    if (const Text* text = key.as_text()) {
        if (Namespace* const* space = of.get_if<Namespace*>()) {
            const Value* found = (*space)->attributes.find(text->bytes);
            if (found != nullptr) return *found;
        } else if (!text->bytes.starts_with('_')) {
            if (std::optional<Value> method = method_of(of, text->bytes)) return *std::move(method);
        }
        return Value::undefined(
            fmt::format("'{}' has no attribute '{}'", described(of), shown(text->bytes))
        );
    }
    return Value::undefined(fmt::format("{} has no such element", described(of)));
}

Result<Value> slice(const Value& of, const SliceBounds& bounds, Budget& budget) {
    ASSIGN_OR_RETURN(const std::optional<std::size_t> size, length_of(of, budget));
    const Text* text = of.as_text();
    const Sequence* sequence = of.as_sequence();
    if (of.is_undefined()) return undefined_error(of);
    if (text == nullptr && (sequence == nullptr || sequence->kind > SequenceKind::kRange)) {
        return type_error("a value of type {} cannot be sliced", of.type_name());
    }
    // Source: CPython's PySlice_AdjustIndices.
    const auto len = static_cast<std::int64_t>(*size);
    const std::int64_t step = bounds.step;
    const bool is_down = step < 0;
    const auto adjusted = [&](std::optional<std::int64_t> given, std::int64_t otherwise) {
        if (!given) return otherwise;
        std::int64_t at = *given < 0 ? *given + len : *given;
        at = std::max<std::int64_t>(at, is_down ? -1 : 0);
        return std::min(at, is_down ? len - 1 : len);
    };
    const std::int64_t begin = adjusted(bounds.begin, is_down ? len - 1 : 0);
    const std::int64_t end = adjusted(bounds.end, is_down ? -1 : len);

    // How many it takes; of 64 bits, as the whole of a step may not be added to a position.
    std::uint64_t count = 0;
    if (is_down ? begin > end : begin < end) {
        const std::uint64_t stride =
            is_down ? ~static_cast<std::uint64_t>(step) + 1 : static_cast<std::uint64_t>(step);
        const auto distance = static_cast<std::uint64_t>(is_down ? begin - end : end - begin);
        count = (distance - 1) / stride + 1;
    }
    if (text != nullptr) {
        RETURN_IF_ERROR(budget.bytes(text->bytes.size()));
        std::string out;
        if (step != 1) RETURN_IF_ERROR(budget.items(*size, sizeof(std::string_view)));
        if (step == 1) {
            if (end > begin) {
                const std::size_t from = byte_at(text->bytes, static_cast<std::size_t>(begin));
                const std::string_view rest = std::string_view(text->bytes).substr(from);
                out = rest.substr(0, byte_at(rest, static_cast<std::size_t>(end - begin)));
            }
        } else {
            const std::vector<std::string_view> all = code_points_of(text->bytes);
            for (std::int64_t i = begin; is_down ? i > end : i < end;) {
                out += all[static_cast<std::size_t>(i)];
                if (__builtin_add_overflow(i, step, &i)) break;
            }
        }
        return text->is_markup ? Value::markup(std::move(out)) : Value::text(std::move(out));
    }
    RETURN_IF_ERROR(budget.items(count, sizeof(Value)));
    std::vector<Value> items;
    items.reserve(count);
    for (std::int64_t i = begin; is_down ? i > end : i < end;) {
        items.push_back(sequence->items[static_cast<std::size_t>(i)]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    const SequenceKind kind =
        sequence->kind == SequenceKind::kTuple ? SequenceKind::kTuple : SequenceKind::kList;
    return Value::sequence(kind, std::move(items));
}

Result<std::vector<Value>> items_of(const Value& value, Budget& budget) {
    if (value.is_undefined()) return std::vector<Value>{};
    if (const Sequence* sequence = value.as_sequence()) {
        RETURN_IF_ERROR(budget.items(sequence->items.size(), sizeof(Value)));
        return sequence->items;
    }
    std::vector<Value> items;
    if (Iterator* iterator = value.as_iterator()) {
        RETURN_IF_ERROR(budget.items(iterator->items.size() - iterator->next, sizeof(Value)));
        items.assign(
            iterator->items.begin() + static_cast<std::ptrdiff_t>(iterator->next),
            iterator->items.end()
        );
        iterator->next = iterator->items.size();
    } else if (const Mapping* mapping = value.as_mapping()) {
        RETURN_IF_ERROR(budget.items(mapping->size(), sizeof(Value)));
        items.reserve(mapping->size());
        for (const auto& [key, item] : mapping->entries()) items.push_back(key);
    } else if (const Text* text = value.as_text()) {
        RETURN_IF_ERROR(
            budget.items(num_code_points(text->bytes), kTextBytes + sizeof(std::string_view))
        );
        for (const std::string_view one : code_points_of(text->bytes)) {
            items.push_back(Value::text(std::string(one)));
        }
    } else {
        return type_error("a value of type {} cannot be iterated", value.type_name());
    }
    return items;
}

bool is_iterable(const Value& value) {
    return value.is_undefined() || value.as_sequence() != nullptr ||
           value.as_iterator() != nullptr || value.as_mapping() != nullptr ||
           value.as_text() != nullptr || value.is<Loop*>();
}

Result<std::optional<std::size_t>> length_of(const Value& value, Budget& budget) {
    if (value.is_undefined()) return std::optional<std::size_t>(0);
    if (const Text* text = value.as_text()) {
        RETURN_IF_ERROR(budget.scan(text->bytes.size()));
        return std::optional(num_code_points(text->bytes));
    }
    if (const Sequence* sequence = value.as_sequence()) {
        return std::optional(sequence->items.size());
    }
    if (const Mapping* mapping = value.as_mapping()) return std::optional(mapping->size());
    return std::optional<std::size_t>{};
}

}  // namespace pitstop::jinja
