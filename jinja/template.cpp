#include "jinja/template.h"

#include "jinja/ast.h"
#include "jinja/parser.h"
#include "jinja/renderer.h"

#include <utility>

namespace pitstop::jinja {

struct Template::Tree {
    Body body{};
};

Template::Template(std::unique_ptr<const Tree> tree) : tree_(std::move(tree)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::parse(std::string_view source) {
    ASSIGN_OR_RETURN(Body body, jinja::parse(source));
    return Template(std::make_unique<const Tree>(Tree{std::move(body)}));
}

Result<std::string> Template::render(
    const Mapping& variables, const std::tm& now, const Limits& limits
) const {
    Budget budget(limits);
    return Renderer(variables, now, budget).render(tree_->body);
}

}  // namespace pitstop::jinja
