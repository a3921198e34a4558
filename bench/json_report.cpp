#include "bench/json_report.h"

#include "bench/machine.h"

#include <fstream>

namespace pitstop::bench {

Json report_head(std::string_view program, const std::vector<std::string>& command) {
    const Machine machine = this_machine();
    return {
        {"bench", std::string(program)},
        {"date", utc_now()},
        {"commit", source_commit()},
        {"command", command},
        {"machine",
         {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel}}},
    };
}

Json json_of(const Summary& summary) {
    return {
        {"count", summary.count},
        {"mean", summary.mean},
        {"p50", summary.p50},
        {"p90", summary.p90},
        {"p99", summary.p99},
        {"max", summary.max},
    };
}

Result<> write_report(const std::string& path, const Json& report) {
    if (path.empty()) return Ok{};
    std::ofstream file(path, std::ios::binary);
    file << report.dump(2) << '\n';
    if (file.flush()) return Ok{};
    return make_error(ErrorCode::kUnavailable, "cannot write {}", path);
}

}  // namespace pitstop::bench
