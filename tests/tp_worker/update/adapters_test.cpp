// Compares adapters, from their files to logits, with PEFT (tests/golden/make_adapters.py made
// tests/data/golden/MODEL/adapters and explains how). Also tests refused adapters.
#include "base/bf16.h"
#include "base/time.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/update/adapted_fixture.h"
#include "tp_worker/config/adapter_config.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sys/stat.h>
#include <thread>

namespace pitstop::tp_worker {
namespace {

namespace fs = std::filesystem;

// The bound of model/golden_test.cpp.
constexpr double kLogitError = 1e-4;

class GoldenAdapters : public Adapted,
                       public testing::WithParamInterface<std::tuple<std::string, int>> {};

TEST_P(GoldenAdapters, Fp32GivesTheLogitsAndGreedyIdsOfPeft) {
    const auto& [name, tp] = GetParam();
    open(name.substr(0, name.find('/')), tp);
    if (IsSkipped() || HasFatalFailure()) return;
    const Json golden = load_json(adapter_dir(name) + "/golden.json");
    const std::vector<TokenId> first = ids_of(golden["prompts"].back()["ids"]);
    const std::vector<float> before = logits_of(first, std::nullopt);
    const messages::AdapterId adapter = load(adapter_dir(name));
    const auto V = static_cast<std::size_t>(replica_->vocab_len());
    double worst = 0.0;
    for (const Json& prompt : golden["prompts"]) {
        const std::vector<TokenId> ids = ids_of(prompt["ids"]);
        const std::vector<TokenId> expected = ids_of(prompt["greedy"]);
        EXPECT_EQ(generate(replica_.get(), ids, std::ssize(expected), adapter), expected);
        const std::vector<float> logits = logits_of(ids, adapter);
        for (std::size_t t = 0; t < ids.size(); ++t) {
            for (std::size_t k = 0; k < V; ++k) {
                const double error = std::abs(
                    static_cast<double>(logits[t * V + k]) - prompt["logits"][t][k].get<double>()
                );
                worst = std::max(worst, error);
                EXPECT_LE(error, kLogitError) << "position " << t << " id " << k;
            }
        }
    }
    std::printf("largest logit error %.6f\n", worst);
    EXPECT_EQ(logits_of(first, std::nullopt), before) << "the model alone is as it was";
}

INSTANTIATE_TEST_SUITE_P(
    All,
    GoldenAdapters,
    testing::Combine(testing::ValuesIn(adapter_names()), testing::Range(1, kRanksMax + 1)),
    [](const auto& parameter) {
        std::string name = std::get<0>(parameter.param);
        std::ranges::replace(name, '/', '_');
        return name + "_tp" + std::to_string(std::get<1>(parameter.param));
    }
);

// P6: the bits do not depend on which adapters share the pass, or on how a prompt is cut.
TEST_F(Adapted, P6_ARowHasTheBitsThatItHasAlone) {
    for (const Compute compute : {Compute::kFp32, Compute::kBf16}) {
        replica_.reset();
        updaters_.clear();
        open("qwen3_tied", 1, compute);
        const std::vector<std::optional<messages::AdapterId>> adapters{
            load(adapter_dir("qwen3_tied/all")),
            std::nullopt,
            load(adapter_dir("qwen3_tied/bf16")),
            load(adapter_dir("qwen3_tied/rank_stabilized")),
            std::nullopt};
        expect_bits_of_each_alone(adapters);
    }
}

// A copy of an adapter's directory that a test may change.
class AdapterFiles {
  public:
    explicit AdapterFiles(const std::string& name) {
        dir_ = testing::TempDir() + "adapter_" +
               testing::UnitTest::GetInstance()->current_test_info()->name();
        fs::remove_all(dir_);
        fs::copy(adapter_dir(name), dir_);
    }
    ~AdapterFiles() { fs::remove_all(dir_); }
    AdapterFiles(const AdapterFiles&) = delete;
    AdapterFiles& operator=(const AdapterFiles&) = delete;

