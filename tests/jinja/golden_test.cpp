// Renders every case of tests/data/jinja, which the Python reference rendered (tests/golden/
// make_templates.py): the same text, or an error where it has one.
#include "jinja/json.h"
#include "jinja/template.h"
#include "tests/jinja/reference_time.h"
#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace pitstop::jinja {
namespace {

const std::string* text_field(const Mapping& line, std::string_view name) {
    const Value* value = line.find(name);
    return value == nullptr || value->as_text() == nullptr ? nullptr : &value->as_text()->bytes;
}

void check_case(const Mapping& line, const std::string& source, const Mapping& variables) {
    SCOPED_TRACE(*text_field(line, "name") + "\n" + source);
    const std::string* text = text_field(line, "text");
    const Result<Template> parsed = Template::parse(source);
    if (!parsed) {
        EXPECT_EQ(text, nullptr) << parsed.error().message;
        return;
    }
    const Result<std::string> rendered = parsed->render(variables, reference_time());
    if (text != nullptr) {
        ASSERT_TRUE(rendered) << rendered.error().message << "\nwanted: " << *text;
        EXPECT_EQ(*rendered, *text);
        return;
    }
    ASSERT_FALSE(rendered) << "rendered: " << *rendered
                           << "\nwanted the error: " << *text_field(line, "error");
    if (line.find(std::string_view("raised"))->is_true()) {
        EXPECT_EQ(rendered.error().message, *text_field(line, "error"));
    }
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, RendersAsThePythonReference) {
    const std::filesystem::path folder = source_dir() + "/tests/data/jinja";
    std::ifstream file(folder / (GetParam() + ".jsonl"));
    ASSERT_TRUE(file);
    int num_cases = 0;
    std::string source;  // the template; without one, the previous case's
    Value variables;
    for (std::string json; std::getline(file, json); ++num_cases) {
        const Result<Value> line = parse_json(json);
        ASSERT_TRUE(line) << line.error().message;
        const Mapping& fields = *line->as_mapping();
        if (const std::string* said = text_field(fields, "source")) source = *said;
        if (const Value* said = fields.find(std::string_view("variables"))) variables = *said;
        check_case(fields, source, *variables.as_mapping());
        if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(num_cases, 20);
}

std::vector<std::string> golden_files() {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(source_dir() + "/tests/data/jinja")) {
        if (entry.path().extension() == ".jsonl") names.push_back(entry.path().stem().string());
    }
    std::ranges::sort(names);
    return names;
}

std::string name_of_param(const testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::ranges::replace_if(
        name, [](char c) { return c == '.' || c == '-'; }, '_'
    );
    return name;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), name_of_param);

}  // namespace
}  // namespace pitstop::jinja
