// Serves vLLM's sleep and wake: a pause, and releases and resumes of memory by tags.
//
//   level 0   only the pause
//   level 1   weights and KV are released; host memory keeps the weights
//   level 2   both are released, and the weights are lost: a complete update must follow
#include "http_proc/control/control.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/pause.h"
#include "http_proc/vllm/routes.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace pitstop::http {
namespace {

constexpr std::string_view kScheduling = "scheduling";  // vLLM's tag for what level 0 pauses

bool is_in(
    const messages::StatusReply& status, messages::MemoryTag tag, messages::MemoryState state
) {
    return std::ranges::any_of(status.replicas, [&](const messages::ReplicaStatus& replica) {
        return std::ranges::any_of(replica.memory, [&](const messages::TagMemory& memory) {
            return memory.tag == tag && memory.state == state;
        });
    });
}

// Returns the tags that are in `state` on at least one replica. Empty `tags` means all tags.
std::vector<messages::MemoryTag> tags_in(
    const messages::StatusReply& status,
    const std::vector<messages::MemoryTag>& tags,
    messages::MemoryState state
) {
    std::vector<messages::MemoryTag> found;
    for (const messages::MemoryTag tag : messages::kAllMemoryTags) {
        const bool is_meant = tags.empty() || std::ranges::find(tags, tag) != tags.end();
        if (is_meant && is_in(status, tag, state)) found.push_back(tag);
    }
    return found;
}

Task<Response> sleep(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    std::int64_t level = 1;
    std::string name = "abort";
    std::vector<std::string> names;
    fields.read("level", level);
    fields.read("mode", name);
    fields.read("tags", names);
    if (level < 0 || level > 2) fields.fail("level", "0, 1 or 2");
    if (fields.error()) co_return vllm_failure(*fields.error());
    const Result<messages::PauseMode> mode = vllm_pause_mode(name, /*clears_cache=*/level >= 1);
    if (!mode) co_return vllm_failure(mode.error());
    const Result<std::vector<messages::MemoryTag>> tags = control::tags_named(names, kScheduling);
    if (!tags) co_return vllm_failure(tags.error());
    const Result<> paused = co_await vllm_pause(exchange, *mode, /*clears_cache=*/level >= 1);
    if (!paused) co_return vllm_failure(paused.error());
    if (level == 0) co_return Response::empty(200);
    const Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return vllm_failure(status.error());
    // Tags that are already released stay released, so that a sleep may be repeated.
    std::vector<messages::MemoryTag> awake =
        tags_in(*status, *tags, messages::MemoryState::kResident);
    if (awake.empty() || (tags->empty() && !names.empty())) co_return Response::empty(200);
    const Result<messages::MemoryReply> released =
        co_await control::release(exchange, std::move(awake), /*keep_weights=*/level == 1);
    if (!released) co_return vllm_failure(released.error());
    co_return Response::empty(200);
}

Task<Response> wake_up(Exchange& exchange) {
    FieldReader fields(control_fields(exchange.request()));
    std::vector<std::string> names;
    bool keeps_pause = false;
    // vLLM reads only the query. Trainers send bodies with unknown tags, so unknown tags in a body
    // mean all tags.
    const nlohmann::json* tags_given = fields.find("tags");
    if (tags_given != nullptr && (tags_given->is_string() || tags_given->is_array()))
        fields.read("tags", names);
    fields.read("keep_pause", keeps_pause);
    if (fields.error()) co_return vllm_failure(*fields.error());
    const Result<std::vector<messages::MemoryTag>> tags = control::tags_named(names, kScheduling);
    if (!tags) co_return vllm_failure(tags.error());
    Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return vllm_failure(status.error());
    nlohmann::ordered_json answer = nlohmann::ordered_json::object();
    if (names.empty() || !tags->empty()) {
        // A tag that is already resident must not prevent the resume of other tags.
        std::vector<messages::MemoryTag> asleep =
            tags_in(*status, *tags, messages::MemoryState::kReleased);
        if (!asleep.empty()) {
            const Result<messages::MemoryReply> woken =
                co_await control::resume(exchange, std::move(asleep));
            if (!woken) co_return vllm_failure(woken.error());
            control::add_update(answer, woken->update);
            status = co_await control::status(exchange);
            if (!status) co_return vllm_failure(status.error());
        }
    }
    // A partial wake never continues generation. A full wake does, unless an explicit pause is in
    // effect.
    if (!control::is_released(*status) && !keeps_pause) {
        const Result<messages::ContinueReply> went_on = co_await control::go_on(exchange);
        if (!went_on) co_return vllm_failure(went_on.error());
        control::add_update(answer, went_on->update);
    }
    // Like vLLM's, the answer is empty, unless the call made an update take effect.
    if (answer.empty()) co_return Response::empty(200);
    co_return Response::json(200, answer);
}

// As in vLLM, also answers true for an engine that is only paused.
Task<Response> is_sleeping(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await control::status(exchange);
    if (!status) co_return vllm_failure(status.error());
    const bool is_asleep = control::is_released(*status);
    co_return Response::json(
        200,
        {{"is_sleeping", is_asleep || control::is_paused(*status)},
         {"is_memory_released", is_asleep}}
    );
}

}  // namespace

void add_vllm_sleep(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kAdmin,
        {{.methods = "POST", .path = "/sleep", .handler = sleep, .media = ""},
         {.methods = "POST", .path = "/wake_up", .handler = wake_up, .media = ""}}
    );
    router.add(Dialect::kVllm, Access::kData, {{"GET", "/is_sleeping", is_sleeping}});
}

}  // namespace pitstop::http
