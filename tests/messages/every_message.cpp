#include "tests/messages/every_message.h"

#include "messages/all_messages.h"
#include "messages/door_envelope.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

namespace pitstop::messages {
namespace {

// Fills every field with another value than its default; then corrects those that `invalid`
// refuses.
class Filler {
  public:
    explicit Filler(std::uint64_t seed) : random_(seed) {}

    template <class Message>
    Message message() {
        Message message;
        fill(message);
        make_valid(message);
        return message;
    }

  private:
    std::int64_t draw(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }
    void fill(bool& value) { value = !value; }
    void fill(std::uint8_t& value) { value = static_cast<std::uint8_t>(draw(1, 255)); }
    void fill(std::int32_t& value) { value = static_cast<std::int32_t>(draw(1, 1 << 30)); }
    void fill(std::int64_t& value) { value = draw(1, std::int64_t{1} << 60); }
    void fill(std::uint64_t& value) { value = random_() | 1; }
    void fill(float& value) { value = static_cast<float>(draw(1, 1 << 20)) / 64.f; }
    void fill(double& value) { value = static_cast<double>(draw(1, 1 << 20)) / 3.0; }
    void fill(std::string& value) { value = "Straße " + std::to_string(draw(1, 1'000'000)); }
    template <class E>
    requires std::is_enum_v<E>
    void fill(E& value) {
        if constexpr (NamedEnum<E>) {
            const auto last = static_cast<std::int64_t>(EnumNames<E>::kNames.size()) - 1;
            value = static_cast<E>(draw(last > 0 ? 1 : 0, last));
        } else {
            std::underlying_type_t<E> number{};
            fill(number);
            value = static_cast<E>(number);
        }
    }
    template <class T>
    void fill(std::optional<T>& value) {
        fill(value.emplace());
    }
    template <class T>
    void fill(std::vector<T>& values) {
        values.resize(static_cast<std::size_t>(draw(1, 4)));
        for (T& value : values) fill(value);
    }
    template <class K, class V>
    void fill(std::map<K, V>& values) {
        for (int i = 0; i < 3; ++i) {
            K key{};
            fill(key);
            fill(values[key]);
        }
    }
    template <class T>
    void fill(RawArray<T>& array) {
        fill(array.values);
    }
    template <class T>
    void fill(RawPart<T>& array) {
        fill(array.values);
    }
    template <class T>
    requires requires(T& value) {
        value.fields([](auto&&...) {});
    }
    void fill(T& value) {
        value.fields([&](auto, auto& field, auto) { fill(field); });
    }

