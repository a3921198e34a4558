#include "tokenizer_proc/end_token.h"

#include "base/mapped_file.h"
#include "base/utf8.h"
#include "jinja/json.h"

#include <sys/stat.h>

namespace pitstop::tokenizer {

Result<std::optional<TokenId>> read_end_token(
    const std::string& model_dir, const text::Tokenizer& tokenizer
) {
    const std::string path = model_dir + "/tokenizer_config.json";
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return std::optional<TokenId>{};
    ASSIGN_OR_RETURN(const std::string text, MappedFile::read(path, kTokenizerConfigBytesMax));
    Result<jinja::Value> config = jinja::parse_json(text);
    if (!config || config->as_mapping() == nullptr) {
        return make_error(
            ErrorCode::kMalformed,
            "'{}': {}",
            path,
            config ? "it is not an object" : config.error().message
        );
    }
    const jinja::Value* token = config->as_mapping()->find(std::string_view("eos_token"));
    if (token != nullptr && token->as_mapping() != nullptr)  // the long form of an added token
        token = token->as_mapping()->find(std::string_view("content"));
    if (token == nullptr || token->is_none()) return std::optional<TokenId>{};
    if (token->as_text() == nullptr)
        return make_error(ErrorCode::kMalformed, "'{}': eos_token is not a string", path);
    constexpr std::size_t kShownMax = 64;
    const std::string& name = token->as_text()->bytes;
    const std::optional<TokenId> id = tokenizer.token_to_id(name);
    if (!id) {
        return make_error(
            ErrorCode::kMalformed,
            "'{}': eos_token '{}' is not a token of tokenizer.json",
            path,
            utf8_prefix(name, kShownMax)
        );
    }
    return id;
}

}  // namespace pitstop::tokenizer
