// The tree of a parsed template. Source: Jinja 3.1, nodes.py, without what chat
// templates do not use.
#pragma once

#include "jinja/value.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::jinja {

struct Builtin;  // builtins.h
struct Expr;
struct Statement;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<Statement>;

// ---- expressions ----

struct Constant {
    Value value{};
};
struct Name {
    std::string name{};
};
struct TupleExpr {
    std::vector<ExprPtr> items{};
};
struct ListExpr {
    std::vector<ExprPtr> items{};
};
struct DictExpr {
    std::vector<std::pair<ExprPtr, ExprPtr>> items{};
};
struct GetAttribute {
    ExprPtr of{};
    std::string name{};
};
struct GetItem {
    ExprPtr of{};
    ExprPtr key{};
};
struct Slice {  // [begin:end:step], any of them absent
    ExprPtr of{};
    ExprPtr begin{};
    ExprPtr end{};
    ExprPtr step{};
};
struct CallArgs {
    std::vector<ExprPtr> positional{};
    std::vector<std::pair<std::string, ExprPtr>> named{};
    ExprPtr more_positional{};  // *args
    ExprPtr more_named{};       // **kwargs
};
struct Call {
    ExprPtr callee{};
    CallArgs args{};
};
struct FilterExpr {
    ExprPtr of{};  // null in a filter block: the block's text
    const Builtin* filter = nullptr;
    CallArgs args{};
};
struct TestExpr {
    ExprPtr of{};
    const Builtin* test = nullptr;
    CallArgs args{};
};
enum class UnaryOp : std::uint8_t { kNot, kMinus, kPlus };
struct Unary {
    UnaryOp op{};
    ExprPtr of{};
};
enum class BinaryOp : std::uint8_t {
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kFloorDivide,
    kModulo,
    kPower,
    kAnd,
    kOr,
};
struct Binary {
    BinaryOp op{};
    ExprPtr left{};
    ExprPtr right{};
};
struct Concat {
    std::vector<ExprPtr> parts{};
};
enum class CompareOp : std::uint8_t {
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kIn,
    kNotIn,
};
struct Compare {  // a < b <= c
    ExprPtr first{};
    std::vector<std::pair<CompareOp, ExprPtr>> rest{};
};
struct Conditional {  // yes if condition else no
    ExprPtr condition{};
    ExprPtr yes{};
    ExprPtr no{};  // null: undefined
};

struct Expr {
    int line = 1;
    std::variant<
        Constant,
        Name,
        TupleExpr,
        ListExpr,
        DictExpr,
        GetAttribute,
        GetItem,
        Slice,
        Call,
        FilterExpr,
        TestExpr,
        Unary,
        Binary,
        Concat,
        Compare,
        Conditional>
        node{};
};

// ---- statements ----
//
// Bodies and lists of targets have no initializer, because clang would need the
// complete type there.

// The target of an assignment: a name, a namespace's attribute, or several targets.
struct Target {
    int line = 1;
    std::string name{};
    std::optional<std::string> attribute{};
    std::vector<Target> items;  // if is_tuple
    bool is_tuple = false;
};

struct Data {
    std::string text{};
};
struct Print {
    ExprPtr value{};
};
struct If {
    std::vector<std::pair<ExprPtr, Body>> branches;
    Body otherwise;
};
struct For {
    Target target{};
    ExprPtr items{};
    ExprPtr condition{};  // may be null
    Body body;
    Body otherwise;
};
struct Set {
    Target target{};
    ExprPtr value{};
};
struct SetBlock {
    Target target{};
    std::vector<FilterExpr> filters{};
    Body body;
};
struct MacroDefinition {
    std::string name{};
    std::vector<std::string> params{};
    std::vector<ExprPtr> defaults{};     // of the last defaults.size() parameters
    bool takes_more_positional = false;  // the body uses `varargs`
    bool takes_more_named = false;       // the body uses `kwargs`
    Body body;
};
struct FilterBlock {
    std::vector<FilterExpr> filters{};
    Body body;
};
struct With {
    std::vector<std::pair<Target, ExprPtr>> values{};
    Body body;
};
struct Scoped {  // generation: marks the text of an assistant, for the loss mask of training
    Body body;
};
struct Break {};
struct Continue {};

struct Statement {
    int line = 1;
    std::variant<
        Data,
        Print,
        If,
        For,
        Set,
        SetBlock,
        MacroDefinition,
        FilterBlock,
        With,
        Scoped,
        Break,
        Continue>
        node{};
};

}  // namespace pitstop::jinja