    template <class Message>
    void make_valid(Message&) {}
    void make_valid(SamplingParams& params) {
        for (std::string* grammar : {&params.regex, &params.ebnf, &params.structural_tag})
            grammar->clear();  // valid: at most one grammar, and then no ignore_eos
        params.ignore_eos = false;
        params.min_new_tokens = draw(1, 9);
        params.max_new_tokens = draw(9, 99);
        params.top_p = 0.5;
        params.min_p = 0.25;
        params.repetition_penalty = 1.5;
        params.frequency_penalty = -1.5;
        params.presence_penalty = 0.125;
        for (auto& [id, bias] : params.logit_bias) bias = 7.25;
    }
    void make_valid(LogprobOptions& options) { options.top = draw(1, 20); }
    void make_valid(Hello& message) { message.protocol = kDoorProtocolVersion; }
    void make_valid(SchedulerHello& message) {
        message.routes = {
            .layers = draw(1, 99), .per_token = draw(1, 9), .num_experts = draw(9, 999)};
        message.dense_layers = {message.routes->layers - 1};
    }
    void make_valid(BroughtRoutes& routes) {
        routes.shape = {.layers = draw(1, 9), .per_token = draw(1, 9), .num_experts = draw(9, 999)};
        routes.experts.values.resize(static_cast<std::size_t>(3 * routes.shape.row_bytes()), 7);
    }
    void make_valid(Turn& turn) {
        turn.opens = draw(0, 3) == 0;
        if (turn.opens)
            turn = {.conversation = turn.conversation, .opens = true};  // no other field
    }
    void make_valid(Generate& message) {
        message.input_ids.reset();
        message.kv_tolerance = KvTolerance::kMaxLag;
        message.text_output = true;
        message.client.resize(2);
        make_valid(*message.routed_experts);
        make_valid(*message.turn);
        make_valid(message.sampling);
        make_valid(message.logprobs);
    }
    void make_valid(Tokenize& message) {
        message.text.reset();
        message.client.resize(2);
    }
    void make_valid(RenderChat& message) { message.client.resize(2); }
    void make_valid(PushLayout& message) {
        message.shard_bytes = 1 << 20;
        for (ShardTensor& tensor : message.tensors) {
            tensor.shape = {draw(100, 200), draw(100, 200)};
            tensor.dtype = "F32";
            for (ShardPiece& piece : tensor.pieces) {
                piece.row_begin = draw(0, 50);
                piece.num_rows = draw(1, 50);
                piece.col_begin = draw(0, 50);
                piece.num_cols = draw(1, 50);
                piece.offset = draw(0, 1000);
                piece.row_stride = draw(400, 4000);
            }
        }
    }
    void make_valid(PushBucket& message) {
        message.allocations.resize(1);
        bool is_by_rows = false;
        for (PushTensor& tensor : message.tensors) {  // alternates between memory and an allocation
            is_by_rows = !is_by_rows;
            tensor.allocation.reset();
            tensor.row_begin = is_by_rows ? draw(1, 99) : 0;
            tensor.num_rows.reset();
            if (is_by_rows) tensor.num_rows = draw(1, 99);
            if (!is_by_rows) tensor.allocation = 0;
        }
    }
    void make_valid(PauseGeneration& message) { message.max_pause_s = 1.5; }
    void make_valid(Abort& message) { message.all = false; }
    void make_valid(Shutdown& message) { message.drain_s = 1.5; }
    void make_valid(ReleaseMemory& message) { message.tags = {MemoryTag::kKvCache}; }
    void make_valid(ResumeMemory& message) {
        message.tags = {MemoryTag::kKvCache, MemoryTag::kWeights};
    }
    void make_valid(WeightSource& source) {
        source.kind = SourceKind::kTensors;
        source.format = TensorFormat::kSparse;
        source.num_updates.resize(source.tensors.size());
        for (std::int64_t& num : source.num_updates) num = draw(1, 9);
    }
    void make_valid(BeginUpdate& message) {
        make_valid(message.update);
        message.update.mode = UpdateMode::kStaged;
        message.update.source.kind = SourceKind::kBuckets;
    }
    void make_valid(UpdateBucket& message) { make_valid(message.source); }
    void make_valid(CommitWeights& message) { message.digest = "0123456789abcdef0123456789abcdef"; }
    void make_valid(InitGroup& message) {
        message.spec.world_size = 9;
        message.spec.rank_offset = 2;
        message.spec.port = 29500;
        message.spec.store_version = 1;
        message.spec.unique_id.values.resize(128);
    }
    void make_valid(PushOpen& message) { message.protocol = 1; }
    void make_valid(UpdateSpec& spec) {
        const std::string digest = "0123456789abcdef0123456789abcdef";
        make_valid(spec.source);
        spec.base_digest = digest;
        spec.digest = digest;
        // Only an update of an adapter has these fields.
        spec.adapter = spec.adapter_config = spec.adapter_config_digest = "";
        spec.adapter_policy = AdapterPolicy::kFinish;
        spec.adapter_pinned = false;
        int i = 0;
        for (TensorInfo& tensor : spec.manifest) {
            tensor.name = "tensor." + std::to_string(i++);
            tensor.dtype = "BF16";
            tensor.digest = digest;
        }
    }
    void make_valid(UpdateWeights& message) { make_valid(message.update); }
    void make_valid(StageWeights& message) {
        make_valid(message.update);
        message.update.mode = UpdateMode::kStaged;
    }
    void make_valid(RollbackWeights& message) {
        if (draw(0, 1) == 1) {  // an adapter's
            message.kv_policy = KvPolicy::kKeep;
        } else {
            message.adapter = "";
            message.adapter_policy = AdapterPolicy::kFinish;
        }
    }
    void make_valid(RankJoin& message) {
        message.rank = Rank{3};
        message.tp = 4;
        message.node = 1;
        message.nodes = 2;
    }
    void make_valid(RankPart& message) {
        message.num_bytes = static_cast<std::int64_t>(message.data.values.size());
        message.limit_ms = 4;
    }
    void make_valid(WorkerHello& message) {
        message.protocol = kProtocolVersion;
        message.tp = 4;
        message.rank = Rank{3};
        message.routes = RouteShape{.layers = 48, .per_token = 8, .num_experts = 128};
        message.dense_layers = {0, draw(1, 47)};
        message.drafted_max = draw(0, kDraftedMax);
        message.ep = 2;
    }
    void make_valid(StepPlan& plan) {
        const auto fill_num = [&](auto& array, std::int64_t num) {
            array.values.resize(static_cast<std::size_t>(num));
            for (auto& value : array.values) fill(value);
        };
        std::int64_t num_tokens = 0;
        std::int64_t num_pages = 0;
        std::int64_t num_targets = 0;
        std::int64_t num_brought = 0;
        CheckpointId next_saved{};  // far below the ids that `fill` draws
        for (PlanRow& row : plan.rows) {
            row.takes_sampled = draw(0, 1) == 1;
            row.begin = draw(0, 1 << 20);
            row.num_new = row.takes_sampled ? 1 : draw(1, 20);
            row.output_index = draw(0, 1000);
            if (draw(0, 5) == 0) row.output_index.reset();
            row.num_pages = draw(1, 5);
            if (row.num_new == 1 || !row.output_index) row.num_drafted.reset();
            if (row.num_drafted) row.num_drafted = draw(1, row.num_new - 1);
            row.num_scored = row.num_drafted ? 0 : draw(0, row.num_new);
            row.num_routed = draw(0, row.num_new);
            row.num_brought = draw(0, row.num_new);
            if (row.begin == 0) row.state_from.reset();
            row.save_to = next_saved;
            next_saved = next(next_saved);
            row.save_at = draw(row.begin + 1, row.begin + row.num_new);
            num_tokens += row.num_new;
            num_pages += row.num_pages;
            num_targets += row.num_scored;
            num_brought += row.num_brought;
        }
        fill_num(plan.tokens, num_tokens);
        fill_num(plan.pages, num_pages);
        fill_num(plan.targets, num_targets);
        fill_num(plan.routes, num_brought * 6);
    }

