#include "text/tokenizer_sax.h"

#include "base/json_reader.h"

#include <optional>
#include <utility>

namespace pitstop::text {
namespace {

using nlohmann::json;
using enum ErrorCode;

constexpr std::size_t kDepthMax = 64;
// Enough for a few thousand added tokens and for the components. A vocabulary of another kind of
// model counts too (a list of 250,000 pairs), so that such a model can be refused by its name.
constexpr std::size_t kRestValuesMax = 2'000'000;

class ListsReader final : public JsonReader {
  public:
    ListsReader() : JsonReader("", {.depth_max = kDepthMax}) {}

    [[nodiscard]] TokenizerLists take() {
        lists_.rest = rest_.take();
        return std::move(lists_);
    }

  private:
    enum class List { kNone, kVocab, kMerges };

    std::optional<Error> on_key(std::string& name) override {
        key_ = std::move(name);
        return std::nullopt;
    }

    std::optional<Error> on_scalar(const Scalar& scalar) override {
        if (list_ == List::kVocab) return add_token(scalar.other);
        if (list_ == List::kMerges)
            return scalar.text != nullptr ? add_merge_text(*scalar.text) : wrong_type();
        rest_.set_key(key_);
        return rest_.add(scalar.text != nullptr ? json(std::move(*scalar.text)) : scalar.other);
    }

    std::optional<Error> on_object() override {
        if (list_ != List::kNone) return wrong_type();
        if (is_in_model() && key_ == "vocab") {
            list_ = List::kVocab;
            return begin_list("vocab", lists_.has_vocab);
        }
        return open(json::object());
    }

    std::optional<Error> on_array() override {
        if (list_ == List::kMerges && !in_pair_) {
            in_pair_ = true;
            sides_in_pair_ = 0;
            return std::nullopt;
        }
        if (list_ != List::kNone) return wrong_type();
        if (is_in_model() && key_ == "merges") {
            list_ = List::kMerges;
            return begin_list("merges", lists_.has_merges);
        }
        return open(json::array());
    }

    std::optional<Error> on_end() override {
        if (std::exchange(in_pair_, false))
            return sides_in_pair_ == 2 ? std::nullopt : std::optional(wrong_type());
        if (std::exchange(list_, List::kNone) == List::kNone) rest_.close();
        return std::nullopt;
    }

    [[nodiscard]] bool is_in_model() const { return depth() == 2 && is_model_; }
    static std::optional<Error> begin_list(std::string_view name, bool& has) {
        if (!std::exchange(has, true)) return std::nullopt;
        return make_error(kMalformed, "model.{} appears twice", name);
    }
    std::optional<Error> open(json&& value) {
        if (depth() == 1) is_model_ = key_ == "model" && value.is_object();
        rest_.set_key(key_);
        return rest_.open(std::move(value));
    }

    [[nodiscard]] Error wrong_type() const {
        if (list_ == List::kVocab) {
            return make_error(
                kMalformed, "model.vocab: the id of token '{}' is not a whole number from 0", key_
            );
        }
        return make_error(
            kMalformed,
            "model.merges: merge {} is neither \"a b\" nor [\"a\", \"b\"]",
            lists_.merges.size()
        );
    }

    std::optional<Error> add_token(const json& id) {
        if (!id.is_number_unsigned()) return wrong_type();
        const auto number = id.get<std::uint64_t>();
        if (number >= static_cast<std::uint64_t>(Vocab::kTokensMax)) {
            return make_error(
                kTooLarge,
                "model.vocab: token '{}' has id {}; ids are 0 to {}",
                key_,
                number,
                Vocab::kTokensMax - 1
            );
        }
        Result<> added = lists_.vocab.insert(key_, TokenId{static_cast<std::int32_t>(number)});
        return added ? std::nullopt : std::optional(std::move(added).error());
    }

    std::optional<Error> add_merge_text(std::string_view text) {
        if (in_pair_) {
            if (sides_in_pair_ == 0) return add_merge(text, {});
            if (sides_in_pair_ > 1) return wrong_type();
            lists_.merge_text += text;
            lists_.merges.back().right_len = static_cast<std::uint32_t>(text.size());
            ++sides_in_pair_;
            return std::nullopt;
        }
        if (text.starts_with("#version")) return std::nullopt;  // the first line of a merges.txt
        const std::size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) return wrong_type();
        return add_merge(text.substr(0, space), text.substr(space + 1));
    }
    std::optional<Error> add_merge(std::string_view left, std::string_view right) {
        if (lists_.merges.size() == TokenizerLists::kMergesMax) {
            return make_error(kTooLarge, "model.merges: more than {}", TokenizerLists::kMergesMax);
        }
        lists_.merges.push_back({
            .begin = lists_.merge_text.size(),
            .left_len = static_cast<std::uint32_t>(left.size()),
            .right_len = static_cast<std::uint32_t>(right.size()),
        });
        lists_.merge_text += left;
        lists_.merge_text += right;
        ++sides_in_pair_;
        return std::nullopt;
    }

    TokenizerLists lists_{};
    JsonTree rest_{"", kRestValuesMax};
    std::string key_{};
    bool is_model_ = false;  // the reader is inside the object at depth 2
    List list_ = List::kNone;
    bool in_pair_ = false;
    int sides_in_pair_ = 0;
};

}  // namespace

std::vector<Bpe::Merge> TokenizerLists::merge_views() const {
    std::vector<Bpe::Merge> views;
    views.reserve(merges.size());
    const std::string_view text = merge_text;
    for (const Sides& sides : merges) {
        views.emplace_back(
            text.substr(sides.begin, sides.left_len),
            text.substr(sides.begin + sides.left_len, sides.right_len)
        );
    }
    return views;
}

Result<TokenizerLists> read_tokenizer_lists(std::string_view text) {
    ListsReader reader;
    RETURN_IF_ERROR(reader.read(text));
    return reader.take();
}

}  // namespace pitstop::text
