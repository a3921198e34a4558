// Renders chats by a model's chat template, like transformers' apply_chat_template. First prepares
// messages as other engines do: null content becomes empty text, parts of text are joined if the
// template expects text, and arguments of tool calls become objects.
//
// Thread: any; immutable.
#pragma once

#include "base/interrupt.h"
#include "base/result.h"
#include "jinja/template.h"
#include "jinja/value.h"

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::tokenizer {

struct Chat {
    std::string variables{};              // JSON: `messages`, `tools`, `add_generation_prompt`, ...
    bool continue_final_message = false;  // the prompt ends inside the last message
    std::string chat_template{};          // used instead of the model's template; empty: not given
};

class ChatTemplate {
  public:
    static constexpr std::size_t kFileBytesMax = std::size_t{4} << 20;
    // The limits of a template in a request. A model's own template, of about 10 KiB, has the
    // defaults of jinja::Limits.
    static constexpr std::size_t kForeignBytesMax = std::size_t{256} << 10;
    static constexpr std::int64_t kForeignStepsMax = 500'000;
    static constexpr std::size_t kForeignBuiltBytesMax = std::size_t{64} << 20;

    // Reads the special tokens and the template from a model's directory: chat_template.jinja, or
    // chat_template in tokenizer_config.json. The latter is one template, or several by name:
    // "tool_use" for chats with tools, otherwise "default". A model with no template or an
    // unsupported one is still served: only rendering fails, with problem().
    static std::shared_ptr<const ChatTemplate> load(const std::string& model_dir);

    // `now`: local time, for templates that print the date. Errors: kInvalidArgument (not a chat,
    // or an error raised by the template), kUnsupported (no template), kTooLarge; the interrupt's.
    [[nodiscard]] Result<std::string> render(
        const Chat& chat, const std::tm& now, const Interrupt& interrupt = {}
    ) const;

    // Returns why there is no template, or nothing.
    [[nodiscard]] const std::optional<Error>& problem() const { return problem_; }

  private:
    struct Source {
        jinja::Template parsed;
        // True if the template iterates over the parts of a content. Otherwise contents are passed
        // as text.
        bool takes_parts = false;
    };
    static Result<Source> parse(std::string_view text);
    Result<> read_config(const std::string& text);
    Result<> read_template(const std::string& name, std::string_view text);

    [[nodiscard]] Result<std::string> render_with(
        const Source& source,
        const jinja::Mapping& variables,
        const Chat& chat,
        const std::tm& now,
        const jinja::Limits& limits
    ) const;

    std::optional<Source> default_{};
    std::optional<Source> tool_use_{};
    jinja::Mapping special_tokens_{};  // bos_token, eos_token, ...
    std::optional<Error> problem_{};
};

}  // namespace pitstop::tokenizer
