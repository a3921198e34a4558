// pitstop_render_template renders each line of standard input, a JSON object with `source` and
// `variables`, and answers it with a line: {"text": ...} or {"error": ...}. Used by
// tests/golden/make_templates.py --compare.
#include "jinja/json.h"
#include "jinja/template.h"
#include "tests/jinja/reference_time.h"

#include <iostream>
#include <string>

namespace pitstop::jinja {
namespace {

Result<std::string> render_line(const std::string& line) {
    ASSIGN_OR_RETURN(const Value request, parse_json(line));
    const Mapping* fields = request.as_mapping();
    const Value* source = fields == nullptr ? nullptr : fields->find(std::string_view("source"));
    const Value* variables =
        fields == nullptr ? nullptr : fields->find(std::string_view("variables"));
    if (source == nullptr || source->as_text() == nullptr || variables == nullptr ||
        variables->as_mapping() == nullptr) {
        return make_error(ErrorCode::kInvalidArgument, "a line has a source and variables");
    }
    ASSIGN_OR_RETURN(const Template parsed, Template::parse(source->as_text()->bytes));
    return parsed.render(*variables->as_mapping(), reference_time());
}

int run() {
    for (std::string line; std::getline(std::cin, line);) {
        const Result<std::string> text = render_line(line);
        Mapping answer;
        answer.insert(text ? "text" : "error", Value::text(text ? *text : text.error().message));
        Budget budget{Limits{}};
        const Result<std::string> json = to_json(Value::mapping(std::move(answer)), {}, budget);
        std::cout << (json ? *json : "{}") << '\n';
    }
    return 0;
}

}  // namespace
}  // namespace pitstop::jinja

int main() { return pitstop::jinja::run(); }
