#include "jinja/expression_parser.h"

#include "jinja/builtins.h"

#include <algorithm>
#include <array>
#include <memory>

namespace pitstop::jinja {
namespace {

template <class Node>
ExprPtr expr(int line, Node node) {
    return std::make_unique<Expr>(Expr{line, std::move(node)});
}

}  // namespace

bool ExpressionParser::is_tuple_end() const {
    const Token& token = tokens_.peek();
    return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
           token.is_operator(")") || token.is_name("recursive");
}

// Parses one expression, or a tuple without parentheses.
Result<ExprPtr> ExpressionParser::tuple(AllowIf allow_if, bool may_be_empty) {
    const int line = tokens_.peek().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    for (;;) {
        if (is_tuple_end()) break;
        ASSIGN_OR_RETURN(ExprPtr item, allow_if == AllowIf::kYes ? expression() : or_expression());
        items.push_back(std::move(item));
        if (!tokens_.skip_operator(",")) break;
        is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items.front());
    if (items.empty() && !may_be_empty) return unexpected(tokens_.peek(), "an expression");
    return expr(line, TupleExpr{std::move(items)});
}

Result<ExprPtr> ExpressionParser::expression() {
    const TokenCursor::Level level(tokens_);
    if (level.is_too_deep()) return tokens_.too_deep();
    int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(ExprPtr left, or_expression());
    for (int chain = 1; tokens_.skip_name("if"); ++chain) {
        if (!may_chain(chain)) return tokens_.too_deep();
        ASSIGN_OR_RETURN(ExprPtr condition, or_expression());
        ExprPtr otherwise;
        if (tokens_.skip_name("else")) {
            ASSIGN_OR_RETURN(otherwise, expression());
        }
        left = expr(line, Conditional{std::move(condition), std::move(left), std::move(otherwise)});
        line = tokens_.peek().line;
    }
    return left;
}

Result<ExprPtr> ExpressionParser::or_expression() {
    const TokenCursor::Level level(tokens_);
    if (level.is_too_deep()) return tokens_.too_deep();
    const int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(ExprPtr left, and_expression());
    for (int chain = 1; tokens_.skip_name("or"); ++chain) {
        if (!may_chain(chain)) return tokens_.too_deep();
        ASSIGN_OR_RETURN(ExprPtr right, and_expression());
        left = expr(line, Binary{BinaryOp::kOr, std::move(left), std::move(right)});
    }
    return left;
}

Result<ExprPtr> ExpressionParser::and_expression() {
    const int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(ExprPtr left, not_expression());
    for (int chain = 1; tokens_.skip_name("and"); ++chain) {
        if (!may_chain(chain)) return tokens_.too_deep();
        ASSIGN_OR_RETURN(ExprPtr right, not_expression());
        left = expr(line, Binary{BinaryOp::kAnd, std::move(left), std::move(right)});
    }
    return left;
}

Result<ExprPtr> ExpressionParser::not_expression() {
    const TokenCursor::Level level(tokens_);
    if (level.is_too_deep()) return tokens_.too_deep();
    const int line = tokens_.peek().line;
    if (!tokens_.skip_name("not")) return comparison();
    ASSIGN_OR_RETURN(ExprPtr of, not_expression());
    return expr(line, Unary{UnaryOp::kNot, std::move(of)});
}

std::optional<CompareOp> ExpressionParser::compare_op() {
    static constexpr std::array<std::pair<std::string_view, CompareOp>, 6> kOps{{
        {"==", CompareOp::kEqual},
        {"!=", CompareOp::kNotEqual},
        {"<", CompareOp::kLess},
        {"<=", CompareOp::kLessEqual},
        {">", CompareOp::kGreater},
        {">=", CompareOp::kGreaterEqual},
    }};
    for (const auto& [text, op] : kOps) {
        if (tokens_.skip_operator(text)) return op;
    }
    if (tokens_.skip_name("in")) return CompareOp::kIn;
    if (tokens_.peek().is_name("not") && tokens_.peek(1).is_name("in")) {
        tokens_.take();
        tokens_.take();
        return CompareOp::kNotIn;
    }
    return std::nullopt;
}

Result<ExprPtr> ExpressionParser::comparison() {
    const int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(ExprPtr first, sum());
    Compare compare;
    while (const std::optional<CompareOp> op = compare_op()) {
        ASSIGN_OR_RETURN(ExprPtr right, sum());
        compare.rest.emplace_back(*op, std::move(right));
    }
    if (compare.rest.empty()) return first;
    compare.first = std::move(first);
    return expr(line, std::move(compare));
}

// Parses a chain of left-binding operators.
template <class Operand>
Result<ExprPtr> ExpressionParser::chain(
    std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Operand operand
) {
    const int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(ExprPtr left, operand());
    for (int num_ops = 1;; ++num_ops) {
        const auto* const op = std::ranges::find_if(ops, [&](const auto& one) {
            return tokens_.peek().is_operator(one.first);
        });
        if (op == ops.end()) return left;
        if (!may_chain(num_ops)) return tokens_.too_deep();
        tokens_.take();
        ASSIGN_OR_RETURN(ExprPtr right, operand());
        left = expr(line, Binary{op->second, std::move(left), std::move(right)});
    }
}

Result<ExprPtr> ExpressionParser::sum() {
    return chain({{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSubtract}}, [&] {
        return concatenation();
    });
}

Result<ExprPtr> ExpressionParser::concatenation() {
    const int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(ExprPtr first, product());
    if (!tokens_.peek().is_operator("~")) return first;
    Concat concat;
    concat.parts.push_back(std::move(first));
    while (tokens_.skip_operator("~")) {
        ASSIGN_OR_RETURN(ExprPtr part, product());
        concat.parts.push_back(std::move(part));
    }
    return expr(line, std::move(concat));
}

Result<ExprPtr> ExpressionParser::product() {
    return chain(
        {{"*", BinaryOp::kMultiply},
         {"/", BinaryOp::kDivide},
         {"//", BinaryOp::kFloorDivide},
         {"%", BinaryOp::kModulo}},
        [&] { return power(); }
    );
}

Result<ExprPtr> ExpressionParser::power() {
    return chain({{"**", BinaryOp::kPower}}, [&] {
        return unary_expression(/*with_filter=*/true);
    });
}

Result<ExprPtr> ExpressionParser::unary_expression(bool with_filter) {
    const TokenCursor::Level level(tokens_);
    if (level.is_too_deep()) return tokens_.too_deep();
    const int line = tokens_.peek().line;
    ExprPtr node;
    if (tokens_.peek().is_operator("-") || tokens_.peek().is_operator("+")) {
        const UnaryOp op = tokens_.take().text == "-" ? UnaryOp::kMinus : UnaryOp::kPlus;
        ASSIGN_OR_RETURN(ExprPtr of, unary_expression(/*with_filter=*/false));
        node = expr(line, Unary{op, std::move(of)});
    } else {
        ASSIGN_OR_RETURN(node, primary());
    }
    ASSIGN_OR_RETURN(node, postfix(std::move(node)));
    if (!with_filter) return node;
    for (int num_filters = 1; may_chain(num_filters); ++num_filters) {
        if (tokens_.skip_operator("|")) {
            const int filter_line = tokens_.peek().line;
            ASSIGN_OR_RETURN(FilterExpr filter, filter_call());
            filter.of = std::move(node);
            node = expr(filter_line, std::move(filter));
        } else if (tokens_.peek().is_name("is")) {
            ASSIGN_OR_RETURN(node, test(std::move(node)));
        } else if (tokens_.peek().is_operator("(")) {
            ASSIGN_OR_RETURN(node, call_of(std::move(node)));
        } else {
            return node;
        }
    }
    return tokens_.too_deep();
}

Result<ExprPtr> ExpressionParser::primary() {
    const Token token = tokens_.take();
    switch (token.kind) {
        case TokenKind::kName: {
            const std::string& name = token.text;
            if (name == "true" || name == "True")
                return expr(token.line, Constant{Value::boolean(true)});
            if (name == "false" || name == "False")
                return expr(token.line, Constant{Value::boolean(false)});
            if (name == "none" || name == "None") return expr(token.line, Constant{Value::none()});
            if (tokens_.peek().is_operator("(") && is_unsupported_function(name)) {
                return unsupported(token.line, "the function", name);
            }
            return expr(token.line, Name{name});
        }
        case TokenKind::kString: {
            std::string text = token.text;
            while (tokens_.peek().kind == TokenKind::kString) text += tokens_.take().text;
            return expr(token.line, Constant{Value::text(std::move(text))});
        }
        case TokenKind::kNumber:
            return expr(token.line, Constant{token.number});
        default:
            break;
    }
    if (token.is_operator("(")) {
        ASSIGN_OR_RETURN(ExprPtr inner, tuple(AllowIf::kYes, /*may_be_empty=*/true));
        RETURN_IF_ERROR(tokens_.expect_operator(")"));
        return inner;
    }
    if (token.is_operator("[")) {
        ListExpr list;
        while (!tokens_.skip_operator("]")) {
            if (!list.items.empty()) {
                RETURN_IF_ERROR(tokens_.expect_operator(","));
                if (tokens_.skip_operator("]")) break;
            }
            ASSIGN_OR_RETURN(ExprPtr item, expression());
            list.items.push_back(std::move(item));
        }
        return expr(token.line, std::move(list));
    }
    if (token.is_operator("{")) {
        DictExpr dict;
        while (!tokens_.skip_operator("}")) {
            if (!dict.items.empty()) {
                RETURN_IF_ERROR(tokens_.expect_operator(","));
                if (tokens_.skip_operator("}")) break;
            }
            ASSIGN_OR_RETURN(ExprPtr key, expression());
            RETURN_IF_ERROR(tokens_.expect_operator(":"));
            ASSIGN_OR_RETURN(ExprPtr value, expression());
            dict.items.emplace_back(std::move(key), std::move(value));
        }
        return expr(token.line, std::move(dict));
    }
    return unexpected(token, "an expression");
}

// Parses any number of .name, [key] and (args) in a row.
Result<ExprPtr> ExpressionParser::postfix(ExprPtr node) {
    for (int chain_len = 1; may_chain(chain_len); ++chain_len) {
        if (tokens_.peek().is_operator(".") || tokens_.peek().is_operator("[")) {
            ASSIGN_OR_RETURN(node, subscript(std::move(node)));
        } else if (tokens_.peek().is_operator("(")) {
            ASSIGN_OR_RETURN(node, call_of(std::move(node)));
        } else {
            return node;
        }
    }
    return tokens_.too_deep();
}

Result<ExprPtr> ExpressionParser::subscript(ExprPtr of) {
    const int line = tokens_.peek().line;
    if (tokens_.skip_operator(".")) {
        const Token& token = tokens_.take();
        if (token.kind == TokenKind::kName) {
            return expr(line, GetAttribute{std::move(of), token.text});
        }
        if (token.kind == TokenKind::kNumber && token.number.is_whole()) {
            return expr(line, GetItem{std::move(of), expr(line, Constant{token.number})});
        }
        return unexpected(token, "a name or a number");
    }
    RETURN_IF_ERROR(tokens_.expect_operator("["));
    ExprPtr begin;
    if (!tokens_.peek().is_operator(":")) {
        ASSIGN_OR_RETURN(begin, expression());
    }
    if (!tokens_.peek().is_operator(":")) {
        if (tokens_.peek().is_operator(",")) return unsupported(line, "a subscript with", ",");
        RETURN_IF_ERROR(tokens_.expect_operator("]"));
        return expr(line, GetItem{std::move(of), std::move(begin)});
    }
    Slice slice{.of = std::move(of), .begin = std::move(begin)};
    tokens_.take();
    if (!tokens_.peek().is_operator(":") && !tokens_.peek().is_operator("]")) {
        ASSIGN_OR_RETURN(slice.end, expression());
    }
    if (tokens_.skip_operator(":") && !tokens_.peek().is_operator("]")) {
        ASSIGN_OR_RETURN(slice.step, expression());
    }
    if (tokens_.peek().is_operator(",")) return unsupported(line, "a subscript with", ",");
    RETURN_IF_ERROR(tokens_.expect_operator("]"));
    return expr(line, std::move(slice));
}

Result<ExprPtr> ExpressionParser::call_of(ExprPtr callee) {
    const int line = tokens_.peek().line;
    if (const auto* method = std::get_if<GetAttribute>(&callee->node)) {
        if (is_unsupported_method(method->name)) {
            return unsupported(line, "the method", method->name);
        }
    }
    Call call{.callee = std::move(callee)};
    ASSIGN_OR_RETURN(call.args, call_args());
    return expr(line, std::move(call));
}

Result<CallArgs> ExpressionParser::call_args() {
    RETURN_IF_ERROR(tokens_.expect_operator("("));
    CallArgs args;
    bool is_first = true;
    while (!tokens_.skip_operator(")")) {
        if (!std::exchange(is_first, false)) {
            RETURN_IF_ERROR(tokens_.expect_operator(","));
            if (tokens_.skip_operator(")")) break;
        }
        const Token& token = tokens_.peek();
        if (token.is_operator("*") && !args.more_positional && !args.more_named) {
            tokens_.take();
            ASSIGN_OR_RETURN(args.more_positional, expression());
        } else if (token.is_operator("**") && !args.more_named) {
            tokens_.take();
            ASSIGN_OR_RETURN(args.more_named, expression());
        } else if (token.kind == TokenKind::kName && tokens_.peek(1).is_operator("=") && !args.more_named) {
            std::string name = tokens_.take().text;
            tokens_.take();
            ASSIGN_OR_RETURN(ExprPtr value, expression());
            args.named.emplace_back(std::move(name), std::move(value));
        } else if (args.named.empty() && !args.more_positional && !args.more_named) {
            ASSIGN_OR_RETURN(ExprPtr value, expression());
            args.positional.push_back(std::move(value));
        } else {
            return unexpected(token, "a named argument");
        }
    }
    return args;
}

Result<FilterExpr> ExpressionParser::filter_call() {
    const int line = tokens_.peek().line;
    ASSIGN_OR_RETURN(const std::string name, tokens_.expect_name());
    FilterExpr node{.filter = find_filter(name)};
    if (node.filter == nullptr) return unsupported(line, "the filter", name);
    if (tokens_.peek().is_operator("(")) {
        ASSIGN_OR_RETURN(node.args, call_args());
    }
    return node;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr of) {
    const int line = tokens_.take().line;
    const bool is_negated = tokens_.skip_name("not");
    ASSIGN_OR_RETURN(const std::string name, tokens_.expect_name());
    TestExpr node{.of = std::move(of), .test = find_test(name)};
    if (node.test == nullptr) return unsupported(line, "the test", name);
    const Token& next = tokens_.peek();
    const bool is_operand = next.kind == TokenKind::kString || next.kind == TokenKind::kNumber ||
                            next.is_operator("[") || next.is_operator("{") ||
                            (next.kind == TokenKind::kName && next.text != "else" &&
                             next.text != "or" && next.text != "and");
    if (next.is_operator("(")) {
        ASSIGN_OR_RETURN(node.args, call_args());
    } else if (is_operand) {
        if (next.is_name("is")) {
            return type_error("line {}: tests cannot be chained with 'is'", next.line);
        }
        ASSIGN_OR_RETURN(ExprPtr arg, primary());
        ASSIGN_OR_RETURN(arg, postfix(std::move(arg)));
        node.args.positional.push_back(std::move(arg));
    }
    ExprPtr tested = expr(line, std::move(node));
    return is_negated ? expr(line, Unary{UnaryOp::kNot, std::move(tested)}) : std::move(tested);
}

bool ExpressionParser::may_chain(int chain_len) {
    if (chain_len > 1) ++num_chained_;
    return chain_len <= kChainMax + 1 && num_chained_ <= kChainedMax;
}

}  // namespace pitstop::jinja
