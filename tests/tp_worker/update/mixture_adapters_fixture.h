// Replicas of mixtures of experts, of groups of ranks (--ep), with adapters of their experts.
#pragma once

#include "messages/version_digest.h"
#include "tests/tp_worker/update/adapted_fixture.h"
#include "tests/tp_worker/update/adapter_tensors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::tp_worker {

class MixtureAdapters : public Adapted {
  protected:
    // Returns whether the test can go on.
    bool open_groups(const std::string& model, int tp, int ep, Compute compute = Compute::kFp32) {
        replica_.reset();
        updaters_.clear();
        open(model, tp, compute, Determinism::kBatchInvariant, /*has_graphs=*/true, ep);
        return !IsSkipped() && !HasFatalFailure();
    }
    // An adapter with the configuration of `name`, which an update brings.
    static messages::UpdateSpec with_config_of(const std::string& name, const Tensors& tensors) {
        messages::UpdateSpec spec = from_call(tensors);
        spec.adapter_config = text_of(load_json(adapter_dir(name) + "/adapter_config.json"));
        return spec;
    }
    Digest digest_of(const std::vector<messages::WorkerStaged>& votes) {
        std::vector<messages::RankParts> ranks;
        for (const messages::WorkerStaged& vote : votes) {
            EXPECT_TRUE(vote.outcome.ok) << vote.outcome.problems.front();
            ranks.push_back({.rank = vote.outcome.rank, .parts = vote.digests});
        }
        const auto version = messages::version_digest(ranks);
        EXPECT_TRUE(version) << version.error().message;
        return version ? version->digest : Digest{};
    }
    // All tensors of an adapter with this configuration, with some values.
    Tensors some_tensors_of(const std::string& config) {
        const auto parsed = AdapterConfig::parse(config, "the test");
        EXPECT_TRUE(parsed);
        ModuleSearch search(*parsed);
        const auto adapter = replica_->root().make_adapter(search);
        EXPECT_TRUE(adapter);
        Tensors tensors;
        for (const WeightTensor& tensor : (*adapter)->layout().tensors()) {
            Tensor& made = tensors[tensor.name];
            made.shape = tensor.shape;
            for (std::int64_t i = 0; i < tensor.shape[0] * tensor.shape[1]; ++i)
                made.values.push_back(0.01F * static_cast<float>(i * 7 % 23 - 11));
        }
        return tensors;
    }
    std::int64_t adapter_bytes(int rank, messages::AdapterId id) {
        return replica_->engine(rank).adapters().find(id)->bytes();
    }

    // Long enough for every expert to have a token.
    const std::vector<TokenId> kPrompt = [] {
        std::vector<TokenId> ids;
        for (std::int32_t i = 0; i < 40; ++i) ids.push_back(TokenId{3 + i * 7 % 61});
        return ids;
    }();
};

}  // namespace pitstop::tp_worker
