// Parses expressions, from the loosest binding to the tightest. Source: Jinja 3.1, parser.py.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"
#include "jinja/token_cursor.h"

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

namespace pitstop::jinja {

class ExpressionParser {
  public:
    enum class AllowIf { kNo, kYes };

    // `tokens` must outlive the parser.
    explicit ExpressionParser(TokenCursor& tokens) : tokens_(tokens) {}

    // Called before an expression that is not part of another.
    void begin() { num_chained_ = 0; }

    // Parses one expression, or a tuple without parentheses.
    Result<ExprPtr> tuple(AllowIf allow_if, bool may_be_empty = false);
    Result<ExprPtr> expression();
    // Parses `upper`, or `indent(2)`.
    Result<FilterExpr> filter_call();

  private:
    [[nodiscard]] bool is_tuple_end() const;
    Result<ExprPtr> or_expression();
    Result<ExprPtr> and_expression();
    Result<ExprPtr> not_expression();
    std::optional<CompareOp> compare_op();
    Result<ExprPtr> comparison();
    Result<ExprPtr> sum();
    Result<ExprPtr> concatenation();
    Result<ExprPtr> product();
    Result<ExprPtr> power();
    Result<ExprPtr> unary_expression(bool with_filter);
    Result<ExprPtr> primary();
    Result<ExprPtr> postfix(ExprPtr node);
    Result<ExprPtr> subscript(ExprPtr of);
    Result<ExprPtr> call_of(ExprPtr callee);
    Result<CallArgs> call_args();
    Result<ExprPtr> test(ExprPtr of);
    // Parses a chain of left-binding operators.
    template <class Operand>
    Result<ExprPtr> chain(
        std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Operand operand
    );

    // The most operators in a row, and in one expression. Such operators nest to the left, and
    // rendering or destroying the tree recurses.
    static constexpr int kChainMax = 150;
    static constexpr int kChainedMax = 5000;
    [[nodiscard]] bool may_chain(int chain_len);

    TokenCursor& tokens_;
    int num_chained_ = 0;  // in the expression being parsed
};

}  // namespace pitstop::jinja
