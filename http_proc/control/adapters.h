// Loads and unloads adapters, for the routes of both dialects.
//
// Thread: the server's loop.
#pragma once

#include "base/result.h"
#include "http_proc/format/json_body.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"
#include "messages/adapters.h"
#include "messages/weights.h"

#include <optional>
#include <string>

namespace pitstop::http::control {

// Reads an adapter's name. Errors: also a name that stands for the model, or begins with the
// model's and a colon.
[[nodiscard]] Result<std::string> read_adapter_name(Exchange& exchange, FieldReader& fields);

// Reads pitstop's own `adapter_policy`; absent: finish.
[[nodiscard]] messages::AdapterPolicy read_adapter_policy(FieldReader& fields);

// Loads the adapter that `spec` names; replaces a loaded one of that name.
[[nodiscard]] Task<Result<messages::UpdateReply>> load_adapter(
    Exchange& exchange, messages::UpdateSpec spec
);
[[nodiscard]] Task<Result<messages::AdapterReply>> unload_adapter(
    Exchange& exchange, std::string name
);
// Returns the adapters that every replica has, by name.
[[nodiscard]] Task<Result<std::vector<messages::AdapterStatus>>> adapters(Exchange& exchange);
[[nodiscard]] Task<Result<bool>> is_loaded(Exchange& exchange, std::string name);

}  // namespace pitstop::http::control