    std::mt19937_64 random_;
};

template <class T>
concept Fielded = requires(T& value) {
    value.fields([](auto&&...) {});
};

// Compares field by field; a difference is reported with the field's name.
template <class T>
bool equal(const T& a, const T& b) {
    if constexpr (Fielded<T>) {
        // Walks both lists side by side: b's fields are kept as pointers, in order.
        std::vector<const void*> others;
        const_cast<T&>(b).fields([&](auto, auto& field, auto) { others.push_back(&field); });
        bool is_equal = true;
        std::size_t i = 0;
        const_cast<T&>(a).fields([&](std::string_view name, auto& field, auto) {
            using Field = std::remove_cvref_t<decltype(field)>;
            if (equal<Field>(field, *static_cast<const Field*>(others[i++]))) return;
            ADD_FAILURE() << "field " << name << " differs";
            is_equal = false;
        });
        return is_equal;
    } else if constexpr (requires {
                             const_cast<typename T::value_type&>(a.value()).fields([](auto&&...) {}
                             );
                         }) {  // an optional part
        return a.has_value() == b.has_value() && (!a.has_value() || equal(*a, *b));
    } else if constexpr (requires {
                             const_cast<typename T::value_type&>(a.front()).fields([](auto&&...) {}
                             );
                         }) {  // an array of parts
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
            return equal(x, y);
        });
    } else {
        return a == b;
    }
}

template <class Message>
MessageCase case_of() {
    return {
        .type = Message::kType,
        .filled = [](std::uint64_t seed) { return encode(Filler(seed).message<Message>()); },
        .recoded = [](const Frames& frames, UnknownFields unknown_fields) -> Result<Frames> {
            ASSIGN_OR_RETURN(const Message message, decode<Message>(frames, unknown_fields));
            return encode(message);
        },
        .expect_round_trip =
            [](std::uint64_t seed) {
                const auto sent = Filler(seed).message<Message>();
                const Result<Message> received =
                    decode<Message>(encode(sent), UnknownFields::kRefuse);
                ASSERT_TRUE(received) << received.error().message;
                EXPECT_TRUE(equal(sent, *received)) << "seed " << seed;
            },
    };
}

template <class... Messages>
std::vector<MessageCase> cases_of(MessageList<Messages...>) {
    return {case_of<Messages>()...};
}

}  // namespace

std::vector<MessageCase> every_message() { return cases_of(AllMessages{}); }

void PrintTo(const MessageCase& message, std::ostream* out) { *out << message.type; }

}  // namespace pitstop::messages
