/* What this machine's cores can do at most: read memory, and multiply and add in int8 and bf16.
 *
 *   cc -O3 -pthread yardstick.c -o yardstick && ./yardstick THREADS WORKING_SET_MB
 *
 * Prints one JSON object. Each figure is the best of several short turns: a limit is what the machine can do, not what it
 * did while somebody else was on it. Reads are of memory in huge pages where the system gives them: once of a buffer far
 * beyond any cache, and again and again of one as large as a model's weights, which a large last cache may hold in part.
 * Units that this CPU lacks are null. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { TURNS = 7, MOST_THREADS = 256 };

typedef double (*Work)(int thread, int threads); /* returns bytes or operations done */

static int thread_count;
static pthread_barrier_t gate;
static Work work;
static char *buffer;
static size_t read_bytes;
static volatile uint64_t sink;
static struct { double done, start_s, end_s; } turn_of[MOST_THREADS];

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *run_thread(void *argument) {
    int thread = (int)(intptr_t)argument;
    pthread_barrier_wait(&gate);
    turn_of[thread].start_s = now_s();
    turn_of[thread].done = work(thread, thread_count);
    turn_of[thread].end_s = now_s();
    return NULL;
}

/* The best rate of several turns with every thread at it, in 1e9 a second. */
static double best_rate(Work what) {
    double best = 0;
    work = what;
    for (int turn = 0; turn < TURNS; turn++) {
        pthread_t threads[MOST_THREADS];
        for (int i = 0; i < thread_count; i++) pthread_create(&threads[i], NULL, run_thread, (void *)(intptr_t)i);
        double done = 0, start_s = 0, end_s = 0;
        for (int i = 0; i < thread_count; i++) {
            pthread_join(threads[i], NULL);
            done += turn_of[i].done;
            if (i == 0 || turn_of[i].start_s < start_s) start_s = turn_of[i].start_s;
            if (i == 0 || turn_of[i].end_s > end_s) end_s = turn_of[i].end_s;
        }
        if (done / (end_s - start_s) / 1e9 > best) best = done / (end_s - start_s) / 1e9;
    }
    return best;
}

/* --- Reading ------------------------------------------------------------------------------------------------------ */

#define READ_LOOP(VECTOR, ZERO, ADD, FOLD)                                        \
    VECTOR sum[8];                                                                \
    for (int j = 0; j < 8; j++) sum[j] = ZERO;                                    \
    for (size_t i = 0; i + 8 * sizeof(VECTOR) <= bytes; i += 8 * sizeof(VECTOR))  \
        for (int j = 0; j < 8; j++) sum[j] = ADD(sum[j], ((const VECTOR *)(from + i))[j]); \
    for (int j = 1; j < 8; j++) sum[0] = ADD(sum[0], sum[j]);                     \
    return FOLD;

#define PLAIN_ADD(a, b) ((a) + (b))
static uint64_t read_plain(const char *from, size_t bytes) { READ_LOOP(uint64_t, 0, PLAIN_ADD, sum[0]) }
#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *from, size_t bytes) {
    READ_LOOP(__m256i, _mm256_setzero_si256(), _mm256_add_epi64, (uint64_t)_mm256_extract_epi64(sum[0], 0))
}
__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *from, size_t bytes) {
    READ_LOOP(__m512i, _mm512_setzero_si512(), _mm512_add_epi64, (uint64_t)_mm512_reduce_add_epi64(sum[0]))
}
#endif

static uint64_t read_all(const char *from, size_t bytes) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return read_avx512(from, bytes);
    if (__builtin_cpu_supports("avx2")) return read_avx2(from, bytes);
#endif
    return read_plain(from, bytes);
}

static double do_read(int thread, int threads) {
    size_t part = read_bytes / (size_t)threads / 4096 * 4096, passes = ((size_t)768 << 20) / read_bytes + 1;
    for (size_t pass = 0; pass < passes; pass++) sink += read_all(buffer + (size_t)thread * part, part);
    return (double)(part * passes);
}

