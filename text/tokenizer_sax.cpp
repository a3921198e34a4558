#include "text/tokenizer_sax.h"

#include <optional>
#include <utility>

namespace pitstop {
namespace {

using nlohmann::json;
using enum ErrorCode;

constexpr std::size_t kDepthMax = 64;

class Handler : public nlohmann::json_sax<json> {
  public:
    TokenizerLists lists{};
    std::optional<Error> error{};

    bool null() override { return value(nullptr); }
    bool boolean(bool val) override { return value(val); }
    bool number_integer(number_integer_t val) override { return value(val); }
    bool number_float(number_float_t val, const string_t&) override { return value(val); }
    bool binary(binary_t&) override { return fail(kMalformed, "binary data"); }

    bool number_unsigned(number_unsigned_t val) override {
        if (list_ != List::kVocab) return value(val);
        if (val >= static_cast<number_unsigned_t>(Vocab::kTokensMax)) {
            return fail(
                kTooLarge,
                "model.vocab: token '{}' has id {}; ids are 0 to {}",
                key_,
                val,
                Vocab::kTokensMax - 1
            );
        }
        return keep(lists.vocab.insert(key_, TokenId{static_cast<std::int32_t>(val)}));
    }

    bool string(string_t& val) override {
        if (list_ == List::kMerges) return add_merge_text(val);
        return value(std::move(val));
    }

    bool key(string_t& val) override {
        key_ = std::move(val);
        return true;
    }

    bool start_object(std::size_t) override {
        if (list_ != List::kNone) return wrong_type();
        if (is_in_model() && key_ == "vocab") {
            if (std::exchange(lists.has_vocab, true))
                return fail(kMalformed, "model.vocab is there twice");
            list_ = List::kVocab;
            return true;
        }
        return open(json::object());
    }
    bool end_object() override {
        if (list_ == List::kVocab) {
            list_ = List::kNone;
            return true;
        }
        open_.pop_back();
        return true;
    }

    bool start_array(std::size_t) override {
        if (list_ == List::kMerges && !in_pair_) {
            in_pair_ = true;
            sides_in_pair_ = 0;
            return true;
        }
        if (list_ != List::kNone) return wrong_type();
        if (is_in_model() && key_ == "merges") {
            if (std::exchange(lists.has_merges, true))
                return fail(kMalformed, "model.merges is there twice");
            list_ = List::kMerges;
            return true;
        }
        return open(json::array());
    }
    bool end_array() override {
        if (in_pair_) {
            in_pair_ = false;
            return sides_in_pair_ == 2 || wrong_type();
        }
        if (list_ == List::kMerges) {
            list_ = List::kNone;
            return true;
        }
        open_.pop_back();
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const json::exception& problem)
        override {
        // A string that is over what the parser allocates, say, is no fault of the syntax.
        return fail(kMalformed, "not valid JSON near byte {}: {}", position, problem.what());
    }

  private:
    enum class List { kNone, kVocab, kMerges };

    template <class... Args>
    bool fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
        error = make_error(code, format, std::forward<Args>(args)...);
        return false;
    }
    bool keep(Result<> result) {
        if (result) return true;
        error = std::move(result).error();
        return false;
    }
    bool wrong_type() {
        if (list_ == List::kVocab) {
            return fail(
                kMalformed, "model.vocab: the id of token '{}' is not a whole number from 0", key_
            );
        }
        return fail(
            kMalformed,
            "model.merges: merge {} is neither \"a b\" nor [\"a\", \"b\"]",
            lists.merges.size()
        );
    }

    [[nodiscard]] bool is_in_model() const {
        return open_.size() == 2 && open_[1] == model_ && model_ != nullptr;
    }

    // Puts a value where the tree is open.
    json* place(json&& val) {
        if (open_.empty()) {
            lists.rest = std::move(val);
            return &lists.rest;
        }
        if (open_.back()->is_array()) {
            open_.back()->push_back(std::move(val));
            return &open_.back()->back();
        }
        json& slot = (*open_.back())[key_];
        slot = std::move(val);
        return &slot;
    }
    bool value(json&& val) {
        if (list_ != List::kNone) return wrong_type();
        place(std::move(val));
        return true;
    }
    bool open(json&& val) {
        if (open_.size() == kDepthMax) return fail(kMalformed, "nested deeper than {}", kDepthMax);
        const bool is_model = open_.size() == 1 && key_ == "model" && open_[0]->is_object();
        open_.push_back(place(std::move(val)));
        if (is_model) model_ = open_.back();
        return true;
    }

    bool add_merge_text(std::string_view text) {
        if (in_pair_) {
            if (sides_in_pair_ == 0) return add_merge(text, {});
            if (sides_in_pair_ > 1) return wrong_type();
            lists.merge_text += text;
            lists.merges.back().right_len = static_cast<std::uint32_t>(text.size());
            ++sides_in_pair_;
            return true;
        }
        if (text.starts_with("#version")) return true;  // a line of merges.txt
        const std::size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) return wrong_type();
        return add_merge(text.substr(0, space), text.substr(space + 1));
    }
    bool add_merge(std::string_view left, std::string_view right) {
        if (lists.merges.size() == TokenizerLists::kMergesMax) {
            return fail(kTooLarge, "model.merges: more than {}", TokenizerLists::kMergesMax);
        }
        lists.merges.push_back({
            .begin = lists.merge_text.size(),
            .left_len = static_cast<std::uint32_t>(left.size()),
            .right_len = static_cast<std::uint32_t>(right.size()),
        });
        lists.merge_text += left;
        lists.merge_text += right;
        ++sides_in_pair_;
        return true;
    }

    std::vector<json*> open_{};  // the objects and arrays around the value that comes next
    json* model_ = nullptr;
    std::string key_{};
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
    Handler handler;
    if (!json::sax_parse(text.begin(), text.end(), &handler)) {
        if (handler.error) return *std::move(handler.error);
        return make_error(kMalformed, "not valid JSON");
    }
    return std::move(handler.lists);
}

}  // namespace pitstop
