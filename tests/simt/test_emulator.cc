/* The emulator itself: what it computes, and that it finds and names what kernels do wrong. */
#include "tests/simt/simt.h"

extern "C" {
#include "tests/support/test.h"
}

namespace
{

const simt_order orders[] = {SIMT_FORWARD, SIMT_REVERSE, SIMT_RANDOM};

/* Without dynamic shared memory, at once. */
#define OT_LAUNCH_HERE(kernel, grid, block, ...) OT_LAUNCH(kernel, grid, block, 0, NULL, __VA_ARGS__)

void expect_error(cudaError_t error, cudaError_t expected, const char *text)
{
    assert_int_equal(error, expected);
    if (strstr(simt_error(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", simt_error(), text);
    simt_clear_error();
}

/* ---- What is right ---- */

/* Every thread's place once, by all dimensions. */
__global__ void number_threads(unsigned *out)
{
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 1000 + thread;
}

void every_thread_runs_once(void **)
{
    for (simt_order order : orders) {
        unsigned out[24 * 64] = {0};
        simt_set_order(order, 7);
        assert_int_equal(OT_LAUNCH_HERE(number_threads, dim3(2, 3, 4), dim3(8, 4, 2), out), cudaSuccess);
        for (unsigned i = 0; i < 24 * 64; i++)
            assert_int_equal(out[i], i / 64 * 1000 + i % 64);
    }
}

__global__ void shuffle(int *out)
{
    int lane = (int)threadIdx.x % 32, x = lane * lane;
    int *mine = out + 4 * threadIdx.x;
    mine[0] = __shfl_xor_sync(0xffffffffu, x, 5);
    mine[1] = __shfl_down_sync(0xffffffffu, x, 3);
    mine[2] = __shfl_sync(0xffffffffu, x, 9);
    mine[3] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
}

void shuffles(void **)
{
    for (simt_order order : orders) {
        int out[4 * 64];
        simt_set_order(order, 3);
        assert_int_equal(OT_LAUNCH_HERE(shuffle, 1, 64, out), cudaSuccess);
        for (int i = 0; i < 64; i++) {
            int lane = i % 32, down = lane + 3 < 32 ? lane + 3 : lane;
            assert_int_equal(out[4 * i], (lane ^ 5) * (lane ^ 5));
            assert_int_equal(out[4 * i + 1], down * down);
            assert_int_equal(out[4 * i + 2], 81);
            assert_int_equal((unsigned)out[4 * i + 3], 0x49249249u);
        }
    }
}

/* c = a b through ldmatrix and mma: a [16,16] row by row, b [16,8] row by row, so transposed on its way. */
template <class T> __global__ void multiply(const T *a, const T *b, float *c)
{
    OT_SHARED(T, [16][16], left);
    OT_SHARED(T, [16][16], right);
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        left[i / 16][i % 16] = a[i];
        right[i / 16][i % 16] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : T(0.0f);
    }
    __syncthreads();
    uint32_t x[4], y[4];
    float sum[4] = {0, 0, 0, 0};
    ot_ldmatrix_x4(x, &left[lane % 16][lane / 16 * 8]);
    ot_ldmatrix_x4_trans(y, &right[lane % 16][lane / 16 * 8]);
    ot_mma(T(), sum, x, y);
    for (int e = 0; e < 4; e++)
        c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = sum[e];
}

template <class T> void check_product()
{
    T a[256], b[128];
    float c[128], x[256], y[128];
    for (int i = 0; i < 256; i++)
        a[i] = T(x[i] = (float)(i * 37 % 101 - 50) / 8);
    for (int i = 0; i < 128; i++)
        b[i] = T(y[i] = (float)(i * 53 % 97 - 48) / 4);
    assert_int_equal(OT_LAUNCH_HERE(multiply<T>, 1, 32, (const T *)a, (const T *)b, c), cudaSuccess);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += x[i * 16 + k] * y[k * 8 + j];
            assert_true(c[i * 8 + j] == sum); /* all of it is exact */
        }
}

void matrix_products(void **)
{
    for (simt_order order : orders) {
        simt_set_order(order, 3);
        check_product<__half>();
        check_product<__nv_bfloat16>();
    }
}

/* The hook keeps the launch; its arguments were copied. */
simt_run *kept_run;
void *kept_context;

cudaError_t keep(cudaStream_t, simt_run *run, void *context)
{
    kept_run = run;
    kept_context = context;
    return cudaSuccess;
}

__global__ void put(int *out, int value)
{
    if (threadIdx.x == 0)
        *out = value;
}

void a_hook_decides_when(void **)
{
    int out = 1, value = 5;
    simt_set_hook(keep);
    assert_int_equal(OT_LAUNCH_HERE(put, 1, 32, &out, value), cudaSuccess);
    value = 6;
    assert_int_equal(out, 1);
    assert_int_equal(kept_run(kept_context), cudaSuccess);
    assert_int_equal(out, 5);
    simt_set_hook(NULL);
}

/* ---- What is wrong ---- */

__global__ void read_unwritten(float *out)
{
    OT_SHARED(float, [64], tile);
    out[threadIdx.x] = tile[threadIdx.x];
}

void unwritten_shared_memory_is_poison(void **)
{
    float out[64];
    assert_int_equal(OT_LAUNCH_HERE(read_unwritten, 1, 64, out), cudaSuccess);
    for (float x : out)
        assert_true(x != x);
}

/* Each thread reads what its neighbour wrote; without the barrier. */
__global__ void neighbour(int *out, int has_barrier)
{
    OT_SHARED(int, [64], tile);
    tile[threadIdx.x] = (int)threadIdx.x;
    if (has_barrier)
        __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

void a_missing_barrier_shows(void **)
{
    for (simt_order order : orders)
        for (int has_barrier = 0; has_barrier < 2; has_barrier++) {
            int out[64] = {0}, wrong = 0;
            simt_set_order(order, 3);
            simt_hush();
            cudaError_t error = OT_LAUNCH_HERE(neighbour, 1, 64, out, has_barrier);
            simt_unhush();
            if (SIMT_FINDS_RACES && !has_barrier)
                expect_error(error, cudaErrorLaunchFailure, "data race");
            else
                assert_int_equal(error, cudaSuccess);
            for (int i = 0; i < 64; i++)
                wrong += out[i] != (i ^ 1);
            assert_int_equal(wrong > 0, !has_barrier);
        }
}

enum race {
    BETWEEN_BLOCKS,  /* planted: no atomic */
    BETWEEN_WARPS,   /* the second barrier of a loop that uses one buffer */
    IN_A_WARP,       /* a shuffle for __syncwarp */
    AFTER_A_COPY,    /* of another thread's, for which it alone has waited */
    BEFORE_LDMATRIX, /* whose rows others wrote */
    RACES,
};

__device__ void race_on_one_buffer(unsigned *tile, unsigned *sum, int is_planted)
{
    for (unsigned round = 0; round < 3; round++) {
        tile[threadIdx.x] = threadIdx.x + round;
        __syncthreads();
        *sum += tile[threadIdx.x ^ 32];
        if (!is_planted)
            __syncthreads();
    }
}

/* The thread's result; the planted variant is the wrong one. */
__device__ unsigned race_on(race what, unsigned *word, const float *in, int is_planted)
{
    OT_SHARED(unsigned, [256], tile);
    unsigned me = threadIdx.x, result = 0;
    if (what == BETWEEN_BLOCKS && me == blockIdx.x) {
        if (is_planted)
            ++*word;
        else
            atomicAdd(word, 1u);
    } else if (what == BETWEEN_WARPS) {
        race_on_one_buffer(tile, &result, is_planted);
    } else if (what == IN_A_WARP) {
        tile[me] = me;
        if (is_planted)
            __shfl_xor_sync(0xffffffffu, me, 1);
        else
            __syncwarp();
        result = tile[me ^ 1];
    } else if (what == AFTER_A_COPY) {
        ot_copy_async(&tile[me * 4], in + me * 4, 16);
        ot_copy_commit();
        ot_copy_wait<0>();
        if (!is_planted)
            __syncthreads();
        result = tile[(me ^ 32) * 4];
    } else if (what == BEFORE_LDMATRIX) {
        uint32_t rows[4];
        for (unsigned i = 0; i < 4; i++)
            tile[i * 64 + me] = i * 64 + me;
        if (!is_planted)
            __syncthreads();
        ot_ldmatrix_x4(rows, &tile[me * 4]);
        result = rows[0];
    }
    return result;
}

__global__ void run_race(race what, unsigned *word, const float *in, unsigned *out, int is_planted)
{
    out[blockIdx.x * blockDim.x + threadIdx.x] = race_on(what, word, in, is_planted);
}

void planted_races_are_reported_and_nothing_else(void **)
{
    alignas(16) static float in[256];
    unsigned out[3 * 64];
    for (simt_order order : orders)
        for (int what = 0; what < RACES; what++) {
            unsigned word = 0;
            simt_set_order(order, 5);
            assert_int_equal(OT_LAUNCH_HERE(run_race, 3, 64, (race)what, &word, (const float *)in, out, 0),
                             cudaSuccess);
            assert_int_equal(word, what == BETWEEN_BLOCKS ? 3 : 0);
            if (!SIMT_FINDS_RACES)
                continue;
            simt_hush();
            cudaError_t error = OT_LAUNCH_HERE(run_race, 3, 64, (race)what, &word, (const float *)in, out, 1);
            simt_unhush();
            expect_error(error, cudaErrorLaunchFailure, "a data race");
        }
}

/* The copy is read before its wait, or after. */
__global__ void copy(const float *in, float *out, int waits)
{
    OT_SHARED(float, [32 * 4], tile);
    ot_copy_async(&tile[threadIdx.x * 4], in + threadIdx.x * 4, threadIdx.x == 31 ? 8u : 16u);
    ot_copy_commit();
    if (waits)
        ot_copy_wait<0>();
    else
        ot_copy_wait<1>();
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 4 + i] = tile[threadIdx.x * 4 + i];
}

void a_copy_is_there_after_its_wait(void **)
{
    alignas(16) float in[128], out[128];
    for (int i = 0; i < 128; i++)
        in[i] = (float)i + 1;
    for (int waits = 0; waits < 2; waits++) {
        assert_int_equal(OT_LAUNCH_HERE(copy, 1, 32, in, out, waits), cudaSuccess);
        for (int i = 0; i < 128; i++)
            assert_true(waits ? out[i] == (i < 126 ? in[i] : 0) : out[i] != out[i]);
    }
    expect_error(OT_LAUNCH_HERE(copy, 1, 32, in + 1, out, 1), cudaErrorLaunchFailure, "misaligned");
}

__global__ void diverge(int how)
{
    if (how == 0) {
        if (threadIdx.x < 32)
            __syncthreads();
    } else if (how == 1) {
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
    } else if (how == 2) {
        if (threadIdx.x != 5)
            __shfl_xor_sync(0xffffffffu, 1, 1);
    } else if (how == 3) {
        __shfl_xor_sync(0x0000ffffu, 1, 1);
    } else {
        if (threadIdx.x % 2 == 0)
            __syncwarp();
        else
            __shfl_xor_sync(0xffffffffu, 1, 1);
    }
}

void divergence_is_named(void **)
{
    static const char *const texts[] = {"__syncthreads", "divergent", "have left", "absent lanes",
                                        "divergent"};
    for (simt_order order : orders)
        for (int how = 0; how < 5; how++) {
            simt_set_order(order, 1);
            cudaError_t error = OT_LAUNCH_HERE(diverge, 1, 64, how);
            assert_non_null(strstr(simt_error(), "diverge, block (0,0,0)"));
            assert_non_null(strstr(simt_error(), "test_emulator.cc:"));
            expect_error(error, cudaErrorLaunchFailure, texts[how]);
        }
    int out[64]; /* and the next kernel runs */
    assert_int_equal(OT_LAUNCH_HERE(neighbour, 1, 64, out, 1), cudaSuccess);
}

__global__ void declare_much(char value)
{
    OT_SHARED(char, [60 << 10], tile);
    tile[threadIdx.x] = value;
}

void bad_launches_are_named(void **)
{
    int out;
    expect_error(OT_LAUNCH_HERE(put, 0, 32, &out, 1), cudaErrorInvalidConfiguration, "a grid of (0,1,1)");
    expect_error(OT_LAUNCH_HERE(put, dim3(1, 65536), 32, &out, 1), cudaErrorInvalidConfiguration,
                 "bad launch");
    expect_error(OT_LAUNCH_HERE(put, 1, 1056, &out, 1), cudaErrorInvalidConfiguration,
                 "a block of (1056,1,1)");
    expect_error(OT_LAUNCH_HERE(put, 1, 33, &out, 1), cudaErrorInvalidConfiguration, "bad launch");
    expect_error(OT_LAUNCH(put, 1, 32, 100 << 10, NULL, &out, 1), cudaErrorInvalidConfiguration,
                 "over-large");
    expect_error(OT_LAUNCH_HERE(declare_much, 1, 32, (char)1), cudaErrorLaunchFailure, "over-large");
}

} // namespace

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once),
        cmocka_unit_test(shuffles),
        cmocka_unit_test(matrix_products),
        cmocka_unit_test(a_hook_decides_when),
        cmocka_unit_test(unwritten_shared_memory_is_poison),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(planted_races_are_reported_and_nothing_else),
        cmocka_unit_test(a_copy_is_there_after_its_wait),
        cmocka_unit_test(divergence_is_named),
        cmocka_unit_test(bad_launches_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
