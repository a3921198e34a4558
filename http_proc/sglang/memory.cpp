// Serves SGLang's release and resume of memory. A 200 has the body null, which clients parse.
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/sglang/answers.h"
#include "http_proc/sglang/routes.h"

#include <nlohmann/json.hpp>

#include <optional>

namespace pitstop::http {
namespace {

struct MemoryFields {
    // Absent: the call names no tag, which means all tags. Empty: the call names only tags that
    // have no meaning here.
    std::optional<std::vector<messages::MemoryTag>> tags{};
    bool keep_weights = false;
};

Result<MemoryFields> read_fields(const Request& request) {
    FieldReader fields(control_fields(request));
    MemoryFields read;
    std::vector<std::string> names;
    fields.read("tags", names);
    fields.read("keep_weights", read.keep_weights);
    if (fields.error()) return *fields.error();
    ASSIGN_OR_RETURN(std::vector<messages::MemoryTag> tags, control::tags_named(names, {}));
    if (!names.empty()) read.tags = std::move(tags);
    return read;
}

Task<Response> release_memory_occupation(Exchange& exchange) {
    Result<MemoryFields> fields = read_fields(exchange.request());
    if (!fields) co_return sglang_failure(fields.error());
    if (fields->tags && fields->tags->empty()) co_return Response::json(200, nullptr);
    const Result<messages::MemoryReply> reply = co_await control::release(
        exchange, fields->tags.value_or(std::vector<messages::MemoryTag>{}), fields->keep_weights
    );
    if (!reply) co_return sglang_failure(reply.error());
    co_return Response::json(200, nullptr);
}

Task<Response> resume_memory_occupation(Exchange& exchange) {
    Result<MemoryFields> fields = read_fields(exchange.request());
    if (!fields) co_return sglang_failure(fields.error());
    if (fields->tags && fields->tags->empty()) co_return Response::json(200, nullptr);
    const Result<messages::MemoryReply> reply = co_await control::resume(
        exchange, fields->tags.value_or(std::vector<messages::MemoryTag>{})
    );
    if (!reply) co_return sglang_failure(reply.error());
    nlohmann::ordered_json answer;  // null, as in SGLang
    control::add_update(answer, reply->update);
    co_return Response::json(200, answer);
}

}  // namespace

void add_sglang_memory(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kAdmin,
        {{"GET, POST", "/release_memory_occupation", release_memory_occupation},
         {"GET, POST", "/resume_memory_occupation", resume_memory_occupation}}
    );
}

}  // namespace pitstop::http