/* --- Arithmetic --------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define PEAK(NAME, TARGET, VECTOR, ZERO, STEP, OPERATIONS, FOLD)                                     \
    __attribute__((target(TARGET))) static double NAME(int thread, int threads) {                    \
        (void)threads;                                                                               \
        const long turns = 5000000;                                                                 \
        VECTOR sum[12];                                                                              \
        __m512i a = _mm512_set1_epi32(0x3f803f80 + thread), b = a;                                   \
        for (int j = 0; j < 12; j++) sum[j] = ZERO;                                                  \
        for (long i = 0; i < turns; i++) {                                                           \
            __asm__ volatile("" : "+v"(a), "+v"(b));                                                 \
            for (int j = 0; j < 12; j++) sum[j] = STEP;                                              \
        }                                                                                            \
        for (int j = 0; j < 12; j++) sink += (uint64_t)FOLD;                                         \
        return (double)turns * 12 * (OPERATIONS);                                                    \
    }
PEAK(do_int8_vnni, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(sum[j], a, b), 128,
     _mm512_reduce_add_epi32(sum[j]))
PEAK(do_bf16_dot, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(),
     _mm512_dpbf16_ps(sum[j], (__m512bh)a, (__m512bh)b), 64, _mm512_reduce_add_ps(sum[j]))

/* All eight tiles are 16 rows of 64 bytes. */
static const uint8_t tile_shape[64] = {1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64,
                                       [30] = 64, [48] = 16, 16, 16, 16, 16, 16, 16, 16};
static const char zeros[1024];
#define TILES                                                         \
    const long turns = 1000000;                                       \
    (void)thread, (void)threads;                                      \
    _tile_loadconfig(tile_shape);                                     \
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);       \
    _tile_loadd(4, zeros, 64); _tile_loadd(5, zeros, 64); _tile_loadd(6, zeros, 64); _tile_loadd(7, zeros, 64);
#define FOUR(MULTIPLY) MULTIPLY(0, 4, 6); MULTIPLY(1, 4, 7); MULTIPLY(2, 5, 6); MULTIPLY(3, 5, 7)
__attribute__((target("amx-tile,amx-int8"))) static double do_int8_amx(int thread, int threads) {
    TILES
    for (long i = 0; i < turns; i++) { FOUR(_tile_dpbusd); }
    _tile_release();
    return (double)turns * 4 * 16 * 16 * 64 * 2;
}
__attribute__((target("amx-tile,amx-bf16"))) static double do_bf16_amx(int thread, int threads) {
    TILES
    for (long i = 0; i < turns; i++) { FOUR(_tile_dpbf16ps); }
    _tile_release();
    return (double)turns * 4 * 16 * 16 * 32 * 2;
}

#include <cpuid.h>
static int has_leaf7(int sub, int which, int bit) { /* which: eax, ebx, ecx, edx */
    unsigned r[4] = {0};
    return __get_cpuid_count(7, (unsigned)sub, &r[0], &r[1], &r[2], &r[3]) && (r[which] >> bit & 1);
}
static int may_use_tiles(void) { /* the system must hand the tiles out first: arch_prctl ARCH_REQ_XCOMP_PERM, XTILEDATA */
    return has_leaf7(0, 3, 24) && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

static void report(const char *name, double rate, int last) {
    if (rate > 0) printf("\"%s\": %.2f%s", name, rate, last ? "}\n" : ", ");
    else printf("\"%s\": null%s", name, last ? "}\n" : ", ");
}

int main(int argc, char **argv) {
    thread_count = argc > 1 ? atoi(argv[1]) : 1;
    size_t working_set = (size_t)(argc > 2 ? atoi(argv[2]) : 100) << 20, far = (size_t)1 << 30;
    if (thread_count < 1 || thread_count > MOST_THREADS || working_set < 1 << 20 || working_set > far) return 2;
    pthread_barrier_init(&gate, NULL, (unsigned)thread_count);
    if (posix_memalign((void **)&buffer, 2 << 20, far)) return 1;
    madvise(buffer, far, MADV_HUGEPAGE);
    memset(buffer, 1, far);
    printf("{");
    read_bytes = far;
    report("read_gb_per_s", best_rate(do_read), 0);
    read_bytes = working_set;
    report("read_weights_gb_per_s", best_rate(do_read), 0);
    double int8_vnni = 0, int8_amx = 0, bf16_dot = 0, bf16_amx = 0;
#if defined(__x86_64__)
    int wide = __builtin_cpu_supports("avx512f"), tiles = may_use_tiles();
    if (wide && __builtin_cpu_supports("avx512vnni")) int8_vnni = best_rate(do_int8_vnni);
    if (wide && has_leaf7(1, 0, 5)) bf16_dot = best_rate(do_bf16_dot);
    if (tiles && has_leaf7(0, 3, 25)) int8_amx = best_rate(do_int8_amx);
    if (tiles && has_leaf7(0, 3, 22)) bf16_amx = best_rate(do_bf16_amx);
#endif
    report("int8_vnni_gop_per_s", int8_vnni, 0);
    report("int8_amx_gop_per_s", int8_amx, 0);
    report("bf16_dot_gflop_per_s", bf16_dot, 0);
    report("bf16_amx_gflop_per_s", bf16_amx, 1);
    return 0;
}
