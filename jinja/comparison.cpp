#include "jinja/comparison.h"

#include "jinja/builtins.h"
#include "jinja/items.h"
#include "jinja/python_text.h"

#include <algorithm>

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

Error no_order(const Value& a, const Value& b) {
    return type_error("'{}' and '{}' cannot be ordered", a.type_name(), b.type_name());
}

}  // namespace

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
        // comparing bytes gives the order of code points
        const int sign = text->bytes.compare(other->bytes);
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
            return type_error("a {} cannot be a key", item.type_name());
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
    return type_error(
        "'in' does not accept a value of type {} on its right", container.type_name()
    );
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

}  // namespace pitstop::jinja
