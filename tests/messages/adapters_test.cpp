// Valid and invalid updates of an adapter, and calls about one.
#include "messages/adapters.h"

#include "messages/status.h"
#include "messages/weights.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::messages {
namespace {

UpdateSpec of_adapter() {
    UpdateSpec spec;
    spec.source.path = "/somewhere";
    spec.mode = UpdateMode::kStaged;
    spec.adapter = "a";
    return spec;
}

TEST(AdapterUpdate, HasNothingThatIsOfAModel) {
    ASSERT_EQ(invalid(of_adapter()), std::nullopt);
    const auto expect = [](std::string_view why, auto change) {
        UpdateSpec spec = of_adapter();
        change(spec);
        const std::string problem = invalid(spec).value_or("");
        EXPECT_NE(problem.find(why), std::string::npos) << "'" << problem << "' for " << why;
    };
    using Spec = UpdateSpec&;
    expect("needs mode staged", [](Spec s) { s.mode = UpdateMode::kDirect; });
    expect("continue by adapter_policy", [](Spec s) { s.kv_policy = KvPolicy::kDrain; });
    expect("needs base_digest and partial", [](Spec s) {
        s.source.format = TensorFormat::kSparse;
    });
    expect("epoch is for the model", [](Spec s) { s.epoch = Epoch{7}; });
    expect("base_digest is 'x'", [](Spec s) { s.base_digest = "x"; });
    expect("adapter_config is empty", [](Spec s) { s.source.kind = SourceKind::kBuckets; });
    expect("1048577 bytes", [](Spec s) { s.adapter_config = std::string((1 << 20) + 1, ' '); });
    expect("adapter_config is given without an adapter", [](Spec s) {
        s.adapter = "", s.adapter_config = "{}";
    });
    expect("adapter_policy is given without an adapter", [](Spec s) {
        s.adapter = "", s.adapter_policy = AdapterPolicy::kKeep;
    });
}

// A line to the launcher has the path, between tabs.
TEST(WeightSource, HasAPathOfOneLine) {
    const auto expect = [](std::string_view why, const std::string& path) {
        for (const SourceKind kind : {SourceKind::kDisk, SourceKind::kBuckets}) {
            const std::string problem =
                invalid(WeightSource{.kind = kind, .path = path}).value_or("nothing");
            EXPECT_NE(problem.find(why), std::string::npos) << "'" << problem << "' for " << why;
        }
    };
    expect("nothing", std::string(4095, 'x'));
    expect("has 4096 bytes; at most 4095", std::string(4096, 'x'));
    expect("control character", "/a\tb");
    expect("control character", "/a\nb");
}

TEST(AdapterUpdate, MayBeAPartOfTheVersionThatServes) {
    UpdateSpec spec = of_adapter();
    spec.partial = true;
    spec.base_digest = std::string(32, '0');
    EXPECT_EQ(invalid(spec), std::nullopt);
    spec.source = {.kind = SourceKind::kBuckets};
    EXPECT_EQ(invalid(spec), std::nullopt) << "the configuration is the version's";
}

TEST(AdapterUpdate, HasTheConfigurationOfItsSessionIfItIsABucket) {
    UpdateWeights call{.call = CallId{1}, .unnamed = true, .update = of_adapter()};
    call.update.source = {.kind = SourceKind::kTensors};
    const std::string of_update = invalid(call.update).value_or("");
    EXPECT_NE(of_update.find("adapter_config is empty"), std::string::npos);
    EXPECT_EQ(invalid(call), invalid(call.update.source)) << "it may be a bucket";
    call.unnamed = false;
    EXPECT_EQ(invalid(call).value_or(""), of_update);
}

TEST(AdapterRollback, HasNothingThatIsOfAModel) {
    RollbackWeights call{.call = CallId{1}, .adapter = "a"};
    EXPECT_EQ(invalid(call), std::nullopt);
    call.kv_policy = KvPolicy::kDrain;
    EXPECT_NE(invalid(call).value_or("").find("continue by adapter_policy"), std::string::npos);
    call.adapter = "";
    EXPECT_EQ(invalid(call), std::nullopt) << "the model's";
    call.adapter_policy = AdapterPolicy::kKeep;
    EXPECT_NE(invalid(call).value_or("").find("given without an adapter"), std::string::npos);
    call = {.call = CallId{1}, .adapter = "a\nb"};
    EXPECT_TRUE(invalid(call));
}

TEST(AdapterName, IsOneShortLine) {
    EXPECT_FALSE(invalid_adapter_name("step 7, Straße"));
    EXPECT_FALSE(invalid_adapter_name(std::string(kAdapterNameBytesMax, 'a')));
    for (const std::string& wrong : {
             std::string(),
             std::string(kAdapterNameBytesMax + 1, 'a'),
             std::string("a\nb"),
             std::string("a\0b", 3),
         }) {
        EXPECT_TRUE(invalid_adapter_name(wrong)) << wrong;
        UpdateSpec spec = of_adapter();
        spec.adapter = wrong;
        if (!wrong.empty()) {
            EXPECT_TRUE(invalid(spec)) << wrong;
        }
        EXPECT_TRUE(invalid(UnloadAdapter{.call = CallId{1}, .name = wrong})) << wrong;
    }
}

TEST(AdapterName, IsNoNameOfTheModel) {
    const std::vector<std::string> served{"stories:small", "actor", ""};
    for (const char* const name : {"stories", "stories:big", "actors", "a:actor", ":", ""})
        EXPECT_EQ(invalid_adapter_name(name, served), std::nullopt) << name;
    for (const char* const name : {"actor", "actor:", "actor:a", "stories:small:a"})
        EXPECT_TRUE(invalid_adapter_name(name, served)) << name;
    EXPECT_EQ(
        invalid_adapter_name("actor:a", served),
        "the adapter's name is 'actor:a', and the model is served as 'actor'; accepted is a name "
        "that is not the model's and does not begin with the model's and a colon"
    );
}

TEST(LoadedAdapters, AreThoseThatEveryReplicaHas) {
    StatusReply status;
    EXPECT_TRUE(loaded_adapters(status).empty());
    status.replicas.resize(2);
    status.replicas[0].adapters = {
        {.adapter = {.name = "a"}, .num_requests = 3}, {.adapter = {.name = "b"}}};
    status.replicas[1].adapters = {{.adapter = {.name = "a"}}, {.adapter = {.name = "c"}}};
    status.replicas[1].lost_adapters = {{.adapter = {.name = "b"}}};
    const std::vector<AdapterStatus> loaded = loaded_adapters(status);
    ASSERT_EQ(loaded.size(), 1u);
    EXPECT_EQ(loaded[0], status.replicas[0].adapters[0]);
}

}  // namespace
}  // namespace pitstop::messages
