// The durations of an update's parts; every millisecond of the update is in some field.
#pragma once

namespace pitstop::messages {

// The seconds of one rank's stage. Their sum is the time from the rank's order to its latest
// answer. If several threads worked, the seconds are those of the slowest one.
struct StageSeconds {
    double open_s = 0;
    double wait_s = 0;
    double receive_s = 0;
    double verify_s = 0;
    double rest_s = 0;

    [[nodiscard]] double sum() const { return open_s + wait_s + receive_s + verify_s + rest_s; }

    template <class F>
    void fields_in(F&& f) {
        f("open_s",
          open_s,
          "seconds of allocating memory, opening the source, checking and closing it");
        f("wait_s", wait_s, "seconds of waiting for the sender, or for earlier work");
        f("receive_s", receive_s, "seconds of copying into place, including digesting on the way");
        f("verify_s", verify_s, "seconds of digesting separately from copying");
        f("rest_s", rest_s, "seconds of rest, so that steps could run (--stage-share)");
    }
    friend bool operator==(const StageSeconds&, const StageSeconds&) = default;
};

// The seconds of the whole update; `stage` is that of the slowest rank.
struct UpdateSeconds {
    StageSeconds stage{};
    double stage_s = 0;
    double vote_s = 0;
    double pause_s = 0;
    double commit_s = 0;
    double total_s = 0;

    template <class F>
    void fields_in(F&& f) {
        stage.fields_in(f);
        f("stage_s",
          stage_s,
          "seconds from the update's first call to the last rank's vote; includes the five times "
          "above");
        f("vote_s", vote_s, "seconds from the last rank's vote to the commit order");
        f("pause_s", pause_s, "the most seconds that a replica ran no step; part of commit_s");
        f("commit_s", commit_s, "seconds from the commit order to the last rank's swap");
        f("total_s", total_s, "seconds from the call to the answer");
    }
    friend bool operator==(const UpdateSeconds&, const UpdateSeconds&) = default;
};

}  // namespace pitstop::messages
