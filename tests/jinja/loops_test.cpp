// Tests the value `loop`, and the arguments of macros, without a template.
#include "jinja/loops.h"

#include "jinja/kept_objects.h"
#include "jinja/macro_call.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

namespace pitstop::jinja {
namespace {

// A loop over three items, at the first one.
class LoopsTest : public testing::Test {
  protected:
    LoopsTest() {
        for (const std::int64_t item : {1, 2, 3}) loop_.items.push_back(Value::integer(item));
        loop_.next = 1;
        loop_.index0 = 0;
        loop_.current = Value::integer(std::int64_t{1});
    }
    // Pulls the next item that is not `left_out_`.
    Result<std::optional<Value>> pull(Loop& loop) {
        while (loop.next < loop.items.size()) {
            const Value item = loop.items[loop.next++];
            ++num_pulled_;
            if (item.whole() != left_out_) return std::optional(item);
        }
        return std::optional<Value>{};
    }
    Value attribute(std::string_view name) {
        Result<Value> value = loop_attribute(loop_, name, [this](Loop& of) { return pull(of); });
        return value ? *value : Value::undefined(value.error().message);
    }

    Loop loop_{};
    std::int64_t left_out_ = 0;
    int num_pulled_ = 0;
    Budget budget_{Limits{}};
};

TEST_F(LoopsTest, TheNumberOfTurnsNeedsNoItemIfAllHaveOne) {
    EXPECT_EQ(attribute("length").whole(), 3);
    EXPECT_EQ(attribute("revindex").whole(), 3);
    EXPECT_EQ(attribute("revindex0").whole(), 2);
    EXPECT_EQ(num_pulled_, 0);
}

TEST_F(LoopsTest, AConditionIsEvaluatedOncePerItemForTheNumberOfTurns) {
    Expr condition{};
    loop_.condition = &condition;
    left_out_ = 2;
    EXPECT_EQ(attribute("length").whole(), 2);
    EXPECT_EQ(attribute("length").whole(), 2);
    EXPECT_EQ(num_pulled_, 2);
    EXPECT_EQ(attribute("nextitem").whole(), 3);
    EXPECT_TRUE(attribute("last").is_undefined() == false && !attribute("last").is_true());
}

TEST_F(LoopsTest, TheItemAheadIsPulledOnce) {
    EXPECT_EQ(attribute("nextitem").whole(), 2);
    EXPECT_EQ(attribute("nextitem").whole(), 2);
    EXPECT_EQ(num_pulled_, 1);
    EXPECT_TRUE(attribute("previtem").is_undefined());
    EXPECT_TRUE(attribute("nonsense").is_undefined());
}

TEST_F(LoopsTest, ChangedComparesWithTheLastCall) {
    const LoopMethod changed{&loop_, LoopMethod::Which::kChanged};
    const auto is_changed = [&](std::int64_t to) {
        return call_loop(changed, {.positional = {Value::integer(to)}}, budget_)->is_true();
    };
    EXPECT_TRUE(is_changed(1));
    EXPECT_FALSE(is_changed(1));
    EXPECT_TRUE(is_changed(2));
}

TEST_F(LoopsTest, CycleNeedsAnItem) {
    loop_.index0 = 4;
    const LoopMethod cycle{&loop_, LoopMethod::Which::kCycle};
    EXPECT_FALSE(call_loop(cycle, {}, budget_));
    const Args items{
        .positional = {Value::integer(std::int64_t{7}), Value::integer(std::int64_t{8})}};
    EXPECT_EQ(call_loop(cycle, items, budget_)->whole(), 7);
}

class MacroCallTest : public testing::Test {
  protected:
    MacroCallTest() { macro_.params = {"a", "b"}; }
    Result<> bind(Args args) {
        return bind_arguments(
            macro_,
            std::move(args),
            scope_,
            budget_,
            [](const Expr&, const Scope&) { return Result<Value>(Value::integer(std::int64_t{9})); }
        );
    }
    const Value* variable(std::string_view name) {
        std::size_t num_seen = 0;
        return scope_.find(name, num_seen);
    }

    MacroDefinition macro_{};
    Scope scope_{};
    Budget budget_{Limits{}};
};

TEST_F(MacroCallTest, AParameterGetsItsArgumentOrItsDefaultOrIsUndefined) {
    macro_.defaults.push_back(std::make_unique<Expr>());
    ASSERT_TRUE(bind({}));
    EXPECT_TRUE(variable("a")->is_undefined());
    EXPECT_EQ(variable("b")->whole(), 9);
    ASSERT_TRUE(bind(
        {.positional = {Value::integer(std::int64_t{1})},
         .named = {{"b", Value::integer(std::int64_t{2})}}}
    ));
    EXPECT_EQ(variable("a")->whole(), 1);
    EXPECT_EQ(variable("b")->whole(), 2);
}

TEST_F(MacroCallTest, OtherArgumentsAreRefusedOrGivenToTheBody) {
    const Args more{
        .positional = {Value::none(), Value::none(), Value::none()},
        .named = {{"c", Value::none()}}};
    EXPECT_FALSE(bind(more));
    macro_.takes_more_named = true;
    EXPECT_FALSE(bind(more));
    macro_.takes_more_positional = true;
    ASSERT_TRUE(bind(more));
    EXPECT_EQ(variable("varargs")->as_sequence()->items.size(), 1U);
    EXPECT_EQ(variable("kwargs")->as_mapping()->size(), 1U);
}

TEST(KeptObjects, ANamespaceTakesOneMapping) {
    Budget budget{Limits{}};
    KeptObjects kept;
    EXPECT_FALSE(kept.make_namespace({.positional = {Value::none()}}, budget));
    const Result<Value> made = kept.make_namespace({.named = {{"n", Value::none()}}}, budget);
    ASSERT_TRUE(made);
    EXPECT_EQ((*made->get_if<Namespace*>())->attributes.size(), 1U);
}

}  // namespace
}  // namespace pitstop::jinja
