#include "jinja/value.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop::jinja {
namespace {

int depth_of(const std::vector<Value>& items) {
    int depth = 0;
    for (const Value& item : items) depth = std::max(depth, item.depth());
    return depth + 1;
}

}  // namespace

std::size_t Mapping::size() const { return entries_.size(); }

void Mapping::insert(std::string key, Value value) {
    depth_ = std::max(depth_, value.depth() + 1);
    const auto [entry, is_new] = by_text_.emplace(key, entries_.size());
    if (!is_new) {
        entries_[entry->second].second = std::move(value);
    } else {
        entries_.emplace_back(Value::text(std::move(key)), std::move(value));
    }
}

void Mapping::put(std::optional<std::size_t> place, Value key, Value value) {
    depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
    if (place) {
        entries_[*place].second = std::move(value);
    } else {
        entries_.emplace_back(std::move(key), std::move(value));
    }
}

const Value* Mapping::find(std::string_view key) const {
    const auto found = by_text_.find(key);
    return found == by_text_.end() ? nullptr : &entries_[found->second].second;
}

Value Value::undefined(std::string why) {
    return Value(State(Undefined{std::make_shared<const std::string>(std::move(why))}));
}
Value Value::big_integer(std::string digits) {
    return Value(State(BigInteger{std::make_shared<const std::string>(std::move(digits))}));
}
Value Value::text(std::string bytes) {
    return Value(State(std::make_shared<const Text>(Text{std::move(bytes), false})));
}
Value Value::markup(std::string bytes) {
    return Value(State(std::make_shared<const Text>(Text{std::move(bytes), true})));
}
Value Value::sequence(SequenceKind kind, std::vector<Value> items, std::string range) {
    const int depth = depth_of(items);
    return Value(State(std::make_shared<const Sequence>(Sequence{
        kind, std::move(items), std::move(range), depth})));
}
Value Value::iterator(std::vector<Value> items) {
    const int depth = depth_of(items);
    return Value(State(std::make_shared<Iterator>(Iterator{std::move(items), 0, depth})));
}
Value Value::mapping(Mapping mapping) {
    return Value(State(std::make_shared<const Mapping>(std::move(mapping))));
}
Value Value::method(Value self, const Builtin& builtin) {
    const int depth = self.depth() + 1;
    return Value(State(Method{std::make_shared<const Value>(std::move(self)), &builtin, depth}));
}

const Text* Value::as_text() const {
    const auto* text = get_if<std::shared_ptr<const Text>>();
    return text == nullptr ? nullptr : text->get();
}
const Sequence* Value::as_sequence() const {
    const auto* sequence = get_if<std::shared_ptr<const Sequence>>();
    return sequence == nullptr ? nullptr : sequence->get();
}
const Mapping* Value::as_mapping() const {
    const auto* mapping = get_if<std::shared_ptr<const Mapping>>();
    return mapping == nullptr ? nullptr : mapping->get();
}
Iterator* Value::as_iterator() const {
    const auto* iterator = get_if<std::shared_ptr<Iterator>>();
    return iterator == nullptr ? nullptr : iterator->get();
}

std::int64_t Value::whole() const {
    if (const bool* flag = get_if<bool>()) return *flag ? 1 : 0;
    const auto* integer = get_if<std::int64_t>();
    CHECK(integer != nullptr);
    return *integer;
}

double Value::number() const {
    if (const double* real = get_if<double>()) return *real;
    return static_cast<double>(whole());
}

bool Value::is_callable() const {
    return is<const Macro*>() || is<Method>() || is<Function>() || is<LoopMethod>() || is<Loop*>();
}

bool Value::is_true() const {
    if (is_undefined() || is_none()) return false;
    if (is_number()) return number() != 0;
    if (const Text* text = as_text()) return !text->bytes.empty();
    if (const Sequence* sequence = as_sequence()) return !sequence->items.empty();
    if (const Mapping* mapping = as_mapping()) return mapping->size() != 0;
    return true;  // also an iterator, even an empty one
}

std::string_view Value::type_name() const {
    if (const Sequence* sequence = as_sequence()) {
        switch (sequence->kind) {
            case SequenceKind::kList:
                return "list";
            case SequenceKind::kTuple:
                return "tuple";
            case SequenceKind::kRange:
                return "range";
            case SequenceKind::kKeys:
                return "dict_keys";
            case SequenceKind::kValues:
                return "dict_values";
            case SequenceKind::kItems:
                return "dict_items";
        }
    }
    if (const Text* text = as_text()) return text->is_markup ? "Markup" : "str";
    if (is_undefined()) return "Undefined";
    if (is_none()) return "NoneType";
    if (is<bool>()) return "bool";
    if (is<std::int64_t>() || is<BigInteger>()) return "int";
    if (is<double>()) return "float";
    if (as_iterator() != nullptr) return "generator";
    if (as_mapping() != nullptr) return "dict";
    if (is<Namespace*>()) return "Namespace";
    if (is<Loop*>()) return "LoopContext";
    if (is<const Macro*>()) return "Macro";
    return "builtin_function_or_method";
}

int Value::depth() const {
    if (const Sequence* sequence = as_sequence()) return sequence->depth;
    if (const Mapping* mapping = as_mapping()) return mapping->depth();
    if (const Iterator* iterator = as_iterator()) return iterator->depth;
    if (const auto* method = get_if<Method>()) return method->depth;
    return 0;
}

}  // namespace pitstop::jinja