    [[nodiscard]] const std::string& dir() const { return dir_; }
    [[nodiscard]] Json config() const { return load_json(dir_ + "/adapter_config.json"); }
    void write_config(const Json& config) const {
        std::ofstream(dir_ + "/adapter_config.json") << text_of(config);
    }
    // The file's header and its bytes.
    [[nodiscard]] std::pair<Json, std::string> tensors() const {
        std::ifstream file(path(), std::ios::binary);
        const std::string all{std::istreambuf_iterator<char>(file), {}};
        std::uint64_t header = 0;
        std::memcpy(&header, all.data(), sizeof header);
        return {parse_json(all.substr(8, header)), all.substr(8 + header)};
    }
    void write_tensors(const Json& header, const std::string& bytes) const {
        const std::string text = text_of(header);
        const std::uint64_t size = text.size();
        std::ofstream file(path(), std::ios::binary | std::ios::trunc);
        file.write(reinterpret_cast<const char*>(&size), sizeof size);
        file << text << bytes;
    }
    [[nodiscard]] std::string path() const { return dir_ + "/adapter_model.safetensors"; }

  private:
    std::string dir_{};
};

const std::string kQ0 = "base_model.model.model.layers.0.self_attn.q_proj.";

TEST_F(Adapted, RefusesWhatIsNotTheAdapterOfItsConfigurationByName) {
    open("qwen3_tied", kRanksMax);
    const AdapterFiles files("qwen3_tied/all");
    const Json config = files.config();
    const auto& [header, bytes] = files.tensors();
    const auto refused = [&](ErrorCode code, const std::string& why) {
        expect_refused(from_disk(files.dir()), code, why);
        files.write_config(config);
        files.write_tensors(header, bytes);
    };
    Json changed = config;
    changed["target_modules"] = {"c_attn"};
    files.write_config(changed);
    refused(ErrorCode::kInvalidArgument, "adapts no module of this model");

    changed = config;
    changed["target_modules"] = {"q_proj"};  // but the file has more modules
    files.write_config(changed);
    refused(ErrorCode::kInvalidArgument, "down_proj.lora_A.weight' is no tensor of the adapter");

    changed = config;
    changed["target_modules"].push_back("lm_head");
    files.write_config(changed);
    refused(ErrorCode::kUnsupported, "'lm_head' are not served");

    changed = config;
    changed["r"] = 65;
    files.write_config(changed);
    refused(ErrorCode::kInvalidArgument, "over 64");

    changed = config;
    changed["r"] = 5;
    files.write_config(changed);
    refused(ErrorCode::kInvalidArgument, "has shape [4,");

    changed = config;
    changed["use_dora"] = true;
    files.write_config(changed);
    refused(ErrorCode::kUnsupported, "use_dora");

    Json tensors = header;
    tensors.erase(kQ0 + "lora_B.weight");
    tensors["unknown.lora_B.weight"] = header[kQ0 + "lora_B.weight"];
    files.write_tensors(tensors, bytes);
    refused(ErrorCode::kInvalidArgument, "'unknown.lora_B.weight' is no tensor of the adapter");

    std::string broken = bytes;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto at = header[kQ0 + "lora_A.weight"]["data_offsets"][0].get<std::size_t>();
    std::memcpy(broken.data() + at + 12, &nan, sizeof nan);
    files.write_tensors(header, broken);
    refused(ErrorCode::kInvalidArgument, "q_proj.lora_A.weight' is not finite");

    fs::remove(files.path());
    refused(ErrorCode::kNotFound, "neither adapter_model.safetensors nor adapter_model.bin");
    fs::remove(files.dir() + "/adapter_config.json");
    expect_refused(from_disk(files.dir()), ErrorCode::kNotFound, "adapter_config.json");
}

// torch.save wrote the same tensors (tests/golden/make_torch_files.py).
TEST_F(Adapted, AFileOfTorchSaveIsTheSameAdapter) {
    open("qwen3_tied", 1);
    if (IsSkipped() || HasFatalFailure()) return;
    const auto staged_digests = [&](const std::string& dir) {
        const messages::WorkerStaged vote = stage(from_disk(dir)).front();
        EXPECT_TRUE(vote.outcome.ok) << vote.outcome.problems.front();
        return vote.digests;
    };
    const AdapterFiles files("qwen3_tied/bf16");
    const auto wanted = staged_digests(files.dir());
    ASSERT_FALSE(wanted.empty());
    commit();
    const std::string saved = source_dir() + "/tests/data/torch_files/";
    for (const char* torch : {"1.13", "2.15"}) {
        SCOPED_TRACE(torch);
        const std::string file = files.dir() + "/adapter_model.bin";
        fs::remove(file);
        fs::copy(saved + torch + "/adapter.bin", file);
        EXPECT_EQ(staged_digests(files.dir()), wanted) << "the safetensors are read, as in PEFT";
        commit();
        fs::remove(files.path());
        EXPECT_EQ(staged_digests(files.dir()), wanted);
        commit();
        fs::copy(adapter_dir("qwen3_tied/bf16") + "/adapter_model.safetensors", files.path());
    }
}

// Heads, embeddings and convolutions, by the name of each module.
TEST_F(Adapted, RefusesModulesThatAreNotServedByName) {
    struct Case {
        std::string model{};
        std::string target{};
        std::string module{};  // in the message
    };
    const std::vector<Case> cases{
        {"qwen3_tied", "lm_head", "'lm_head'"},
        {"qwen3_untied_biased", "lm_head", "'lm_head'"},
        {"qwen3_tied", "embed_tokens", "'model.embed_tokens'"},
        {"mixtral", "lm_head", "'lm_head'"},
        {"qwen3_5", "conv1d", "linear_attn.conv1d'"},
    };
    for (const auto& [model, target, module] : cases) {
        SCOPED_TRACE(model + " " + target);
        replica_.reset();
        updaters_.clear();
        open(model, 1);
        if (IsSkipped() || HasFatalFailure()) return;
        messages::UpdateSpec spec = from_disk("/nowhere");
        spec.adapter_config = fmt::format(
            R"({{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["{}"]}})", target
        );
        expect_refused(spec, ErrorCode::kUnsupported, module);
        expect_refused(spec, ErrorCode::kUnsupported, " are not served");
    }
}

// Under "all-linear" the tensors say what was adapted: none is left out silently.
TEST_F(Adapted, RefusesTensorsOfModulesThatAreNotServedByName) {
    open("qwen3_tied", kRanksMax);
    const AdapterFiles files("qwen3_tied/all");
    Json config = files.config();
    config["target_modules"] = "all-linear";
    files.write_config(config);
    const auto& [header, bytes] = files.tensors();
    for (const std::string& name :
         {std::string("lm_head.lora_A.weight"),
          std::string("model.embed_tokens.lora_embedding_A"),
          std::string("model.layers.0.mlp.experts.3.gate_proj.lora_A.weight"),
          std::string("model.layers.0.mlp.experts.base_layer.lora_A.weight"),
          std::string("lm_head.weight")}) {
        SCOPED_TRACE(name);
        Json tensors = header;
        Json more = header[kQ0 + "lora_A.weight"];
        const std::string copy = bytes.substr(
            more["data_offsets"][0].get<std::size_t>(),
            more["data_offsets"][1].get<std::size_t>() - more["data_offsets"][0].get<std::size_t>()
        );
        more["data_offsets"] = {bytes.size(), bytes.size() + copy.size()};
        tensors["base_model.model." + name] = more;
        files.write_tensors(tensors, bytes + copy);
        expect_refused(
            from_disk(files.dir()), ErrorCode::kInvalidArgument, "is no tensor of the adapter"
        );
    }
}

// Trainers send a live state dict, in the call itself.
TEST_F(Adapted, TensorsInTheCallUnderOtherNamesAreTheSameAdapter) {
    open("qwen3_tied", kRanksMax);
    const AdapterFiles files("qwen3_tied/bf16");
    const std::vector<messages::WorkerStaged> from_file = stage(from_disk(files.dir()));
    ASSERT_TRUE(from_file.at(0).outcome.ok) << from_file[0].outcome.problems.front();
    const messages::AdapterId first = commit();

    const auto& [header, bytes] = files.tensors();
    messages::UpdateSpec spec;
    spec.adapter = "one";
    spec.adapter_config = text_of(files.config());
    spec.source.kind = messages::SourceKind::kTensors;
    spec.source.format = messages::TensorFormat::kFlattened;
    messages::RankPayload payload;
    for (const auto& [name, tensor] : header.items()) {
        if (name == "__metadata__") continue;
        std::string given = name.substr(std::string("base_model.model.").size());
        given.replace(given.find(".weight"), 7, ".default.weight");
        given.insert(given.find("layers"), "language_model.");
        spec.source.tensors.push_back(
            {.name = given,
             .dtype = tensor["dtype"].get<std::string>(),
             .shape = tensor["shape"].get<std::vector<std::int64_t>>()}
        );
        const auto begin = tensor["data_offsets"][0].get<std::ptrdiff_t>();
        const auto end = tensor["data_offsets"][1].get<std::ptrdiff_t>();
        payload.data.values.insert(
            payload.data.values.end(), bytes.begin() + begin, bytes.begin() + end
        );
    }
    spec.source.payloads.push_back(std::move(payload));
    const std::vector<messages::WorkerStaged> from_call = stage(std::move(spec));
    for (std::size_t rank = 0; rank < updaters_.size(); ++rank) {
        ASSERT_TRUE(from_call.at(rank).outcome.ok) << from_call[rank].outcome.problems.front();
        EXPECT_EQ(from_call[rank].digests, from_file[rank].digests);
    }
    const messages::AdapterId second = commit();
    const std::vector<TokenId> prompt{TokenId{3}, TokenId{9}, TokenId{27}};
    EXPECT_EQ(logits_of(prompt, first), logits_of(prompt, second));
}

// The text model may be part of a model with vision, for which PEFT has other paths.
TEST_F(Adapted, PatternsMayHaveThePathsOfTheModelWithVision) {
    open("qwen3_5_moe", 1);
    if (IsSkipped() || HasFatalFailure()) return;
    const AdapterFiles files("qwen3_5_moe/packed");
    const std::vector<TokenId> prompt{TokenId{3}, TokenId{9}, TokenId{27}};
    const std::vector<float> plain = logits_of(prompt, load(files.dir()));
    Json config = files.config();
    const auto logits_with = [&](const char* pattern) {
        config["alpha_pattern"] = {{pattern, 64}};
        files.write_config(config);
        return logits_of(prompt, load(files.dir()));
    };
    const std::vector<float> own = logits_with(R"(model\.layers\..*)");
    EXPECT_NE(own, plain);
    EXPECT_EQ(logits_with(R"(model\.language_model\.layers\..*)"), own);
}

TEST_F(Adapted, ALoadThatIsDroppedSearchesNoModules) {
    open("qwen3_tied", 1);
    if (IsSkipped() || HasFatalFailure()) return;
    std::atomic<bool> is_dropped{true};
    const messages::UpdateSpec spec = from_disk(adapter_dir("qwen3_tied/all"));
    const auto staged = updaters_[0]->adapters().open(spec, std::nullopt, is_dropped);
    ASSERT_FALSE(staged.has_value());
    EXPECT_EQ(staged.error().code, ErrorCode::kAborted);
}

// A replaced version still serves the requests that have it, until it is forgotten.
TEST_F(Adapted, VersionsLiveSideBySideUntilTheyAreForgotten) {
    open("qwen3_tied", 1);
    const std::vector<TokenId> prompt{TokenId{3}, TokenId{9}, TokenId{27}};
    const messages::AdapterId first = load(adapter_dir("qwen3_tied/all"));
    const std::vector<float> of_first = logits_of(prompt, first);
    const messages::AdapterId second = load(adapter_dir("qwen3_tied/bf16"));
    EXPECT_NE(logits_of(prompt, second), of_first);
    EXPECT_EQ(logits_of(prompt, first), of_first);
    EXPECT_EQ(replica_->root().epoch(), Epoch{1}) << "of the model";
    const messages::WorkerForget forget{.adapters = {first, messages::AdapterId{999}}};
    ASSERT_TRUE(updaters_[0]->handle_order(encode(forget)));
    EXPECT_EQ(replica_->root().adapters().find(first), nullptr);
    messages::StepPlan plan;
    TestRequest request{
        .tokens = prompt,
        .prompt_len = 3,
        .pages = {PageId{0}},
        .sampling = greedy(),
        .adapter = first};
    add_row(&request, 3, &plan);
    plan.step = StepId{1};
    plan.epoch = Epoch{1};
    const Result<> started = replica_->root().start(plan);
    ASSERT_FALSE(started);
    EXPECT_NE(started.error().message.find("has no adapter of update 1"), std::string::npos);
}

// An adapter that was evicted and restored has the bits that it had before.
TEST_F(Adapted, P6_ARestoredVersionHasTheBitsThatWereEvicted) {
    open("qwen3_tied", kRanksMax);
    for (const auto& updater : updaters_)
        updater->adapters().limit({.bytes_max = 16 << 20, .directory = testing::TempDir()});
    const std::vector<TokenId> prompt{TokenId{3}, TokenId{9}, TokenId{27}};
    const messages::AdapterId id = load(adapter_dir("qwen3_tied/all"));
    const std::vector<float> before = logits_of(prompt, id);
    const std::vector<float> alone = logits_of(prompt, std::nullopt);
    ASSERT_NE(before, alone);
    for (int i = 0; i < 2; ++i) {  // the second time the file exists already
        messages::WorkerAdapters order{.evict = {id}};
        for (const auto& updater : updaters_) ASSERT_TRUE(updater->handle_order(encode(order)));
        EXPECT_EQ(logits_of(prompt, std::nullopt), alone);
        order = {.restore = {id}};
        for (const auto& updater : updaters_) {
            const auto answer = tp_worker::ask<messages::WorkerRestored>(*updater, order);
            ASSERT_TRUE(answer);
            EXPECT_TRUE(answer->verdict.is_done()) << answer->verdict.message;
            EXPECT_EQ(answer->id, id);
        }
        EXPECT_EQ(logits_of(prompt, id), before);
    }
    const messages::WorkerAdapters unknown{.restore = {messages::AdapterId{999}}};
    const auto answer = tp_worker::ask<messages::WorkerRestored>(*updaters_[0], unknown);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->verdict.code, ErrorCode::kDataLoss);
}

// The directory cannot be written, as on a full disk.
TEST_F(Adapted, AVersionThatCannotBeEvictedStaysAndTheSchedulerIsTold) {
    open("qwen3_tied", 1);
    updaters_[0]->adapters().limit({.bytes_max = 16 << 20, .directory = "/nowhere/at/all"});
    const std::vector<TokenId> prompt{TokenId{3}, TokenId{9}, TokenId{27}};
    const messages::AdapterId id = load(adapter_dir("qwen3_tied/all"));
    const std::vector<float> before = logits_of(prompt, id);
    const messages::WorkerAdapters order{.evict = {id}};
    const auto answer = tp_worker::ask<messages::WorkerNotEvicted>(*updaters_[0], order);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->id, id);
    EXPECT_FALSE(answer->verdict.is_done());
    EXPECT_NE(answer->verdict.message.find("in '/nowhere/at/all'"), std::string::npos)
        << answer->verdict.message;
    EXPECT_EQ(logits_of(prompt, id), before);
}

