// Serves /model_info and the route's older name: the served model, in SGLang's terms.
#include "http_proc/format/versions.h"
#include "http_proc/server/errors.h"
#include "http_proc/sglang/routes.h"

#include <nlohmann/json.hpp>

namespace pitstop::http {
namespace {

Task<Response> model_info(Exchange& exchange) {
    const Result<messages::StatusReply> status = co_await exchange.tree().call(messages::Status{});
    if (!status) co_return error_response(Dialect::kSglang, status.error());
    const messages::HelloReply& hello = exchange.tree().hello();
    // As in SGLang, the path is the directory of the latest update from a directory, if any.
    const std::string& path =
        status->weights_path.empty() ? hello.model_path : status->weights_path;
    co_return Response::json(
        200,
        {{"model_path", path},
         {"tokenizer_path", hello.model_path},
         {"is_generation", true},
         {"preferred_sampling_params", nullptr},
         {"weight_version",
          version_name(status->replicas.front().epoch, status->replicas.front().label)},
         {"has_image_understanding", false},
         {"has_audio_understanding", false},
         {"model_type", hello.model_type},
         {"served_model_name", hello.model},
         {"max_model_len", hello.context_len},
         {"vocab_size", hello.vocab_size},
         {"weight_epoch", raw(status->replicas.front().epoch)},
         {"weight_digest", status->replicas.front().digest}}
    );
}

}  // namespace

void add_sglang_info(Router& router) {
    router.add(
        Dialect::kSglang,
        Access::kData,
        {{"GET", "/model_info", model_info}, {"GET", "/get_model_info", model_info}}
    );
}

}  // namespace pitstop::http
