// Represents what a template computes with: Python's values, as far as a template can meet them.
//
// A value is small and cheap to copy: texts, lists and mappings are shared and never change, as the
// sandbox that templates are written for forbids changing them. Two things do change: a namespace,
// and an iterator, which is used up by whoever goes through it.
//
// It takes a `shared_ptr`, as one message of a chat is in many places at once (the list, a slice of
// it, a loop's variable). There are no cycles: a namespace, the one thing that could close one, is
// not owned by its values but by the rendering (render.h).
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
struct Namespace;  // render.h owns these three
struct Loop;
struct Macro;

// Stands for what was not found: it prints as nothing, is false and empty; any other use is an
// error that says why.
struct Undefined {
    std::shared_ptr<const std::string> why{};  // null: "undefined value"
};
struct None {};
// Holds an integer beyond 64 bits, from JSON: it is printed and compared, not computed with.
struct BigInteger {
    std::shared_ptr<const std::string> digits{};
};

struct Text {
    std::string bytes{};     // UTF-8
    bool is_markup = false;  // from `safe` or `escape`: escapes what is added to it
};

enum class SequenceKind : std::uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems };
struct Sequence {
    SequenceKind kind = SequenceKind::kList;
    std::vector<Value> items;  // no initializer, like below: clang asks for the whole Value there
    std::string range{};       // kRange: how it prints
    int depth = 1;             // how deep sequences and mappings nest in it, itself included
};

// Holds the result of `map`, `select`, ...: it can be gone through once.
struct Iterator {
    std::vector<Value> items;
    std::size_t next = 0;
    int depth = 1;
};

// Maps keys to values, in the order of insertion. Keys that are no texts are looked for one by one,
// within a budget: find_item() and set_item() (operators.h).
class Mapping {
  public:
    // A key that is there already keeps its place and gets the new value.
    void insert(std::string key, Value value);
    [[nodiscard]] const Value* find(std::string_view key) const;
    // Puts the value where find_item() found the key, or at the end if `place` is empty. REQUIRES:
    // the key is no text.
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

// Represents something that can be called: a method of a value, a function of the environment,
// loop.cycle and loop.changed.
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

    // These return null where it is something else.
    [[nodiscard]] const Text* as_text() const;
    [[nodiscard]] const Sequence* as_sequence() const;
    [[nodiscard]] const Mapping* as_mapping() const;
    [[nodiscard]] Iterator* as_iterator() const;
    // Tells whether it is a boolean or an integer of 64 bits.
    [[nodiscard]] bool is_whole() const { return is<bool>() || is<std::int64_t>(); }
    [[nodiscard]] std::int64_t whole() const;  // REQUIRES: is_whole()
    [[nodiscard]] bool is_number() const { return is_whole() || is<double>(); }
    [[nodiscard]] double number() const;  // REQUIRES: is_number()

    [[nodiscard]] bool is_undefined() const { return is<Undefined>(); }
    [[nodiscard]] bool is_none() const { return is<None>(); }
    [[nodiscard]] bool is_callable() const;
    // Tells what Python's bool() would.
    [[nodiscard]] bool is_true() const;
    // Returns Python's name of its type: "str", "int", "NoneType".
    [[nodiscard]] std::string_view type_name() const;
    // Returns how deep values are nested in it.
    [[nodiscard]] int depth() const;

  private:
    explicit Value(State state) : state_(std::move(state)) {}
    State state_{};
};

// A value is charged this much besides its bytes or its items, allocations included.
inline constexpr std::size_t kTextBytes = sizeof(Value) + sizeof(Text) + 32;
inline constexpr std::size_t kSequenceBytes = sizeof(Value) + sizeof(Sequence) + 48;
inline constexpr std::size_t kEntryBytes = 2 * sizeof(Value) + sizeof(std::string) + 48;
inline constexpr std::size_t kPairBytes = kSequenceBytes + 2 * sizeof(Value);

// Holds what `namespace(...)` makes: the one thing a template can change. It is owned by the
// rendering.
struct Namespace {
    Mapping attributes{};
};

}  // namespace pitstop::jinja