// While the keeper waits for a disk, it holds no memory of a version that is evicted meanwhile. If
// the keeper cannot write, it leaves no file.
TEST_F(Adapted, AnEvictedVersionThatIsBeingKeptGivesUpItsMemory) {
    open("qwen3_tied", 1);
    const test::TempDir dir;
    const std::string being_written = dir.path(".adapter-1");
    const std::string fifo = being_written + "/adapter_model.safetensors";
    ASSERT_TRUE(fs::create_directory(being_written));
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);  // the keeper's open waits for a reader
    updaters_[0]->adapters().keep_in(
        {.directory = dir.path(), .pace = pace_, .fault_point = FaultPoint("none")}
    );
    updaters_[0]->adapters().limit({.bytes_max = 16 << 20, .directory = testing::TempDir()});
    const messages::AdapterId id = load(adapter_dir("qwen3_tied/all"));
    Adapters& adapters = replica_->root().adapters();
    std::shared_ptr<Adapter> taken = adapters.take_out(id);
    const std::weak_ptr<Adapter> first = taken;
    adapters.add(id, std::move(taken));
    const messages::WorkerAdapters order{.evict = {id}, .restore = {id}};
    const auto answer = tp_worker::ask<messages::WorkerRestored>(*updaters_[0], order);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->verdict.is_done()) << answer->verdict.message;
    EXPECT_TRUE(first.expired()) << "the keeper has it";
    std::ifstream(fifo).get();  // now the keeper continues, and fails to allocate in a fifo
    const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
    while (fs::exists(being_written) && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(fs::exists(being_written));
}

