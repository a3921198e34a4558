#include "jinja/parser.h"

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/expression_parser.h"
#include "jinja/lexer.h"
#include "jinja/token_cursor.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace pitstop::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
  public:
    explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    Result<Body> run() { return body_until({}); }

  private:
    // ---- statements ----

    // Parses up to a block tag with one of these names, which is not consumed; if `ends` is empty,
    // to the end.
    Result<Body> body_until(Words ends) {
        const TokenCursor::Level level(tokens_);
        if (level.is_too_deep()) return tokens_.too_deep();
        Body body;
        for (;;) {
            const Token& token = tokens_.take();
            switch (token.kind) {
                case TokenKind::kData:
                    body.push_back({token.line, Data{token.text}});
                    break;
                case TokenKind::kVariableBegin: {
                    expressions_.begin();
                    ASSIGN_OR_RETURN(
                        ExprPtr value, expressions_.tuple(ExpressionParser::AllowIf::kYes)
                    );
                    if (tokens_.peek().kind != TokenKind::kVariableEnd)
                        return unexpected(tokens_.peek(), "}}");
                    tokens_.take();
                    body.push_back({token.line, Print{std::move(value)}});
                    break;
                }
                case TokenKind::kBlockBegin: {
                    const Token& name = tokens_.peek();
                    if (name.kind == TokenKind::kName &&
                        std::ranges::find(ends, name.text) != ends.end()) {
                        return body;
                    }
                    RETURN_IF_ERROR(statement(body));
                    RETURN_IF_ERROR(tokens_.expect_block_end());
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

    // Parses the body of a statement whose tag ends here, and stores the name that ended the body.
    Result<Body> block(Words ends, std::string& end_name) {
        tokens_.skip_operator(":");
        RETURN_IF_ERROR(tokens_.expect_block_end());
        ASSIGN_OR_RETURN(Body body, body_until(ends));
        end_name = tokens_.take().text;
        return body;
    }
    Result<Body> block(std::string_view end) {
        std::string end_name;
        return block({end}, end_name);
    }

    Result<> statement(Body& body) {
        const Token token = tokens_.peek();
        if (token.kind != TokenKind::kName) return unexpected(token, "the name of a tag");
        tokens_.take();
        expressions_.begin();
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
            while (tokens_.peek().kind != TokenKind::kBlockEnd) {
                ASSIGN_OR_RETURN(ExprPtr value, expressions_.expression());
                body.push_back({line, Print{std::move(value)}});
                if (tokens_.peek().kind != TokenKind::kBlockEnd)
                    RETURN_IF_ERROR(tokens_.expect_operator(","));
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
            ASSIGN_OR_RETURN(ExprPtr condition, expressions_.tuple(ExpressionParser::AllowIf::kNo));
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
        if (!tokens_.skip_name("in")) return unexpected(tokens_.peek(), "'in'");
        ASSIGN_OR_RETURN(node.items, expressions_.tuple(ExpressionParser::AllowIf::kNo));
        if (tokens_.skip_name("if")) {
            ASSIGN_OR_RETURN(node.condition, expressions_.expression());
        }
        if (tokens_.peek().is_name("recursive"))
            return unsupported(tokens_.peek().line, "a loop that is", "recursive");
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
        if (tokens_.skip_operator("=")) {
            ASSIGN_OR_RETURN(ExprPtr value, expressions_.tuple(ExpressionParser::AllowIf::kYes));
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
        ASSIGN_OR_RETURN(node.name, tokens_.expect_name());
        RETURN_IF_ERROR(tokens_.expect_operator("("));
        while (!tokens_.skip_operator(")")) {
            if (!node.params.empty()) RETURN_IF_ERROR(tokens_.expect_operator(","));
            const int line = tokens_.peek().line;
            ASSIGN_OR_RETURN(std::string param, tokens_.expect_name());
            node.params.push_back(std::move(param));
            if (tokens_.skip_operator("=")) {
                ASSIGN_OR_RETURN(ExprPtr value, expressions_.expression());
                node.defaults.push_back(std::move(value));
            } else if (!node.defaults.empty()) {
                return type_error(
                    "line {}: a parameter without a default follows one with a default", line
                );
            }
        }
        // In the body, `varargs` and `kwargs` are the additional arguments.
        const std::size_t first = tokens_.position();
        const int num_loops = std::exchange(num_loops_, 0);
        ASSIGN_OR_RETURN(node.body, block("endmacro"));
        num_loops_ = num_loops;
        for (std::size_t i = first; i < tokens_.position(); ++i) {
            node.takes_more_positional |= tokens_.at(i).is_name("varargs");
            node.takes_more_named |= tokens_.at(i).is_name("kwargs");
        }
        return node;
    }

    Result<With> with_statement() {
        With node;
        while (tokens_.peek().kind != TokenKind::kBlockEnd && !tokens_.peek().is_operator(":")) {
            if (!node.values.empty()) RETURN_IF_ERROR(tokens_.expect_operator(","));
            ASSIGN_OR_RETURN(Target to, target(/*ends_with_in=*/false));
            RETURN_IF_ERROR(tokens_.expect_operator("="));
            ASSIGN_OR_RETURN(ExprPtr value, expressions_.expression());
            node.values.emplace_back(std::move(to), std::move(value));
        }
        ASSIGN_OR_RETURN(node.body, block("endwith"));
        return node;
    }

    // Parses `| upper | trim`, with or without the first bar.
    Result<std::vector<FilterExpr>> filters_of_block(bool with_bar) {
        std::vector<FilterExpr> filters;
        for (bool more = !with_bar || tokens_.skip_operator("|"); more;
             more = tokens_.skip_operator("|")) {
            ASSIGN_OR_RETURN(FilterExpr filter, expressions_.filter_call());
            filters.push_back(std::move(filter));
        }
        return filters;
    }

    // ---- targets of assignments ----

    Result<Target> target(bool ends_with_in) {
        const TokenCursor::Level level(tokens_);
        if (level.is_too_deep()) return tokens_.too_deep();
        Target all;
        all.line = tokens_.peek().line;
        for (;;) {
            const bool is_end =
                (ends_with_in && tokens_.peek().is_name("in")) || tokens_.peek().is_operator(")") ||
                tokens_.peek().is_operator("=") || tokens_.peek().kind == TokenKind::kBlockEnd;
            if (is_end && all.is_tuple) return all;
            ASSIGN_OR_RETURN(Target one, single_target());
            if (!tokens_.skip_operator(",")) {
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
        one.line = tokens_.peek().line;
        if (tokens_.skip_operator("(")) {
            ASSIGN_OR_RETURN(one, target(/*ends_with_in=*/false));
            RETURN_IF_ERROR(tokens_.expect_operator(")"));
            return one;
        }
        ASSIGN_OR_RETURN(one.name, tokens_.expect_name());
        static constexpr std::array<std::string_view, 6> kConstants{
            "true", "false", "none", "True", "False", "None"};
        if (std::ranges::count(kConstants, one.name) != 0) {
            return type_error("line {}: '{}' cannot be assigned to", one.line, one.name);
        }
        if (tokens_.skip_operator(".")) {
            ASSIGN_OR_RETURN(one.attribute, tokens_.expect_name());
        }
        return one;
    }

    TokenCursor tokens_;
    ExpressionParser expressions_{tokens_};
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
