// Tests what the golden cases leave out: limits, errors at load, and values that outlive the
// template that made them.
#include "jinja/template.h"

#include "jinja/json.h"
#include "jinja/parser.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <string_view>

namespace pitstop::jinja {
namespace {

std::string load_error(std::string_view source) {
    const Result<Template> parsed = Template::parse(source);
    return parsed ? "loaded" : parsed.error().message;
}

Result<std::string> render(
    std::string_view source, std::string_view variables = "{}", const Limits& limits = {}
) {
    ASSIGN_OR_RETURN(const Template parsed, Template::parse(source));
    ASSIGN_OR_RETURN(const Value values, parse_json(variables));
    return parsed.render(*values.as_mapping(), std::tm{}, limits);
}

std::string text(std::string_view source, std::string_view variables = "{}") {
    const Result<std::string> rendered = render(source, variables);
    return rendered ? *rendered : "error: " + rendered.error().message;
}

ErrorCode code_of(std::string_view source, const Limits& limits = {}) {
    const Result<std::string> rendered = render(source, "{}", limits);
    return rendered ? ErrorCode::kInternal : rendered.error().code;
}

TEST(Template, AnUnsupportedConstructIsRefusedAtLoadWithItsLineAndName) {
    EXPECT_EQ(load_error("a\n{% include 'x' %}"), "line 2: the tag 'include' is not supported");
    EXPECT_EQ(load_error("{% extends 'x' %}"), "line 1: the tag 'extends' is not supported");
    EXPECT_EQ(load_error("\n\n{{ x | urlize }}"), "line 3: the filter 'urlize' is not supported");
    EXPECT_EQ(load_error("{{ x is weird }}"), "line 1: the test 'weird' is not supported");
    EXPECT_EQ(
        load_error("{% for a in b recursive %}{% endfor %}"),
        "line 1: a loop that is 'recursive' is not supported"
    );
    EXPECT_EQ(load_error("{{ x.encode('a') }}"), "line 1: the method 'encode' is not supported");
    EXPECT_EQ(load_error("{{ cycler(1) }}"), "line 1: the function 'cycler' is not supported");
    EXPECT_EQ(load_error("{{ x[1, 2] }}"), "line 1: a subscript with ',' is not supported");
}

TEST(Template, ASyntaxErrorNamesTheLineAndWhatIsThere) {
    EXPECT_EQ(load_error("\n{{ 1 + }}"), "line 2: }} where an expression is needed");
    EXPECT_EQ(load_error("{% if x %}"), "line 1: the template ends before endif");
    EXPECT_EQ(load_error("{% endif %}"), "line 1: unexpected tag 'endif'");
    EXPECT_EQ(load_error("{{ 'a }}"), "line 1: a string without its closing quote");
    EXPECT_EQ(load_error("{{ (1] }}"), "line 1: unexpected ']'");
    EXPECT_EQ(load_error("{# a"), "line 1: a comment {# without its #}");
    EXPECT_EQ(load_error("{{ a"), "line 1: a tag {{ without its }}");
    EXPECT_EQ(load_error("{% break %}"), "line 1: 'break' outside of a loop");
    EXPECT_EQ(load_error("\xff"), "the template is not UTF-8");
}

TEST(Template, WhatTheTemplateRaisesIsTheErrorWordForWord) {
    EXPECT_EQ(text("a\n{{ raise_exception('No tools here!') }}"), "error: No tools here!");
}

TEST(Template, AnErrorOfRenderingNamesItsLine) {
    EXPECT_EQ(text("a\n{{ x.y }}"), "error: line 2: 'x' is undefined");
    EXPECT_EQ(text("{{ 1 + 'a' }}"), "error: line 1: '+' does not accept int and str");
    EXPECT_EQ(
        text("{{ x.y.z }}", R"({"x": {}})"), "error: line 1: 'dict object' has no attribute 'y'"
    );
}

TEST(Template, ValuesCannotBeChanged) {
    EXPECT_EQ(
        text("{{ x.append(1) }}", R"({"x": []})"),
        "error: line 1: access to attribute 'append' of 'list' object is unsafe: a template may "
        "not change values"
    );
    EXPECT_EQ(text("{{ x.__class__ }}", R"({"x": []})"), "");
}

TEST(Template, ALoopWithoutEndEndsAtItsLimit) {
    EXPECT_EQ(
        code_of("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
        ErrorCode::kTooLarge
    );
}

TEST(Template, AMacroThatCallsItselfForEverEndsAtItsLimit) {
    EXPECT_EQ(code_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), ErrorCode::kTooLarge);
    EXPECT_EQ(
        code_of("{% set ns = namespace() %}{% macro m() %}{{ ns.f() }}{% endmacro %}"
                "{% set ns.f = m %}{{ m() }}"),
        ErrorCode::kTooLarge
    );
}

TEST(Template, AValueThatGrowsWithoutBoundEndsAtItsLimit) {
    const Limits small{.built_bytes_max = 1 << 20};
    EXPECT_EQ(code_of("{{ 'x' * 100000000000 }}", small), ErrorCode::kTooLarge);
    EXPECT_EQ(code_of("{{ [1] * 100000000000 }}", small), ErrorCode::kTooLarge);
    EXPECT_EQ(code_of("{{ 'x'.ljust(100000000) }}", small), ErrorCode::kTooLarge);
    EXPECT_EQ(
        code_of(
            "{% set ns = namespace(s='x') %}"
            "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
            small
        ),
        ErrorCode::kTooLarge
    );
    EXPECT_EQ(
        code_of(
            "{% set ns = namespace(s=[]) %}"
            "{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
            small
        ),
        ErrorCode::kTooLarge
    );
    EXPECT_EQ(code_of("{{ ('a' * 1000).replace('', 'b' * 2000) }}", small), ErrorCode::kTooLarge);
}

TEST(Template, ValuesNestedTooDeepAreRefused) {
    EXPECT_EQ(
        code_of("{% set ns = namespace(s=[]) %}"
                "{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}"),
        ErrorCode::kTooLarge
    );
}

// Left-associative operators nest without a bracket; destroying the tree recurses, too.
TEST(Template, ChainsOfOperatorsThatAreTooLongAreRefusedAtLoad) {
    for (const std::string_view op :
         {" if a", " or a", " and a", " + a", " * a", " ** a", "|d", ".b", "[a]", "()"}) {
        SCOPED_TRACE(op);
        std::string source = "{{ a";
        for (int i = 0; i < 150; ++i) source += op;
        EXPECT_EQ(load_error(source + " }}"), "loaded");
        while (source.size() < kSourceBytesMax - 10) source += op;
        EXPECT_TRUE(load_error(source + " }}").starts_with("line 1: nested deeper"));
    }
    // Each chain of operators encloses the previous ones in brackets.
    std::string inner = "a";
    for (int i = 0; i < 20; ++i) {
        inner = "(" + inner + ")";
        for (const std::string_view op : {".b", "|d", " ** 1", " * 1", " + 1", " and 1", " or 1"}) {
            for (int k = 0; k < 149; ++k) inner += op;
        }
    }
    EXPECT_TRUE(load_error("{{ " + inner + " }}").starts_with("line 1: nested deeper"));
}

TEST(Template, ExpressionsNestedTooDeepAreRefusedAtLoad) {
    const std::string open(100000, '(');
    EXPECT_NE(load_error("{{ " + open + "1"), "loaded");
    std::string nots = "{{ ";
    for (int i = 0; i < 10000; ++i) nots += "not ";
    EXPECT_EQ(load_error(nots + "1 }}"), "line 1: nested deeper than 100 levels");
    std::string ifs;
    for (int i = 0; i < 10000; ++i) ifs += "{% if 1 %}";
    EXPECT_EQ(load_error(ifs), "line 1: nested deeper than 100 levels");
    std::string sum = "{{ 1";
    for (int i = 0; i < 10000; ++i) sum += " + 1";
    EXPECT_NE(load_error(sum + " }}"), "loaded");
}

TEST(Template, ANamespaceMayHoldItself) {
    const Result<std::string> rendered =
        render("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x.x.x is defined }}");
    ASSERT_TRUE(rendered);
    EXPECT_EQ(*rendered, "True");
    EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"));
}

TEST(Template, ALoopAndItsMacrosMayOutliveIt) {
    EXPECT_EQ(
        text("{% set ns = namespace() %}{% for a in [1, 2, 3] if a %}{% set ns.l = loop %}"
             "{% set ns.c = loop.cycle %}{% if a == 2 %}{% break %}{% endif %}{% endfor %}"
             "{{ ns.l.index }}{{ ns.l.last }}{{ ns.c('x', 'y') }}"),
        "2Truey"
    );
    EXPECT_EQ(
        text("{% set ns = namespace() %}{% for a in ['x', 'y'] %}{% with b = a %}"
             "{% macro m() %}{{ a }}{{ b }}{{ loop.index }}{% endmacro %}{% set ns.m = m %}"
             "{% endwith %}{% endfor %}{{ ns.m() }}"),
        "yy2"
    );
}

TEST(Template, IntegersOfJsonBeyond64BitsStayAsTheyAre) {
    EXPECT_EQ(
        text(
            "{{ x | tojson }} {{ y }}",
            R"({"x": [18446744073709551615], "y": -99999999999999999999})"
        ),
        "[18446744073709551615] -99999999999999999999"
    );
    EXPECT_EQ(
        text("{{ x + 1 }}", R"({"x": 18446744073709551615})"),
        "error: line 1: '+' does not accept int and int"
    );
    EXPECT_EQ(
        text("{{ 9223372036854775807 + 1 }}"),
        "error: line 1: the result is an integer beyond 64 bits"
    );
}

TEST(Json, WhatIsNotJsonIsRefusedWithItsPlace) {
    EXPECT_EQ(parse_json("[1, }").error().message, "not valid JSON at byte 5");
    EXPECT_EQ(parse_json("\"\xff\"").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(parse_json(std::string(100000, '[')).error().code, ErrorCode::kTooLarge);
    EXPECT_FALSE(parse_json(""));
    EXPECT_FALSE(parse_json("1 2"));
}

}  // namespace
}  // namespace pitstop::jinja