// The part of a GPU's memory that --adapter-memory may use.
TEST_F(Adapted, TheMemoryOfAdaptersIncludesTheLargestThatMayBeLoaded) {
    open("qwen3_tied", 1);
    const Engine& engine = replica_->root();
    const auto stack = Stack::make(engine.config(), RankOf{});
    ASSERT_TRUE(stack);
    const auto config = AdapterConfig::parse(
        R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": "all-linear"})", "it"
    );
    ASSERT_TRUE(config);
    ModuleSearch search(*config);
    const auto largest = engine.make_adapter(search);
    ASSERT_TRUE(largest);
    const std::int64_t one = (*largest)->bytes();
    const auto taken = [&](std::int64_t limit, std::int64_t rank_max) {
        const auto bytes = adapter_bytes_max(limit, rank_max, *stack, engine.device());
        return bytes ? *bytes : -1;
    };
    EXPECT_EQ(taken(10 * one, 8), 11 * one);
    EXPECT_EQ(taken(one / 2, 8), one / 2 * 2) << "a larger one is refused";
    EXPECT_GT(taken(10 * one, 512), 11 * one);
    EXPECT_EQ(taken(0, 8), 0);
    EXPECT_EQ(taken(10 * one, 0), 0);
}

TEST_F(Adapted, ALoadThatHasNoRoomBesidePinnedOnesIsRefused) {
    open("qwen3_tied", 1);
    const messages::AdapterId first = load(adapter_dir("qwen3_tied/all"));
    const std::int64_t bytes = replica_->root().adapters().find(first)->bytes();
    updaters_[0]->adapters().limit({.bytes_max = bytes - 1, .directory = testing::TempDir()});
    messages::UpdateSpec spec = from_disk(adapter_dir("qwen3_tied/all"));
    expect_refused(spec, ErrorCode::kResourceExhausted, "beside 0 bytes of pinned adapters");
    updaters_[0]->adapters().limit({.bytes_max = bytes, .directory = testing::TempDir()});
    spec.adapter_pinned = true;
    ASSERT_TRUE(stage(spec).at(0).outcome.ok);
    commit();
    ASSERT_TRUE(stage(spec).at(0).outcome.ok) << "it replaces the pinned one of its name";
    commit();
    spec.adapter = "other";
    expect_refused(spec, ErrorCode::kResourceExhausted, "(--adapter-memory)");
    spec.adapter = "one";
    spec.adapter_pinned = false;
    ASSERT_TRUE(stage(spec).at(0).outcome.ok);
    commit();
    spec.adapter = "other";
    EXPECT_TRUE(stage(spec).at(0).outcome.ok) << "the pinned ones of the name are replaced";
}

}  // namespace
}  // namespace pitstop::tp_worker
