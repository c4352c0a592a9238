#include "matmul_f32.h"

#include <algorithm>

#include "threads.h"

namespace taximeter {
namespace {

struct Cut {
    MatmulF32Kernel kernel;
    const MatmulF32* job;
    std::int64_t rows, columns;  // of one task
    std::int64_t column_tasks;
};

constexpr std::int64_t tasks_of(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

void run_task(const void* context, std::int64_t task, float* scratch) noexcept {
    const Cut& cut = *static_cast<const Cut*>(context);
    const std::int64_t row = task / cut.column_tasks * cut.rows, column = task % cut.column_tasks * cut.columns;
    cut.kernel(cut.job, row, std::min(row + cut.rows, cut.job->rows), column,
               std::min(column + cut.columns, cut.job->n), scratch);
}

}  // namespace

void matmul_f32(MatmulF32Kernel kernel, const MatmulF32& job) {
    if (job.rows == 0 || job.n == 0) return;
    // Many rows: a part of 128 rows of w is half a megabyte and stays in the second-level cache while the tiles of x
    // pass by. Few rows: w is read once from memory anyway, and small tasks share it out evenly.
    const bool many = job.rows > kMatmulTileRows;
    Cut cut{kernel, &job, many ? 16 * kMatmulTileRows : job.rows, many ? 128 : 32, 0};
    cut.column_tasks = tasks_of(job.n, cut.columns);
    thread_pool().run(tasks_of(job.rows, cut.rows) * cut.column_tasks, kMatmulScratchFloats, run_task, &cut);
}

}  // namespace taximeter
