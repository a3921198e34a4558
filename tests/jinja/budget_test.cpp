// The cost of a rendering is charged before the work is done: every filter, method, test and
// operator, with the largest arguments, ends within a small budget of steps, bytes and real memory.
#include "jinja/budget.h"

#include "base/check.h"
#include "jinja/filters.h"
#include "jinja/json.h"
#include "jinja/template.h"
#include "tests/source_dir.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <malloc.h>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PITSTOP_COUNTS_MEMORY 1
#endif

namespace {

std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

}  // namespace

#ifdef PITSTOP_COUNTS_MEMORY
void* operator new(std::size_t size) {
    void* place = std::malloc(size);
    if (place == nullptr) throw std::bad_alloc();
    const auto taken = static_cast<std::int64_t>(::malloc_usable_size(place));
    const std::int64_t live = live_bytes += taken;
    if (live > peak_bytes) peak_bytes = live;
    return place;
}
void operator delete(void* place) noexcept {
    live_bytes -= static_cast<std::int64_t>(::malloc_usable_size(place));
    std::free(place);
}
void operator delete(void* place, std::size_t) noexcept { operator delete(place); }
#endif

namespace pitstop::jinja {
namespace {

constexpr std::size_t kBytesMax = std::size_t{1} << 20;
constexpr std::int64_t kStepsMax = 4000;
// A growing vector exists twice for a moment, and its capacity is up to twice its size.
constexpr std::int64_t kMemoryMax = 8 * static_cast<std::int64_t>(kBytesMax);
// 4,000 steps take about 2 ms, and 2 s under ThreadSanitizer; work that is not charged takes
// minutes.
constexpr double kSecondsMax = 20;

double thread_seconds() {
    std::timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

const Mapping& variables() {
    static const Value kValues = [] {
        const std::string half(128 << 10, 'a');
        std::string list;
        std::string mapping;
        for (int i = 0; i < 5000; ++i) {
            list += fmt::format("{}\"a{}\"", i == 0 ? "" : ",", i);
            mapping += fmt::format("{}\"k{}\":{}", i == 0 ? "" : ",", i, i);
        }
        std::string wide;
        for (int i = 0; i < 20'000; ++i) wide += "\xf0\x9f\x98\x80";
        std::string lines;
        for (int i = 0; i < 50'000; ++i) lines += "\\n";
        std::string json = "{";
        json += fmt::format("\"a\": \"{}{}\", ", half, half);
        json += fmt::format("\"ab\": \"{}b\", \"ba\": \"b{}\", ", half, half);
        json += fmt::format("\"wide\": \"{}\", \"lines\": \"{}\", ", wide, lines);
        json += fmt::format("\"list\": [{}], \"map\": {{{}}}, ", list, mapping);
        json += "\"big\": 99999999999999999999, ";
        json += fmt::format("\"marks\": \"{}\"}}", std::string(50'000, '<'));
        const Result<Value> parsed = parse_json(json);
        CHECK(parsed.has_value());
        return *parsed;
    }();
    return *kValues.as_mapping();
}

// Renders the expression once, and repeatedly in a loop: neither may exceed the budget.
void expect_small(const std::string& source) {
    const Result<Template> parsed = Template::parse(source);
    ASSERT_TRUE(parsed) << source << ": " << parsed.error().message;
    const Limits limits{
        .steps_max = kStepsMax, .built_bytes_max = kBytesMax, .output_bytes_max = kBytesMax};
    const double begin = thread_seconds();
    const std::int64_t live = live_bytes;
    peak_bytes = live;
    const Result<std::string> text = parsed->render(variables(), std::tm{}, limits);
    EXPECT_LE(peak_bytes - live, kMemoryMax) << source;
    EXPECT_LE(thread_seconds() - begin, kSecondsMax) << source;
    EXPECT_LE(text ? 0 : text.error().message.size(), 8192u) << source;
}

void expect_small_expression(const std::string& expression) {
    expect_small("{{ " + expression + " }}");
    expect_small("{% for i in range(1000) %}{% set x = " + expression + " %}{% endfor %}");
}

const std::vector<std::string>& selves() {
    static const std::vector<std::string> kAll{
        "a",
        "wide",
        "lines",
        "(marks | safe)",
        "list",
        "map",
        "'x'",
        "''",
        "big",
        "1.5",
        "[list, list, list]",
        "('-' ~ a)"};
    return kAll;
}

const std::vector<std::string>& arguments() {
    static const std::vector<std::string> kAll{
        "",
        "999999999",
        "9223372036854775807",
        "-9223372036854775807 - 1",
        "4611686018427387905, '\xf0\x9f\x98\x80'",
        "ab",
        "ba",
        "'a'",
        "'', a",
        "'a', a",
        "a, a",
        "list",
        "9223372036854775807, 9223372036854775807",
        "'x', 9223372036854775807",
        "attribute=a",
        "*list",
        "**map",
        "'upper', *list",
        "none, 9223372036854775807"};
    return kAll;
}

void expect_small_calls(const std::vector<std::string>& calls) {
    for (const std::string& self : selves()) {
        for (const std::string& call : calls) {
            expect_small_expression(self + call);
            if (testing::Test::HasFailure()) return;
        }
    }
}

std::vector<std::string> with_arguments(const std::string& prefix, std::string_view name) {
    std::vector<std::string> calls;
    for (const std::string& given : arguments()) {
        calls.push_back(fmt::format("{}{}({})", prefix, name, given));
    }
    return calls;
}

TEST(Budget, EveryFilterChargesBeforeItBuilds) {
    for (const auto& table : {text_filters(), sequence_filters()}) {
        for (const Builtin& filter : table) {
            SCOPED_TRACE(filter.name);
            expect_small_calls(with_arguments(" | ", filter.name));
        }
    }
    for (const char* name : {"abs", "attr", "default", "float", "int", "round"}) {
        SCOPED_TRACE(name);
        expect_small_calls(with_arguments(" | ", name));
    }
}

// Source of the names: Python 3.11's str, list and dict, as far as this library has them.
TEST(Budget, EveryMethodChargesBeforeItBuilds) {
    for (const char* name :
         {"capitalize",   "center",  "count",   "copy",       "endswith",   "find",
          "format",       "get",     "index",   "isalnum",    "isalpha",    "isdigit",
          "isnumeric",    "islower", "isspace", "isupper",    "items",      "join",
          "keys",         "ljust",   "lower",   "lstrip",     "partition",  "removeprefix",
          "removesuffix", "replace", "rfind",   "rindex",     "rjust",      "rpartition",
          "rsplit",       "rstrip",  "split",   "splitlines", "startswith", "strip",
          "swapcase",     "title",   "upper",   "values",     "zfill"}) {
        SCOPED_TRACE(name);
        expect_small_calls(with_arguments(".", name));
    }
}

TEST(Budget, EveryTestChargesBeforeItCompares) {
    for (const char* name :
         {"odd",
          "divisibleby(3)",
          "lower",
          "upper",
          "sameas(a)",
          "in(a)",
          "in(list)",
          "in(map)",
          "eq(a)",
          "lt(a)",
          "ge(list)",
          "filter",
          "test",
          "mapping",
          "iterable"}) {
        SCOPED_TRACE(name);
        expect_small_calls({fmt::format(" is {}", name)});
    }
}

TEST(Budget, EveryOperatorChargesBeforeItBuilds) {
    for (const char* op :
         {"+",
          "-",
          "*",
          "/",
          "//",
          "%",
          "**",
          "~",
          "==",
          "!=",
          "<",
          ">=",
          "in",
          "not in",
          "and",
          "or"}) {
        SCOPED_TRACE(op);
        std::vector<std::string> calls;
        for (const char* right :
             {"a",
              "ab",
              "ba",
              "list",
              "map",
              "(marks | safe)",
              "999999999",
              "9223372036854775807",
              "-1",
              "1.5",
              "big",
              "(1, 2)",
              "none"}) {
            calls.push_back(fmt::format(" {} {}", op, right));
        }
        expect_small_calls(calls);
    }
    expect_small_calls(
        {"[::-1]",
         "[::2]",
         "[1:9223372036854775807:9223372036854775807]",
         "[-1]",
         "[99999]",
         "[a]",
         "['k1']",
         "[(1, (2, 3))]",
         "[:]"}
    );
    for (const char* number : {"999999999", "9223372036854775807", "(-9223372036854775807 - 1)"}) {
        expect_small_expression(fmt::format("{} * a", number));
        expect_small_expression(fmt::format("{0} * {0} ** {0}", number));
        expect_small_expression(fmt::format("a[{}:]", number));
        expect_small_expression(fmt::format("list[::{}]", number));
        expect_small_expression(fmt::format("range({})", number));
        expect_small_expression(fmt::format("range(0, {0}, {0})", number));
    }
}

TEST(Budget, EveryFormatChargesBeforeItBuilds) {
    for (const char* format :
         {"('{0}' * 9999).format('')",
          "('{0}' * 9999).format(a)",
          "('{' * 9999).format(1)",
          "a.format(*list, **map)",
          "'{k4999}{k0}'.format(**map)",
          "list | tojson(indent=1024)",
          "list | tojson(indent=a)",
          "map | tojson(sort_keys=true)",
          "wide | tojson(ensure_ascii=true)",
          "list | tojson(separators=(a, a))",
          "strftime_now(a)",
          "strftime_now('%999999999d')",
          "dict(list)",
          "dict(map, **map)",
          "namespace(map, **map)",
          "raise_exception(a)",
          "dict(map) == map",
          "(list | join(a))",
          "list | sort(attribute=a)",
          "list | sort(attribute=',' * 9999)",
          "list | map('format', *list) | list",
          "list | map(attribute=a) | list",
          "list | select('in', list) | list",
          "list | batch(9223372036854775807, 'x') | list",
          "list | slice(65536, 'x') | list",
          "list | unique | list"}) {
        SCOPED_TRACE(format);
        expect_small_expression(format);
    }
}

// Comparing two tuples that contain themselves takes 2^40 comparisons.
TEST(Budget, KeysThatAreTuplesAreComparedWithinTheBudget) {
    std::string source = "{% set x = (1, 1) %}{% set y = (1, 1) %}";
    for (int i = 0; i < 40; ++i) source += "{% set x = (x, x) %}{% set y = (y, y) %}";
    for (const char* use :
         {"{{ {x: 1}[y] }}",
          "{{ {x: 1, y: 2} | length }}",
          "{{ y in {x: 1} }}",
          "{{ {x: 1}.get(y) }}",
          "{{ dict([(x, 1), (y, 2)]) }}",
          "{{ {x: 1} == {y: 1} }}",
          "{{ x == y }}",
          "{{ x < y }}"}) {
        SCOPED_TRACE(use);
        expect_small(source + use);
    }
}

TEST(Budget, StatementsChargeBeforeTheyBuild) {
    std::string names;
    for (int i = 0; i < 3000; ++i) names += fmt::format("{{% set v{} = 1 %}}", i);
    expect_small(names);
    expect_small("{% for i in range(9) %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}{% endfor %}");
    expect_small(
        "{% macro m() %}{{ varargs | length }}{{ m(*varargs) }}{% endmacro %}{{ m(*list) }}"
    );
    expect_small("{% macro m() %}{{ kwargs | length }}{{ m(**kwargs) }}{% endmacro %}{{ m(**map) }}"
    );
    expect_small(
        "{% set n = namespace(s='x') %}{% for i in list %}{% set n.s = n.s ~ a %}{% endfor %}"
    );
    expect_small("{% set n = namespace() %}{% set n.a = n %}{% set n.b = n %}{{ n }}");
    expect_small("{% set x %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}{% endset %}");
    expect_small("{% filter upper %}{{ a }}{{ a }}{{ a }}{{ a }}{% endfilter %}");
    expect_small(
        "{% for i in list if loop is undefined and i in list %}{{ loop.length }}{% endfor %}"
    );
    expect_small("{% for i in list %}{{ loop.changed(list, a) }}{% endfor %}");
}

// Renders models' templates, with input that users may well send.
TEST(Budget, LongChatsRenderWithinTheDefaults) {
    std::string many;
    for (int i = 0; i < 4000; ++i) {
        many += fmt::format(
            "{}{{\"role\": \"{}\", \"content\": \"message {}\"}}",
            i == 0 ? "" : ",",
            i % 2 == 0 ? "user" : "assistant",
            i
        );
    }
    const std::string longest(std::size_t{15} << 20, 'x');
    const std::string one = fmt::format("{{\"role\": \"user\", \"content\": \"{}\"}}", longest);
    for (const auto& entry :
         std::filesystem::directory_iterator(source_dir() + "/tests/data/jinja/templates")) {
        SCOPED_TRACE(entry.path().filename().string());
        std::ifstream file(entry.path());
        std::ostringstream source;
        source << file.rdbuf();
        const Result<Template> parsed = Template::parse(source.str());
        ASSERT_TRUE(parsed) << parsed.error().message;
        for (const std::string& messages : {many, one}) {
            const Result<Value> values = parse_json(fmt::format(
                "{{\"messages\": [{}], \"add_generation_prompt\": true, \"bos_token\": \"\", "
                "\"eos_token\": \"\"}}",
                messages
            ));
            ASSERT_TRUE(values);
            const Result<std::string> text = parsed->render(*values->as_mapping(), std::tm{});
            EXPECT_TRUE(text) << text.error().message;
        }
    }
}

// Each result would be a gigabyte, if built.
TEST(Budget, ARenderingIsRefusedBeforeItsMemoryIsTaken) {
    for (const char* source :
         {"{{ 'a'.center(999999999) }}",
          "{{ 'a' * 999999999 }}",
          "{{ 'a'.center(4611686018427387905, '\xf0\x9f\x98\x80') }}"}) {
        SCOPED_TRACE(source);
        const Result<Template> parsed = Template::parse(source);
        ASSERT_TRUE(parsed);
        const std::int64_t live = live_bytes;
        peak_bytes = live;
        const Result<std::string> text = parsed->render(variables(), std::tm{});
        EXPECT_LE(peak_bytes - live, 1 << 20);
        ASSERT_FALSE(text);
        EXPECT_EQ(text.error().code, ErrorCode::kTooLarge);
    }
}

TEST(Budget, AnInterruptEndsARenderingSoon) {
    int num_asked = 0;
    const Limits limits{.steps_max = INT64_MAX, .interrupt = [&]() -> std::optional<Error> {
                            if (++num_asked < 3) return std::nullopt;
                            return Error{ErrorCode::kAborted, "nobody waits for it"};
                        }};
    const Result<Template> parsed = Template::parse(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    );
    const Result<std::string> text = parsed->render(variables(), std::tm{}, limits);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, ErrorCode::kAborted);
    EXPECT_EQ(num_asked, 3);
}

}  // namespace
}  // namespace pitstop::jinja
