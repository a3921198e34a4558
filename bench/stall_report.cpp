#include "bench/stall_report.h"

#include "bench/machine.h"
#include "bench/text_lines.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::bench {
namespace {

double largest_pause(const std::vector<UpdateWaterfall>& updates) {
    double found = 0;
    for (const UpdateWaterfall& update : updates) found = std::max(found, update.seconds.pause_s);
    return found;
}

double median_of(const std::vector<UpdateWaterfall>& updates, auto figure) {
    std::vector<double> values;
    for (const UpdateWaterfall& update : updates) values.push_back(figure(update));
    return summarize(std::move(values)).p50;
}

Json json_of(const std::vector<UpdateWaterfall>& updates) {
    Json list = Json::array();
    for (const UpdateWaterfall& u : updates) {
        list.push_back({
            {"call_s", u.call_s},
            {"bytes", u.bytes},
        });
        messages::UpdateSeconds(u.seconds).fields_in(
            [&](const char* name, double value, const char* /*about*/) {
                list.back()[name] = value;
            }
        );
    }
    return list;
}

}  // namespace

std::vector<Target> targets_of(const StallReport& r) {
    const double step_ms = r.gap_ms.p50;
    std::vector<Target> targets;
    if (r.gap_update_ms.count > 0 && r.gap_ms.count > 0) {
        targets.push_back(
            {"p99 gap during an update / without", r.gap_update_ms.p99 / r.gap_ms.p99, 1.5}
        );
        targets.push_back(
            {"largest gap during an update", r.gap_update_ms.max / step_ms, 3, true, "steps"}
        );
    }
    if (!r.updates.empty()) {
        targets.push_back({"pause of an update", largest_pause(r.updates) * 1e3, 2, true, "ms"});
    }
    if (!r.idle_updates.empty() && r.copy_rate > 0) {
        const double rate = median_of(r.idle_updates, [](const auto& u) {
            return u.bytes / u.seconds.stage.receive_s;
        });
        targets.push_back({"staging rate / memcpy rate", rate / r.copy_rate, 0.6, false});
        // The digest's cost is the digesting in place plus the time that digesting adds to the
        // copy.
        const double on_the_way = std::max(0.0, r.digested_copy_s - r.copy_s);
        const double share = median_of(r.idle_updates, [&](const auto& u) {
            return (u.seconds.stage.verify_s + on_the_way) / u.seconds.total_s;
        });
        targets.push_back({"digest's share of an update", share, 0.1});
    }
    if (r.pause_idle_ms.count > 0 && step_ms > 0) {
        targets.push_back(
            {"pause + continue, nothing to do", r.pause_idle_ms.p50 / step_ms, 2, true, "steps"}
        );
    }
    if (r.status_ms.count > 0) {
        targets.push_back({"p99 of status during a long pass", r.status_ms.p99, 5, true, "ms"});
    }
    return targets;
}

Json stall_json(const StallReport& r) {
    Json root = report_head("pitstop_stall", r.command);
    root["machine"]["device"] = r.device;
    root["model"] = {{"name", r.model}, {"tp", r.tp}};
    root["streams"] = r.num_streams;
    root["targets"] = Json::array();
    for (const Target& target : targets_of(r)) {
        root["targets"].push_back({
            {"name", target.name},
            {"value", target.value},
            {target.is_upper ? "at_most" : "at_least", target.limit},
            {"unit", target.unit},
            {"holds", target.holds()},
        });
    }
    root["gap_ms"] = json_of(r.gap_ms);
    root["gap_update_ms"] = json_of(r.gap_update_ms);
    root["updates"] = json_of(r.updates);
    root["idle_updates"] = json_of(r.idle_updates);
    root["copy_bytes_per_s"] = r.copy_rate;
    root["checkpoint_copy_s"] = {{"plain", r.copy_s}, {"digested", r.digested_copy_s}};
    root["pause_continue_idle_ms"] = json_of(r.pause_idle_ms);
    root["pause_continue_streams_ms"] = json_of(r.pause_streams_ms);
    root["pause_gap_ms"] = json_of(r.pause_gap_ms);
    root["status_long_pass_ms"] = json_of(r.status_ms);
    root["long_pass_s"] = r.long_pass_s;
    return root;
}

namespace {

void add_waterfalls(
    TextLines& lines, std::string_view name, const std::vector<UpdateWaterfall>& updates
) {
    for (const UpdateWaterfall& u : updates) {
        lines.add(
            "  "
            "{:<16}{:>8.3f}{:>8.3f}{:>8.3f}{:>8.3f}{:>8.3f}{:>8.3f}{:>8.3f}{:>8.4f}{:>8.4f}{:>7."
            "2f}",
            name,
            u.seconds.total_s,
            u.seconds.stage.open_s,
            u.seconds.stage.wait_s,
            u.seconds.stage.receive_s,
            u.seconds.stage.verify_s,
            u.seconds.stage.rest_s,
            u.seconds.vote_s,
            u.seconds.pause_s,
            u.seconds.commit_s,
            u.bytes / u.seconds.stage.receive_s / 1e9
        );
    }
}

void add_head(TextLines& lines, const StallReport& r) {
    const Machine machine = this_machine();
    lines.add("stall: {}, tp {}, {} streams, on {}", r.model, r.tp, r.num_streams, r.device);
    lines.add(
        "  machine   {}, {} cores; memcpy {:.2f} GB/s",
        machine.cpu,
        machine.cores,
        r.copy_rate / 1e9
    );
    lines.add(
        "  a copy of the checkpoint {:.4f} s, digested {:.4f} s", r.copy_s, r.digested_copy_s
    );
    lines.add("  commit    {}\n", source_commit());
    for (const Target& t : targets_of(r)) {
        lines.add(
            "  {:<36}{:>9.3f} {:<6} {} {:.3g}   {}",
            t.name,
            t.value,
            t.unit,
            t.is_upper ? "at most " : "at least",
            t.limit,
            t.holds() ? "holds" : "MISSED"
        );
    }
}

}  // namespace

std::string stall_table(const StallReport& r) {
    TextLines lines(34);
    add_head(lines, r);
    lines.add("");
    lines.add_summary_head();
    lines.add_summary("gap between tokens", r.gap_ms);
    lines.add_summary("the same during an update", r.gap_update_ms);
    lines.add_summary("the same across a pause", r.pause_gap_ms);
    lines.add_summary("pause + continue, nothing to do", r.pause_idle_ms);
    lines.add_summary("pause + continue, streams", r.pause_streams_ms);
    lines.add_summary(fmt::format("status during a pass of {:.1f} s", r.long_pass_s), r.status_ms);
    lines.add("");
    lines.add(
        "  {:<16}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>7}",
        "update, seconds",
        "total",
        "open",
        "wait",
        "receive",
        "verify",
        "rest",
        "vote",
        "pause",
        "commit",
        "GB/s"
    );
    add_waterfalls(lines, "while decoding", r.updates);
    add_waterfalls(lines, "while idle", r.idle_updates);
    return lines.take();
}

}  // namespace pitstop::bench
