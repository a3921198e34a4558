// The values of templates: Python's, as far as templates use them.
//
// A value is small and cheap to copy. Texts, lists and mappings are shared and never change,
// because the sandbox of templates forbids changing them. Two kinds do change: a namespace, and an
// iterator, which a loop exhausts.
//
// Uses `shared_ptr`, because one message of a chat is in many places at once (the list, a slice of
// it, a loop's variable). There are no cycles: only a namespace could close one, and namespaces
// belong to the rendering, not to values (renderer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::jinja {

class Value;
struct Builtin;    // builtins.h
struct Namespace;  // the rendering owns all three (renderer.h)
struct Loop;
struct Macro;

// The value of a failed look-up. An undefined prints as nothing, is false and empty; any other use
// is an error that explains why.
struct Undefined {
    std::shared_ptr<const std::string> why{};  // null: "undefined value"
};
struct None {};
// An integer beyond 64 bits, from JSON: can be printed and compared, but takes no part
// in arithmetic.
struct BigInteger {
    std::shared_ptr<const std::string> digits{};
};

struct Text {
    std::string bytes{};     // UTF-8
    bool is_markup = false;  // from `safe` or `escape`: text added to it is escaped
};

enum class SequenceKind : std::uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems };
struct Sequence {
    SequenceKind kind = SequenceKind::kList;
    // without an initializer, for which clang would need the complete Value
    std::vector<Value> items;
    std::string range{};  // kRange: its printed form
    int depth = 1;        // nesting depth of its sequences and mappings, itself included
};

// The result of `map`, `select`, ...: can be iterated once.
struct Iterator {
    std::vector<Value> items;
    std::size_t next = 0;
    int depth = 1;
};

// Maps keys to values, in order of insertion. Keys that are not texts are found by a linear search,
// within a budget: find_item() and set_item() (items.h).
class Mapping {
  public:
    // An existing key keeps its place and gets the new value.
    void insert(std::string key, Value value);
    [[nodiscard]] const Value* find(std::string_view key) const;
    // Puts the value where find_item() found the key, or at the end if `place` is empty. REQUIRES:
    // the key is not a text.
    void put(std::optional<std::size_t> place, Value key, Value value);
    [[nodiscard]] const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] int depth() const { return depth_; }

  private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const {
            return std::hash<std::string_view>{}(text);
        }
    };
    std::vector<std::pair<Value, Value>> entries_;
    std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> by_text_{};
    int depth_ = 1;
};

// A callable: a method of a value, a function of the environment, loop.cycle or loop.changed.
struct Method {
    std::shared_ptr<const Value> self{};
    const Builtin* builtin = nullptr;
    int depth = 1;
};
struct Function {
    const Builtin* builtin = nullptr;
};
struct LoopMethod {
    Loop* loop = nullptr;
    enum class Which : std::uint8_t { kCycle, kChanged } which{};
};

class Value {
  public:
    using State = std::variant<
        Undefined,
        None,
        bool,
        std::int64_t,
        BigInteger,
        double,
        std::shared_ptr<const Text>,
        std::shared_ptr<const Sequence>,
        std::shared_ptr<Iterator>,
        std::shared_ptr<const Mapping>,
        Namespace*,
        Loop*,
        const Macro*,
        Method,
        Function,
        LoopMethod>;

    Value() = default;  // undefined
    static Value undefined(std::string why);
    static Value none() { return Value(State(None{})); }
    static Value boolean(bool value) { return Value(State(value)); }
    static Value integer(std::int64_t value) { return Value(State(value)); }
    static Value integer(std::size_t value) {
        return Value(State(static_cast<std::int64_t>(value)));
    }
    static Value integer(int value) { return Value(State(std::int64_t{value})); }
    static Value big_integer(std::string digits);
    static Value real(double value) { return Value(State(value)); }
    static Value text(std::string bytes);
    static Value markup(std::string bytes);
    static Value sequence(SequenceKind kind, std::vector<Value> items, std::string range = {});
    static Value list(std::vector<Value> items) {
        return sequence(SequenceKind::kList, std::move(items));
    }
    static Value tuple(std::vector<Value> items) {
        return sequence(SequenceKind::kTuple, std::move(items));
    }
    static Value iterator(std::vector<Value> items);
    static Value mapping(Mapping mapping);
    static Value method(Value self, const Builtin& builtin);
    static Value of(State state) { return Value(std::move(state)); }

    [[nodiscard]] const State& state() const { return state_; }
    template <class T>
    [[nodiscard]] const T* get_if() const {
        return std::get_if<T>(&state_);
    }
    template <class T>
    [[nodiscard]] bool is() const {
        return std::holds_alternative<T>(state_);
    }

    // Return null for a value of another type.
    [[nodiscard]] const Text* as_text() const;
    [[nodiscard]] const Sequence* as_sequence() const;
    [[nodiscard]] const Mapping* as_mapping() const;
    [[nodiscard]] Iterator* as_iterator() const;
    // Returns whether the value is a boolean or a 64-bit integer.
    [[nodiscard]] bool is_whole() const { return is<bool>() || is<std::int64_t>(); }
    [[nodiscard]] std::int64_t whole() const;  // REQUIRES: is_whole()
    [[nodiscard]] bool is_number() const { return is_whole() || is<double>(); }
    [[nodiscard]] double number() const;  // REQUIRES: is_number()

    [[nodiscard]] bool is_undefined() const { return is<Undefined>(); }
    [[nodiscard]] bool is_none() const { return is<None>(); }
    [[nodiscard]] bool is_callable() const;
    // Returns Python's bool() of the value.
    [[nodiscard]] bool is_true() const;
    // Returns Python's name of the type: "str", "int", "NoneType".
    [[nodiscard]] std::string_view type_name() const;
    // Returns the nesting depth of the value.
    [[nodiscard]] int depth() const;

  private:
    explicit Value(State state) : state_(std::move(state)) {}
    State state_{};
};

// The charge for a value besides its bytes or items, allocations included.
inline constexpr std::size_t kTextBytes = sizeof(Value) + sizeof(Text) + 32;
inline constexpr std::size_t kSequenceBytes = sizeof(Value) + sizeof(Sequence) + 48;
inline constexpr std::size_t kEntryBytes = 2 * sizeof(Value) + sizeof(std::string) + 48;
inline constexpr std::size_t kPairBytes = kSequenceBytes + 2 * sizeof(Value);

// The result of `namespace(...)`: the only value a template can change. Owned by the rendering.
struct Namespace {
    Mapping attributes{};
};

}  // namespace pitstop::jinja
