// The reader of one body of calls, chosen by the grammar of the format.
#pragma once

#include "http_proc/format/call_body.h"
#include "http_proc/format/json_call_readers.h"
#include "http_proc/format/python_call_reader.h"
#include "http_proc/format/tagged_call_reader.h"
#include "http_proc/format/tool_formats.h"
#include "http_proc/format/tool_schemas.h"

#include <memory>
#include <variant>

namespace pitstop::http {

class CallReader {
  public:
    // `by_short_open`: the format's short marker began the body. `schemas` may be null.
    CallReader(
        const ToolFormatRow& row, std::shared_ptr<const ToolSchemas> schemas, bool by_short_open
    );

    [[nodiscard]] CallStep read(char c, CallBody& body);
    // Returns whether the body, with its open call if any, may end where the output ends.
    [[nodiscard]] bool is_whole(const CallBody& body) const;
    // Called at the output's end. Returns true if a value of the body may have ended earlier; then
    // the body's unread bytes are read again.
    [[nodiscard]] bool ends_earlier(CallBody& body);

  private:
    std::variant<
        ObjectCallReader,
        ObjectsCallReader,
        MistralCallReader,
        NamedJsonCallReader,
        TaggedCallReader,
        PythonCallReader>
        reader_;
};

}  // namespace pitstop::http
