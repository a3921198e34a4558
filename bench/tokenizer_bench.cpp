// Measures how fast text becomes token ids and back, on one thread.
//
//   encode_cold  a text seen for the first time: the cache of recent pieces is empty
//   encode_warm  the same text again
//   load         from the file to the first encoding
//   stream       ids to text one by one, through the stop strings, as for a request's output
//
// The text is mixed: this project's documents and sources, and the texts of the tokenizer tests in
// some forty scripts, in documents of at most kDocumentBytes. Tokenizers are those of the tests.
#include "tests/text/tokenizer_dirs.h"
#include "text/incremental_decoder.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <benchmark/benchmark.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace pitstop {
namespace {

constexpr std::size_t kDocumentBytes = 8192;

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> make_documents() {
    std::vector<std::filesystem::path> paths;
    for (const char* folder : {"docs", "base", "text", "tests/text"}) {
        const std::filesystem::path root = std::filesystem::path(PITSTOP_SOURCE_DIR) / folder;
        for (const auto& entry : std::filesystem::directory_iterator(root)) {
            const std::string kind = entry.path().extension();
            if (kind == ".md" || kind == ".h" || kind == ".cpp" || kind == ".py")
                paths.push_back(entry.path());
        }
    }
    std::sort(paths.begin(), paths.end());
    std::string all;
    for (const auto& path : paths) all += read(path);
    std::ifstream lines(text::demo_tokenizer_dir() / "expected.jsonl");
    for (std::string line; std::getline(lines, line);) {
        all += nlohmann::json::parse(line)["text"].get<std::string>() + "\n";
    }
    std::vector<std::string> documents;
    for (std::size_t begin = 0; begin < all.size();) {
        std::size_t end = std::min(begin + kDocumentBytes, all.size());
        while (end < all.size() && text::is_continuation_byte(all[end])) ++end;
        documents.push_back(all.substr(begin, end - begin));
        begin = end;
    }
    return documents;
}

const std::vector<std::string>& documents() {
    static const std::vector<std::string> made = make_documents();
    return made;
}

std::int64_t num_bytes() {
    std::int64_t bytes = 0;
    for (const std::string& document : documents())
        bytes += static_cast<std::int64_t>(document.size());
    return bytes;
}

std::shared_ptr<const text::Tokenizer> load(const std::string& name) {
    auto loaded = text::Tokenizer::load(text::tokenizer_dir(name));
    return loaded ? *std::move(loaded) : nullptr;
}

void encode_all(benchmark::State& state, const text::Tokenizer& tokenizer) {
    std::int64_t num_ids = 0;
    for (const std::string& document : documents()) {
        const auto ids = tokenizer.encode(document, text::AddSpecial::kNo);
        if (!ids) return state.SkipWithError(ids.error().message.c_str());
        num_ids += static_cast<std::int64_t>(ids->size());
    }
    state.counters["bytes_per_token"] =
        static_cast<double>(num_bytes()) / static_cast<double>(num_ids);
}

void encode_warm(benchmark::State& state, const std::string& name) {
    const auto tokenizer = load(name);
    encode_all(state, *tokenizer);
    for (auto _ : state) encode_all(state, *tokenizer);
    state.SetBytesProcessed(state.iterations() * num_bytes());
}

void encode_cold(benchmark::State& state, const std::string& name) {
    for (auto _ : state) {
        state.PauseTiming();
        auto tokenizer = load(name);  // its first call makes an empty cache
        benchmark::DoNotOptimize(tokenizer->encode("a", text::AddSpecial::kNo));
        state.ResumeTiming();
        encode_all(state, *tokenizer);
        state.PauseTiming();
        tokenizer.reset();
        state.ResumeTiming();
    }
    state.SetBytesProcessed(state.iterations() * num_bytes());
}

void load_first(benchmark::State& state, const std::string& name) {
    for (auto _ : state) {
        auto tokenizer = load(name);
        benchmark::DoNotOptimize(tokenizer->encode("Once upon a time", text::AddSpecial::kYes));
        state.PauseTiming();
        tokenizer.reset();
        state.ResumeTiming();
    }
}

void stream(benchmark::State& state, const std::string& name) {
    const auto tokenizer = load(name);
    std::vector<std::vector<TokenId>> all;
    std::int64_t num_ids = 0;
    for (const std::string& document : documents()) {
        all.push_back(*tokenizer->encode(document, text::AddSpecial::kNo));
        num_ids += static_cast<std::int64_t>(all.back().size());
    }
    const auto stops =
        *text::StopStrings::create({"<|im_end|>", "\n\nUser:", "</s>", "Observation:"});
    for (auto _ : state) {
        for (const std::vector<TokenId>& ids : all) {
            text::IncrementalDecoder decoder(tokenizer, {}, {});
            text::StopMatcher matcher(stops, text::StopMatcher::Trim::kStop);
            std::string piece;
            std::string text;
            for (const TokenId id : ids) {
                piece.clear();
                if (!decoder.push(id, piece)) return state.SkipWithError("push failed");
                if (matcher.push(piece, text)) break;
            }
            benchmark::DoNotOptimize(text);
        }
    }
    state.SetItemsProcessed(state.iterations() * num_ids);
}

}  // namespace
}  // namespace pitstop

int main(int argc, char** argv) {
    using namespace pitstop;
    const std::vector<std::string> there = text::tokenizer_names();
    for (const char* name :
         {"demo", "gpt2", "llama3.2", "qwen2.5", "gpt-oss", "llama2", "style-gemma"}) {
        if (std::find(there.begin(), there.end(), name) == there.end()) continue;
        const std::string text = name;
        benchmark::RegisterBenchmark(("encode_cold/" + text).c_str(), encode_cold, text)
            ->Unit(benchmark::kMillisecond);
        benchmark::RegisterBenchmark(("encode_warm/" + text).c_str(), encode_warm, text)
            ->Unit(benchmark::kMillisecond);
        benchmark::RegisterBenchmark(("stream/" + text).c_str(), stream, text)
            ->Unit(benchmark::kMillisecond);
        benchmark::RegisterBenchmark(("load/" + text).c_str(), load_first, text)
            ->Unit(benchmark::kMillisecond);
    }
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
