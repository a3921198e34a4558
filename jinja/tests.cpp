// The tests of `is`. Source: Jinja 3.1, tests.py.
#include "jinja/arithmetic.h"
#include "jinja/builtins.h"
#include "jinja/comparison.h"
#include "jinja/items.h"
#include "jinja/python_repr.h"
#include "jinja/python_text.h"

#include <algorithm>
#include <array>

namespace pitstop::jinja {
namespace {

template <bool (*kHolds)(const Value&)>
Result<Value> simple(Env&, const Value& self, const Given&) {
    return Value::boolean(kHolds(self));
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is<bool>(); }
bool is_false(const Value& value) {
    const bool* flag = value.get_if<bool>();
    return flag != nullptr && !*flag;
}
bool is_true(const Value& value) {
    const bool* flag = value.get_if<bool>();
    return flag != nullptr && *flag;
}
bool is_integer(const Value& value) { return value.is<std::int64_t>() || value.is<BigInteger>(); }
bool is_float(const Value& value) { return value.is<double>(); }
bool is_number(const Value& value) { return value.is_number() || value.is<BigInteger>(); }
bool is_string(const Value& value) { return value.as_text() != nullptr; }
bool is_mapping(const Value& value) { return value.as_mapping() != nullptr; }
bool is_sequence(const Value& value) {
    const Sequence* sequence = value.as_sequence();
    if (sequence != nullptr) return sequence->kind <= SequenceKind::kRange;
    return value.as_text() != nullptr || value.as_mapping() != nullptr || value.is_undefined();
}
bool is_escaped(const Value& value) {
    const Text* text = value.as_text();
    return text != nullptr && text->is_markup;
}
// In Python an undefined is callable: only the call fails.
bool is_callable(const Value& value) { return value.is_callable() || value.is_undefined(); }

template <CompareOp kOp>
Result<Value> comparison(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const bool holds, compare(kOp, self, *given[0], env.budget));
    return Value::boolean(holds);
}

Result<Value> has_remainder(Env& env, const Value& self, const Value& divisor, int remainder) {
    ASSIGN_OR_RETURN(const Value rest, binary(BinaryOp::kModulo, self, divisor, env.budget));
    ASSIGN_OR_RETURN(const bool holds, equals(rest, Value::integer(remainder), env.budget));
    return Value::boolean(holds);
}
Result<Value> is_odd(Env& env, const Value& self, const Given&) {
    return has_remainder(env, self, Value::integer(2), 1);
}
Result<Value> is_even(Env& env, const Value& self, const Given&) {
    return has_remainder(env, self, Value::integer(2), 0);
}
Result<Value> is_divisible(Env& env, const Value& self, const Given& given) {
    return has_remainder(env, self, *given[0], 0);
}

template <TextClass kClass>
Result<Value> is_cased(Env& env, const Value& self, const Given&) {
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    RETURN_IF_ERROR(env.budget.look_up(text.size()));
    return Value::boolean(is_all(text, kClass));
}

// Python's `is`, for values that are one object in Python.
Result<Value> is_same(Env& env, const Value& self, const Given& given) {
    const Value& other = *given[0];
    if (self.state().index() != other.state().index()) return Value::boolean(false);
    if (self.as_text() != nullptr) return Value::boolean(self.as_text() == other.as_text());
    if (self.as_sequence() != nullptr) {
        return Value::boolean(self.as_sequence() == other.as_sequence());
    }
    if (self.as_mapping() != nullptr)
        return Value::boolean(self.as_mapping() == other.as_mapping());
    ASSIGN_OR_RETURN(const bool is_equal, equals(self, other, env.budget));
    return Value::boolean(is_equal);
}

// Looking the value up among names hashes it, which fails for lists and mappings in Python.
Result<> check_hashable(const Value& value) {
    const Sequence* sequence = value.as_sequence();
    const bool is_hashable = sequence == nullptr || sequence->kind == SequenceKind::kTuple ||
                             sequence->kind == SequenceKind::kRange ||
                             sequence->kind == SequenceKind::kValues;
    if (is_hashable && value.as_mapping() == nullptr) return Ok{};
    return type_error("a value of type {} cannot be a name", value.type_name());
}

Result<Value> is_filter(Env&, const Value& self, const Given&) {
    RETURN_IF_ERROR(check_hashable(self));
    const Text* name = self.as_text();
    return Value::boolean(name != nullptr && find_filter(name->bytes) != nullptr);
}
Result<Value> is_test(Env&, const Value& self, const Given&) {
    RETURN_IF_ERROR(check_hashable(self));
    const Text* name = self.as_text();
    return Value::boolean(name != nullptr && find_test(name->bytes) != nullptr);
}

constexpr std::array kTests{
    Builtin{"odd", "", 0, is_odd},
    Builtin{"even", "", 0, is_even},
    Builtin{"divisibleby", "num", 1, is_divisible},
    Builtin{"defined", "", 0, simple<is_defined>},
    Builtin{"undefined", "", 0, simple<is_undefined>},
    Builtin{"filter", "", 0, is_filter},
    Builtin{"test", "", 0, is_test},
    Builtin{"none", "", 0, simple<is_none>},
    Builtin{"boolean", "", 0, simple<is_boolean>},
    Builtin{"false", "", 0, simple<is_false>},
    Builtin{"true", "", 0, simple<is_true>},
    Builtin{"integer", "", 0, simple<is_integer>},
    Builtin{"float", "", 0, simple<is_float>},
    Builtin{"lower", "", 0, is_cased<TextClass::kLower>},
    Builtin{"upper", "", 0, is_cased<TextClass::kUpper>},
    Builtin{"string", "", 0, simple<is_string>},
    Builtin{"mapping", "", 0, simple<is_mapping>},
    Builtin{"number", "", 0, simple<is_number>},
    Builtin{"sequence", "", 0, simple<is_sequence>},
    Builtin{"iterable", "", 0, simple<is_iterable>},
    Builtin{"callable", "", 0, simple<is_callable>},
    Builtin{"sameas", "other", 1, is_same},
    Builtin{"escaped", "", 0, simple<is_escaped>},
    Builtin{"in", "seq", 1, comparison<CompareOp::kIn>},
    Builtin{"==", "b", 1, comparison<CompareOp::kEqual>},
    Builtin{"eq", "b", 1, comparison<CompareOp::kEqual>},
    Builtin{"equalto", "b", 1, comparison<CompareOp::kEqual>},
    Builtin{"!=", "b", 1, comparison<CompareOp::kNotEqual>},
    Builtin{"ne", "b", 1, comparison<CompareOp::kNotEqual>},
    Builtin{">", "b", 1, comparison<CompareOp::kGreater>},
    Builtin{"gt", "b", 1, comparison<CompareOp::kGreater>},
    Builtin{"greaterthan", "b", 1, comparison<CompareOp::kGreater>},
    Builtin{"ge", "b", 1, comparison<CompareOp::kGreaterEqual>},
    Builtin{">=", "b", 1, comparison<CompareOp::kGreaterEqual>},
    Builtin{"<", "b", 1, comparison<CompareOp::kLess>},
    Builtin{"lt", "b", 1, comparison<CompareOp::kLess>},
    Builtin{"lessthan", "b", 1, comparison<CompareOp::kLess>},
    Builtin{"<=", "b", 1, comparison<CompareOp::kLessEqual>},
    Builtin{"le", "b", 1, comparison<CompareOp::kLessEqual>},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
    const auto* const found = std::ranges::find(kTests, name, &Builtin::name);
    return found == kTests.end() ? nullptr : found;
}

}  // namespace pitstop::jinja
