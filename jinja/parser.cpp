#include "jinja/parser.h"

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace pitstop::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
  public:
    explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    Result<Body> run() { return body_until({}); }

  private:
    // ---- tokens ----

    [[nodiscard]] const Token& peek(std::size_t ahead = 0) const {
        return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
    }
    const Token& take() {
        const Token& token = peek();
        if (pos_ + 1 < tokens_.size()) ++pos_;
        return token;
    }
    bool skip_operator(std::string_view text) {
        const bool is_there = peek().is_operator(text);
        if (is_there) take();
        return is_there;
    }
    bool skip_name(std::string_view text) {
        const bool is_there = peek().is_name(text);
        if (is_there) take();
        return is_there;
    }
    [[nodiscard]] static Error unexpected(const Token& token, std::string_view wanted) {
        return type_error("line {}: {} where {} is needed", token.line, describe(token), wanted);
    }
    Result<> expect_operator(std::string_view text) {
        if (skip_operator(text)) return Ok{};
        return unexpected(peek(), "'" + std::string(text) + "'");
    }
    Result<std::string> expect_name() {
        if (peek().kind != TokenKind::kName) return unexpected(peek(), "a name");
        return take().text;
    }
    Result<> expect_block_end() {
        if (peek().kind != TokenKind::kBlockEnd) return unexpected(peek(), "%}");
        take();
        return Ok{};
    }
    [[nodiscard]] static Error unsupported(int line, std::string_view what, std::string_view name) {
        return make_error(
            ErrorCode::kUnsupported, "line {}: {} '{}' is not supported", line, what, name
        );
    }

    // One level of recursion, given back at its end.
    class Level {
      public:
        explicit Level(int& depth) : depth_(depth) { ++depth_; }
        ~Level() { --depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        [[nodiscard]] bool is_too_deep() const { return depth_ > kNestingMax; }

      private:
        int& depth_;
    };
    [[nodiscard]] Error too_deep() const {
        return make_error(
            ErrorCode::kTooLarge, "line {}: nested deeper than {} levels", peek().line, kNestingMax
        );
    }

    template <class Node>
    static ExprPtr expr(int line, Node node) {
        return std::make_unique<Expr>(Expr{line, std::move(node)});
    }

    // ---- statements ----

    // Up to, and without, a block tag of one of these names; `ends` empty: up to the end.
    Result<Body> body_until(Words ends) {
        const Level level(depth_);
        if (level.is_too_deep()) return too_deep();
        Body body;
        for (;;) {
            const Token& token = take();
            switch (token.kind) {
                case TokenKind::kData:
                    body.push_back({token.line, Data{token.text}});
                    break;
                case TokenKind::kVariableBegin: {
                    num_chained_ = 0;
                    ASSIGN_OR_RETURN(ExprPtr value, tuple(AllowIf::kYes));
                    if (peek().kind != TokenKind::kVariableEnd) return unexpected(peek(), "}}");
                    take();
                    body.push_back({token.line, Print{std::move(value)}});
                    break;
                }
                case TokenKind::kBlockBegin: {
                    const Token& name = peek();
                    if (name.kind == TokenKind::kName &&
                        std::ranges::find(ends, name.text) != ends.end()) {
                        return body;
                    }
                    RETURN_IF_ERROR(statement(body));
                    RETURN_IF_ERROR(expect_block_end());
                    break;
                }
                case TokenKind::kEnd:
                    if (ends.size() == 0) return body;
                    return type_error(
                        "line {}: the template ends before {}", token.line, *ends.begin()
                    );
                default:
                    return unexpected(token, "text or a tag");
            }
        }
    }

    // The body of a statement whose tag ends here, and the name that ended it.
    Result<Body> block(Words ends, std::string& end_name) {
        skip_operator(":");
        RETURN_IF_ERROR(expect_block_end());
        ASSIGN_OR_RETURN(Body body, body_until(ends));
        end_name = take().text;
        return body;
    }
    Result<Body> block(std::string_view end) {
        std::string end_name;
        return block({end}, end_name);
    }

    Result<> statement(Body& body) {
        const Token token = peek();
        if (token.kind != TokenKind::kName) return unexpected(token, "the name of a tag");
        take();
        num_chained_ = 0;
        const std::string& name = token.text;
        const int line = token.line;
        const auto add = [&](auto node) {
            body.push_back({line, std::move(node)});
            return Ok{};
        };
        if (name == "if") {
            ASSIGN_OR_RETURN(If node, if_statement());
            return add(std::move(node));
        }
        if (name == "for") {
            ASSIGN_OR_RETURN(For node, for_statement());
            return add(std::move(node));
        }
        if (name == "set") return set_statement(line, body);
        if (name == "macro") {
            ASSIGN_OR_RETURN(MacroDefinition node, macro_statement());
            return add(std::move(node));
        }
        if (name == "filter") {
            ASSIGN_OR_RETURN(std::vector<FilterExpr> filters, filters_of_block(/*with_bar=*/false));
            ASSIGN_OR_RETURN(Body inner, block("endfilter"));
            return add(FilterBlock{std::move(filters), std::move(inner)});
        }
        if (name == "with") {
            ASSIGN_OR_RETURN(With node, with_statement());
            return add(std::move(node));
        }
        if (name == "generation") {
            ASSIGN_OR_RETURN(Body inner, block("endgeneration"));
            return add(Scoped{std::move(inner)});
        }
        if (name == "print") {
            while (peek().kind != TokenKind::kBlockEnd) {
                ASSIGN_OR_RETURN(ExprPtr value, expression());
                body.push_back({line, Print{std::move(value)}});
                if (peek().kind != TokenKind::kBlockEnd) RETURN_IF_ERROR(expect_operator(","));
            }
            return Ok{};
        }
        if (name == "break" || name == "continue") {
            if (num_loops_ == 0) return type_error("line {}: '{}' outside of a loop", line, name);
            return name == "break" ? add(Break{}) : add(Continue{});
        }
        static constexpr std::array<std::string_view, 12> kOthers{
            "call",
            "block",
            "extends",
            "include",
            "import",
            "from",
            "autoescape",
            "do",
            "trans",
            "debug",
            "pluralize",
            "endraw"};
        if (std::ranges::count(kOthers, name) != 0) return unsupported(line, "the tag", name);
        return type_error("line {}: unexpected tag '{}'", line, name);
    }

    Result<If> if_statement() {
        If node;
        for (;;) {
            ASSIGN_OR_RETURN(ExprPtr condition, tuple(AllowIf::kNo));
            std::string end;
            ASSIGN_OR_RETURN(Body body, block({"endif", "elif", "else"}, end));
            node.branches.emplace_back(std::move(condition), std::move(body));
            if (end == "endif") return node;
            if (end == "elif") continue;
            ASSIGN_OR_RETURN(node.otherwise, block("endif"));
            return node;
        }
    }

    Result<For> for_statement() {
        For node;
        ASSIGN_OR_RETURN(node.target, target(/*ends_with_in=*/true));
        if (!skip_name("in")) return unexpected(peek(), "'in'");
        ASSIGN_OR_RETURN(node.items, tuple(AllowIf::kNo));
        if (skip_name("if")) {
            ASSIGN_OR_RETURN(node.condition, expression());
        }
        if (peek().is_name("recursive"))
            return unsupported(peek().line, "a loop that is", "recursive");
        std::string end;
        ++num_loops_;
        ASSIGN_OR_RETURN(node.body, block({"endfor", "else"}, end));
        --num_loops_;
        if (end == "else") {
            ASSIGN_OR_RETURN(node.otherwise, block("endfor"));
        }
        return node;
    }

    Result<> set_statement(int line, Body& body) {
        ASSIGN_OR_RETURN(Target to, target(/*ends_with_in=*/false));
        if (skip_operator("=")) {
            ASSIGN_OR_RETURN(ExprPtr value, tuple(AllowIf::kYes));
            body.push_back({line, Set{std::move(to), std::move(value)}});
            return Ok{};
        }
        ASSIGN_OR_RETURN(std::vector<FilterExpr> filters, filters_of_block(/*with_bar=*/true));
        ASSIGN_OR_RETURN(Body inner, block("endset"));
        body.push_back({line, SetBlock{std::move(to), std::move(filters), std::move(inner)}});
        return Ok{};
    }

    Result<MacroDefinition> macro_statement() {
        MacroDefinition node;
        ASSIGN_OR_RETURN(node.name, expect_name());
        RETURN_IF_ERROR(expect_operator("("));
        while (!skip_operator(")")) {
            if (!node.params.empty()) RETURN_IF_ERROR(expect_operator(","));
            const int line = peek().line;
            ASSIGN_OR_RETURN(std::string param, expect_name());
            node.params.push_back(std::move(param));
            if (skip_operator("=")) {
                ASSIGN_OR_RETURN(ExprPtr value, expression());
                node.defaults.push_back(std::move(value));
            } else if (!node.defaults.empty()) {
                return type_error("line {}: a parameter without a default behind one with", line);
            }
        }
        // Names of the body that stand for further arguments.
        const std::size_t first = pos_;
        const int num_loops = std::exchange(num_loops_, 0);
        ASSIGN_OR_RETURN(node.body, block("endmacro"));
        num_loops_ = num_loops;
        for (std::size_t i = first; i < pos_; ++i) {
            node.takes_more_positional |= tokens_[i].is_name("varargs");
            node.takes_more_named |= tokens_[i].is_name("kwargs");
        }
        return node;
    }

    Result<With> with_statement() {
        With node;
        while (peek().kind != TokenKind::kBlockEnd && !peek().is_operator(":")) {
            if (!node.values.empty()) RETURN_IF_ERROR(expect_operator(","));
            ASSIGN_OR_RETURN(Target to, target(/*ends_with_in=*/false));
            RETURN_IF_ERROR(expect_operator("="));
            ASSIGN_OR_RETURN(ExprPtr value, expression());
            node.values.emplace_back(std::move(to), std::move(value));
        }
        ASSIGN_OR_RETURN(node.body, block("endwith"));
        return node;
    }

    // `| upper | trim`, or without the first bar.
    Result<std::vector<FilterExpr>> filters_of_block(bool with_bar) {
        std::vector<FilterExpr> filters;
        for (bool more = !with_bar || skip_operator("|"); more; more = skip_operator("|")) {
            ASSIGN_OR_RETURN(FilterExpr filter, filter_call());
            filters.push_back(std::move(filter));
        }
        return filters;
    }

    // ---- targets of assignments ----

    Result<Target> target(bool ends_with_in) {
        const Level level(depth_);
        if (level.is_too_deep()) return too_deep();
        Target all;
        all.line = peek().line;
        for (;;) {
            const bool is_end = (ends_with_in && peek().is_name("in")) || peek().is_operator(")") ||
                                peek().is_operator("=") || peek().kind == TokenKind::kBlockEnd;
            if (is_end && all.is_tuple) return all;
            ASSIGN_OR_RETURN(Target one, single_target());
            if (!skip_operator(",")) {
                if (!all.is_tuple) return one;
                all.items.push_back(std::move(one));
                return all;
            }
            all.is_tuple = true;
            all.items.push_back(std::move(one));
        }
    }

    Result<Target> single_target() {
        Target one;
        one.line = peek().line;
        if (skip_operator("(")) {
            ASSIGN_OR_RETURN(one, target(/*ends_with_in=*/false));
            RETURN_IF_ERROR(expect_operator(")"));
            return one;
        }
        ASSIGN_OR_RETURN(one.name, expect_name());
        static constexpr std::array<std::string_view, 6> kConstants{
            "true", "false", "none", "True", "False", "None"};
        if (std::ranges::count(kConstants, one.name) != 0) {
            return type_error("line {}: '{}' cannot be assigned to", one.line, one.name);
        }
        if (skip_operator(".")) {
            ASSIGN_OR_RETURN(one.attribute, expect_name());
        }
        return one;
    }

    // ---- expressions, from the loosest binding to the tightest ----

    enum class AllowIf { kNo, kYes };

    [[nodiscard]] bool is_tuple_end() const {
        const Token& token = peek();
        return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
               token.is_operator(")") || token.is_name("recursive");
    }

    // One expression, or a tuple without parentheses.
    Result<ExprPtr> tuple(AllowIf allow_if, bool may_be_empty = false) {
        const int line = peek().line;
        std::vector<ExprPtr> items;
        bool is_tuple = false;
        for (;;) {
            if (is_tuple_end()) break;
            ASSIGN_OR_RETURN(
                ExprPtr item, allow_if == AllowIf::kYes ? expression() : or_expression()
            );
            items.push_back(std::move(item));
            if (!skip_operator(",")) break;
            is_tuple = true;
        }
        if (!is_tuple && !items.empty()) return std::move(items.front());
        if (items.empty() && !may_be_empty) return unexpected(peek(), "an expression");
        return expr(line, TupleExpr{std::move(items)});
    }

    Result<ExprPtr> expression() {
        const Level level(depth_);
        if (level.is_too_deep()) return too_deep();
        int line = peek().line;
        ASSIGN_OR_RETURN(ExprPtr left, or_expression());
        for (int chain = 1; skip_name("if"); ++chain) {
            if (!may_chain(chain)) return too_deep();
            ASSIGN_OR_RETURN(ExprPtr condition, or_expression());
            ExprPtr otherwise;
            if (skip_name("else")) {
                ASSIGN_OR_RETURN(otherwise, expression());
            }
            left = expr(
                line, Conditional{std::move(condition), std::move(left), std::move(otherwise)}
            );
            line = peek().line;
        }
        return left;
    }

    Result<ExprPtr> or_expression() {
        const Level level(depth_);
        if (level.is_too_deep()) return too_deep();
        const int line = peek().line;
        ASSIGN_OR_RETURN(ExprPtr left, and_expression());
        for (int chain = 1; skip_name("or"); ++chain) {
            if (!may_chain(chain)) return too_deep();
            ASSIGN_OR_RETURN(ExprPtr right, and_expression());
            left = expr(line, Binary{BinaryOp::kOr, std::move(left), std::move(right)});
        }
        return left;
    }

    Result<ExprPtr> and_expression() {
        const int line = peek().line;
        ASSIGN_OR_RETURN(ExprPtr left, not_expression());
        for (int chain = 1; skip_name("and"); ++chain) {
            if (!may_chain(chain)) return too_deep();
            ASSIGN_OR_RETURN(ExprPtr right, not_expression());
            left = expr(line, Binary{BinaryOp::kAnd, std::move(left), std::move(right)});
        }
        return left;
    }

    Result<ExprPtr> not_expression() {
        const Level level(depth_);
        if (level.is_too_deep()) return too_deep();
        const int line = peek().line;
        if (!skip_name("not")) return comparison();
        ASSIGN_OR_RETURN(ExprPtr of, not_expression());
        return expr(line, Unary{UnaryOp::kNot, std::move(of)});
    }

    std::optional<CompareOp> compare_op() {
        static constexpr std::array<std::pair<std::string_view, CompareOp>, 6> kOps{{
            {"==", CompareOp::kEqual},
            {"!=", CompareOp::kNotEqual},
            {"<", CompareOp::kLess},
            {"<=", CompareOp::kLessEqual},
            {">", CompareOp::kGreater},
            {">=", CompareOp::kGreaterEqual},
        }};
        for (const auto& [text, op] : kOps) {
            if (skip_operator(text)) return op;
        }
        if (skip_name("in")) return CompareOp::kIn;
        if (peek().is_name("not") && peek(1).is_name("in")) {
            take();
            take();
            return CompareOp::kNotIn;
        }
        return std::nullopt;
    }

    Result<ExprPtr> comparison() {
        const int line = peek().line;
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

    // A chain of left-binding operators.
    template <class Operand>
    Result<ExprPtr> chain(
        std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Operand operand
    ) {
        const int line = peek().line;
        ASSIGN_OR_RETURN(ExprPtr left, operand());
        for (int num_ops = 1;; ++num_ops) {
            const auto* const op = std::ranges::find_if(ops, [&](const auto& one) {
                return peek().is_operator(one.first);
            });
            if (op == ops.end()) return left;
            if (!may_chain(num_ops)) return too_deep();
            take();
            ASSIGN_OR_RETURN(ExprPtr right, operand());
            left = expr(line, Binary{op->second, std::move(left), std::move(right)});
        }
    }

    Result<ExprPtr> sum() {
        return chain({{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSubtract}}, [&] {
            return concatenation();
        });
    }

    Result<ExprPtr> concatenation() {
        const int line = peek().line;
        ASSIGN_OR_RETURN(ExprPtr first, product());
        if (!peek().is_operator("~")) return first;
        Concat concat;
        concat.parts.push_back(std::move(first));
        while (skip_operator("~")) {
            ASSIGN_OR_RETURN(ExprPtr part, product());
            concat.parts.push_back(std::move(part));
        }
        return expr(line, std::move(concat));
    }

    Result<ExprPtr> product() {
        return chain(
            {{"*", BinaryOp::kMultiply},
             {"/", BinaryOp::kDivide},
             {"//", BinaryOp::kFloorDivide},
             {"%", BinaryOp::kModulo}},
            [&] { return power(); }
        );
    }

    Result<ExprPtr> power() {
        return chain({{"**", BinaryOp::kPower}}, [&] {
            return unary_expression(/*with_filter=*/true);
        });
    }

    Result<ExprPtr> unary_expression(bool with_filter) {
        const Level level(depth_);
        if (level.is_too_deep()) return too_deep();
        const int line = peek().line;
        ExprPtr node;
        if (peek().is_operator("-") || peek().is_operator("+")) {
            const UnaryOp op = take().text == "-" ? UnaryOp::kMinus : UnaryOp::kPlus;
            ASSIGN_OR_RETURN(ExprPtr of, unary_expression(/*with_filter=*/false));
            node = expr(line, Unary{op, std::move(of)});
        } else {
            ASSIGN_OR_RETURN(node, primary());
        }
        ASSIGN_OR_RETURN(node, postfix(std::move(node)));
        if (!with_filter) return node;
        for (int num_filters = 1; may_chain(num_filters); ++num_filters) {
            if (skip_operator("|")) {
                const int filter_line = peek().line;
                ASSIGN_OR_RETURN(FilterExpr filter, filter_call());
                filter.of = std::move(node);
                node = expr(filter_line, std::move(filter));
            } else if (peek().is_name("is")) {
                ASSIGN_OR_RETURN(node, test(std::move(node)));
            } else if (peek().is_operator("(")) {
                ASSIGN_OR_RETURN(node, call_of(std::move(node)));
            } else {
                return node;
            }
        }
        return too_deep();
    }

    Result<ExprPtr> primary() {
        const Token token = take();
        switch (token.kind) {
            case TokenKind::kName: {
                const std::string& name = token.text;
                if (name == "true" || name == "True")
                    return expr(token.line, Constant{Value::boolean(true)});
                if (name == "false" || name == "False")
                    return expr(token.line, Constant{Value::boolean(false)});
                if (name == "none" || name == "None")
                    return expr(token.line, Constant{Value::none()});
                if (peek().is_operator("(") && is_unsupported_function(name)) {
                    return unsupported(token.line, "the function", name);
                }
                return expr(token.line, Name{name});
            }
            case TokenKind::kString: {
                std::string text = token.text;
                while (peek().kind == TokenKind::kString) text += take().text;
                return expr(token.line, Constant{Value::text(std::move(text))});
            }
            case TokenKind::kNumber:
                return expr(token.line, Constant{token.number});
            default:
                break;
        }
        if (token.is_operator("(")) {
            ASSIGN_OR_RETURN(ExprPtr inner, tuple(AllowIf::kYes, /*may_be_empty=*/true));
            RETURN_IF_ERROR(expect_operator(")"));
            return inner;
        }
        if (token.is_operator("[")) {
            ListExpr list;
            while (!skip_operator("]")) {
                if (!list.items.empty()) {
                    RETURN_IF_ERROR(expect_operator(","));
                    if (skip_operator("]")) break;
                }
                ASSIGN_OR_RETURN(ExprPtr item, expression());
                list.items.push_back(std::move(item));
            }
            return expr(token.line, std::move(list));
        }
        if (token.is_operator("{")) {
            DictExpr dict;
            while (!skip_operator("}")) {
                if (!dict.items.empty()) {
                    RETURN_IF_ERROR(expect_operator(","));
                    if (skip_operator("}")) break;
                }
                ASSIGN_OR_RETURN(ExprPtr key, expression());
                RETURN_IF_ERROR(expect_operator(":"));
                ASSIGN_OR_RETURN(ExprPtr value, expression());
                dict.items.emplace_back(std::move(key), std::move(value));
            }
            return expr(token.line, std::move(dict));
        }
        return unexpected(token, "an expression");
    }

    // .name, [key], (args), one behind the other.
    Result<ExprPtr> postfix(ExprPtr node) {
        for (int chain_len = 1; may_chain(chain_len); ++chain_len) {
            if (peek().is_operator(".") || peek().is_operator("[")) {
                ASSIGN_OR_RETURN(node, subscript(std::move(node)));
            } else if (peek().is_operator("(")) {
                ASSIGN_OR_RETURN(node, call_of(std::move(node)));
            } else {
                return node;
            }
        }
        return too_deep();
    }

    Result<ExprPtr> subscript(ExprPtr of) {
        const int line = peek().line;
        if (skip_operator(".")) {
            const Token& token = take();
            if (token.kind == TokenKind::kName) {
                return expr(line, GetAttribute{std::move(of), token.text});
            }
            if (token.kind == TokenKind::kNumber && token.number.is_whole()) {
                return expr(line, GetItem{std::move(of), expr(line, Constant{token.number})});
            }
            return unexpected(token, "a name or a number");
        }
        RETURN_IF_ERROR(expect_operator("["));
        ExprPtr begin;
        if (!peek().is_operator(":")) {
            ASSIGN_OR_RETURN(begin, expression());
        }
        if (!peek().is_operator(":")) {
            if (peek().is_operator(",")) return unsupported(line, "a subscript with", ",");
            RETURN_IF_ERROR(expect_operator("]"));
            return expr(line, GetItem{std::move(of), std::move(begin)});
        }
        Slice slice{.of = std::move(of), .begin = std::move(begin)};
        take();
        if (!peek().is_operator(":") && !peek().is_operator("]")) {
            ASSIGN_OR_RETURN(slice.end, expression());
        }
        if (skip_operator(":") && !peek().is_operator("]")) {
            ASSIGN_OR_RETURN(slice.step, expression());
        }
        if (peek().is_operator(",")) return unsupported(line, "a subscript with", ",");
        RETURN_IF_ERROR(expect_operator("]"));
        return expr(line, std::move(slice));
    }

    Result<ExprPtr> call_of(ExprPtr callee) {
        const int line = peek().line;
        if (const auto* method = std::get_if<GetAttribute>(&callee->node)) {
            if (is_unsupported_method(method->name)) {
                return unsupported(line, "the method", method->name);
            }
        }
        Call call{.callee = std::move(callee)};
        ASSIGN_OR_RETURN(call.args, call_args());
        return expr(line, std::move(call));
    }

    Result<CallArgs> call_args() {
        RETURN_IF_ERROR(expect_operator("("));
        CallArgs args;
        bool is_first = true;
        while (!skip_operator(")")) {
            if (!std::exchange(is_first, false)) {
                RETURN_IF_ERROR(expect_operator(","));
                if (skip_operator(")")) break;
            }
            const Token& token = peek();
            if (token.is_operator("*") && !args.more_positional && !args.more_named) {
                take();
                ASSIGN_OR_RETURN(args.more_positional, expression());
            } else if (token.is_operator("**") && !args.more_named) {
                take();
                ASSIGN_OR_RETURN(args.more_named, expression());
            } else if (token.kind == TokenKind::kName && peek(1).is_operator("=") && !args.more_named) {
                std::string name = take().text;
                take();
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

    Result<FilterExpr> filter_call() {
        const int line = peek().line;
        ASSIGN_OR_RETURN(const std::string name, expect_name());
        FilterExpr node{.filter = find_filter(name)};
        if (node.filter == nullptr) return unsupported(line, "the filter", name);
        if (peek().is_operator("(")) {
            ASSIGN_OR_RETURN(node.args, call_args());
        }
        return node;
    }

    Result<ExprPtr> test(ExprPtr of) {
        const int line = take().line;
        const bool is_negated = skip_name("not");
        ASSIGN_OR_RETURN(const std::string name, expect_name());
        TestExpr node{.of = std::move(of), .test = find_test(name)};
        if (node.test == nullptr) return unsupported(line, "the test", name);
        const Token& next = peek();
        const bool is_operand = next.kind == TokenKind::kString ||
                                next.kind == TokenKind::kNumber || next.is_operator("[") ||
                                next.is_operator("{") ||
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

    // Of operators one behind the other, and of all of them in one expression: they nest to the
    // left, and whoever renders or destroys the tree recurses.
    static constexpr int kChainMax = 150;
    static constexpr int kChainedMax = 5000;
    [[nodiscard]] bool may_chain(int chain_len) {
        if (chain_len > 1) ++num_chained_;
        return chain_len <= kChainMax + 1 && num_chained_ <= kChainedMax;
    }

    std::vector<Token> tokens_;
    std::size_t pos_ = 0;
    int depth_ = 0;
    int num_chained_ = 0;  // in the expression being parsed
    int num_loops_ = 0;
};

}  // namespace

Result<Body> parse(std::string_view source) {
    if (source.size() > kSourceBytesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "the template has {} bytes; accepted are {}",
            source.size(),
            kSourceBytesMax
        );
    }
    if (!is_utf8(source)) return type_error("the template is not UTF-8");
    ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
    return Parser(std::move(tokens)).run();
}

}  // namespace pitstop::jinja
