// pitstop_make_model SHAPE DIR writes a model directory with random weights, for benchmarks and
// tests of a shape whose real weights are too large to carry along.
#include "bench/checkpoint_writer.h"
#include "bench/program.h"

#include <fmt/ranges.h>

#include <charconv>
#include <thread>

namespace pitstop::bench {
namespace {

struct Options {
    std::int64_t seed = 0;
    std::string dtype = "bf16";
    int shards = 1;
    int threads = 0;  // 0: one per core
    std::string perturb{};
    std::string family{};
    // 0: the shape's own
    std::int64_t vocab = 0;
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;
    std::int64_t layers = 0;
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t context = 0;
    std::int64_t sliding_window = 0;
    bool tied = false;
    bool untied = false;
    CheckpointArgs args{};  // filled by check() from the options
};

void add_flags(FlagSet& flags, Options& o) {
    flags.add("seed", &o.seed, "seed of the weights, which also depend on their tensors' names");
    flags.add("dtype", &o.dtype, "type of the weights: bf16, f16 or f32");
    flags.add(
        "shards", &o.shards, "number of weight files of about equal size; above 1 with an index"
    );
    flags.add("threads", &o.threads, "threads that write the model; 0: one per core");
    flags.add(
        "perturb",
        &o.perturb,
        "SEED:SCALE: move each weight by a random amount, SCALE (up to 10) standard deviations"
    );
    flags.add("family", &o.family, "qwen3, qwen2, llama or mistral; empty: the shape's");
    flags.add("vocab", &o.vocab, "vocabulary entries; 0, here and in the sizes below: the shape's");
    flags.add("hidden", &o.hidden, "hidden size");
    flags.add("ffn", &o.ffn, "intermediate size of the MLP");
    flags.add("layers", &o.layers, "number of layers");
    flags.add("heads", &o.heads, "number of query heads");
    flags.add("kv-heads", &o.kv_heads, "number of key and value heads");
    flags.add("head-dim", &o.head_dim, "size of a head");
    flags.add("context", &o.context, "maximum number of positions");
    flags.add("sliding-window", &o.sliding_window, "positions that a token attends to (mistral)");
    flags.add("tied", &o.tied, "the output head uses the embedding's weights");
    flags.add("untied", &o.untied, "the output head has weights of its own");
}

Result<Perturbation> parse_perturbation(const std::string& text) {
    Perturbation made;
    const char* const end = text.data() + text.size();
    const auto [colon, seed_error] = std::from_chars(text.data(), end, made.seed);
    if (seed_error == std::errc{} && colon != end && *colon == ':') {
        const auto [rest, scale_error] = std::from_chars(colon + 1, end, made.scale);
        const bool is_scale = made.scale > 0 && made.scale <= 10;
        if (scale_error == std::errc{} && rest == end && is_scale) return made;
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "--perturb takes SEED:SCALE, a whole number and a number up to 10 (as 1:0.01), not '{}'",
        text
    );
}

Result<ModelShape> shape_from(const std::string& name, const Options& o) {
    ASSIGN_OR_RETURN(ModelShape shape, find_shape(name));
    if (!o.family.empty()) {
        ASSIGN_OR_RETURN(shape.family, parse_family(o.family));
    }
    const auto take = [](std::int64_t& target, std::int64_t given) {
        if (given != 0) target = given;
    };
    take(shape.vocab, o.vocab);
    take(shape.hidden, o.hidden);
    take(shape.ffn, o.ffn);
    take(shape.layers, o.layers);
    take(shape.heads, o.heads);
    take(shape.kv_heads, o.kv_heads);
    take(shape.head_dim, o.head_dim);
    take(shape.context, o.context);
    if (o.sliding_window != 0) shape.sliding_window = o.sliding_window;
    if (o.tied && o.untied) {
        return make_error(ErrorCode::kInvalidArgument, "--tied and --untied exclude each other");
    }
    if (o.tied || o.untied) shape.tied = o.tied;
    if (const auto problem = invalid(shape)) {
        return make_error(ErrorCode::kInvalidArgument, "shape {}: {}", name, *problem);
    }
    return shape;
}

Result<> check(const FlagSet& flags, Options& o) {
    if (flags.positional().size() != 2) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "takes SHAPE and DIR; SHAPE is one of {}",
            fmt::join(shape_names(), ", ")
        );
    }
    CheckpointArgs& args = o.args;
    args.directory = flags.positional()[1];
    ASSIGN_OR_RETURN(args.shape, shape_from(flags.positional()[0], o));
    ASSIGN_OR_RETURN(args.dtype, parse_dtype(o.dtype));
    args.seed = static_cast<std::uint64_t>(o.seed);
    args.shards = o.shards;
    if (o.threads < 0 || o.threads > kWriterThreadsMax) {
        return make_error(
            ErrorCode::kInvalidArgument, "--threads takes 0 to {}", kWriterThreadsMax
        );
    }
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    args.threads = o.threads == 0 ? std::min(cores, kWriterThreadsMax) : o.threads;
    if (!o.perturb.empty()) {
        ASSIGN_OR_RETURN(args.perturbation, parse_perturbation(o.perturb));
    }
    return Ok{};
}

Result<int> run(const Options& o, const std::vector<std::string>&) {
    const CheckpointArgs& args = o.args;
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(const std::int64_t bytes, write_checkpoint(args));
    const double seconds = seconds_since(begin);
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    fmt::print(
        "{}: {:.3f} GB of weights in {:.2f} s ({:.2f} GB/s, {} threads)\n",
        args.directory,
        gigabytes,
        seconds,
        gigabytes / seconds,
        args.threads
    );
    return 0;
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) {
    using namespace pitstop::bench;
    return run_program<Options>(
        {.name = "pitstop_make_model",
         .about = fmt::format(
             "SHAPE DIR: writes a model directory with random weights. Shapes: {}",
             fmt::join(shape_names(), ", ")
         ),
         .add_flags = add_flags,
         .check = check,
         .run = run},
        argc,
        argv
    );
}
