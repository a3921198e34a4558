// Valid and invalid updates of an adapter, and calls about one.
#include "messages/adapters.h"

#include "messages/weights.h"

#include <gtest/gtest.h>

#include <string>

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
    expect("send an adapter whole", [](Spec s) { s.partial = true; });
    expect("send an adapter whole", [](Spec s) { s.source.format = TensorFormat::kSparse; });
    expect("epoch is for the model", [](Spec s) { s.epoch = Epoch{7}; });
    expect("base_digest", [](Spec s) { s.base_digest = std::string(32, '0'); });
    expect("adapter_config is empty", [](Spec s) { s.source.kind = SourceKind::kBuckets; });
    expect("1048577 bytes", [](Spec s) { s.adapter_config = std::string((1 << 20) + 1, ' '); });
    expect("adapter_config is given without an adapter", [](Spec s) {
        s.adapter = "", s.adapter_config = "{}";
    });
    expect("adapter_policy is given without an adapter", [](Spec s) {
        s.adapter = "", s.adapter_policy = AdapterPolicy::kKeep;
    });
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

}  // namespace
}  // namespace pitstop::messages
