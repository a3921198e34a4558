#include "kernels/draws.h"

namespace pitstop::kernels {

void check(const NoteDrawsArgs& args) {
    CHECK(args.num_rows >= 0);
    CHECK(
        args.num_rows == 0 ||
        (args.rows != nullptr && args.num_nonfinite != nullptr && args.ids != nullptr)
    );
}

void note_draws_ref(const NoteDrawsArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.num_rows; ++r) {
        const DrawnRow& row = args.rows[r];
        TokenId id{0};
        float kept_min = -std::numeric_limits<float>::infinity();
        if (row.choice != nullptr) {
            kept_min = row.choice->kept_min;
            id = drawn_id(*row.choice);
            if (row.pick != nullptr) row.pick->id = row.choice->id;
            if (row.softmax != nullptr) row.softmax->kept_min = row.choice->kept_min;
        }
        if (args.num_nonfinite[r] != 0) id = kNotFiniteDraw;
        if (row.token != nullptr) *row.token = id;
        args.ids[r] = id;
        if (args.kept_mins != nullptr) args.kept_mins[r] = kept_min;
    }
}

}  // namespace pitstop::kernels
