/* RMSNorm and LayerNorm, over rows or over the heads of a row; and the sums over rows that weights and biases
 * of all kinds get as their gradient.
 *
 * A group is normed by a team: a warp where it is short, a block of threads otherwise. What a thread has read
 * of its group stays in registers, up to HELD packs; of a longer group the rest is read again. */
#include "kernels/cuda/common.cuh"

namespace
{

constexpr unsigned HELD = 4;         /* packs of a group that a thread keeps */
constexpr unsigned SUM_BLOCKS = 256; /* of threads that go through the rows in backward */

/* Groups of up to so many elements get a warp. */
constexpr size_t WARP_GROUP = 32 * PACK * HELD;

struct group_rows {
    ot_norm a;
    int aligned;

    template <class T> __device__ const T *at(const void *x, size_t ld, size_t g) const
    {
        return (const T *)x + g / a.H * ld + g % a.H * a.C;
    }
};

/* Elements begin .. of the pack that slot j of lane t holds. */
template <unsigned TEAM> __device__ inline size_t pack_begin(unsigned j)
{
    return ((size_t)j * TEAM + threadIdx.x % TEAM) * PACK;
}

/* function(j, begin, left) for this thread's packs of a row: those below HELD with a constant j. */
template <unsigned TEAM, class F> __device__ inline void for_held_packs(size_t C, F function)
{
#pragma unroll
    for (unsigned j = 0; j < HELD; j++) {
        size_t begin = pack_begin<TEAM>(j);
        if (begin < C)
            function(j, begin, C - begin);
    }
}

template <unsigned TEAM, class F> __device__ inline void for_other_packs(size_t C, F function)
{
    for (unsigned j = HELD; pack_begin<TEAM>(j) < C; j++)
        function(pack_begin<TEAM>(j), C - pack_begin<TEAM>(j));
}

/* ---- Forward ---- */

__device__ inline float sum_of(const pack &x, size_t left)
{
    float sum = 0;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++)
        sum += k < left ? x.v[k] : 0.0f;
    return sum;
}

__device__ inline float square_sum_of(const pack &x, float mean, size_t left)
{
    float sum = 0;
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        float d = x.v[k] - mean;
        sum += k < left ? d * d : 0.0f;
    }
    return sum;
}

template <class T>
__device__ inline void norm_pack(const ot_norm &a, T *y, int aligned, float mean, float rstd, size_t i,
                                 size_t left, pack x)
{
    pack weight = load_pack((const T *)a.weight + i, left, aligned), bias;
    if (a.bias != NULL)
        bias = load_pack((const T *)a.bias + i, left, aligned);
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        x.v[k] = (x.v[k] - mean) * rstd * weight.v[k];
        if (a.bias != NULL)
            x.v[k] += bias.v[k];
    }
    store_pack(y + i, left, aligned, x);
}

template <class T, unsigned TEAM>
__device__ inline void norm_group(const group_rows &rows, size_t g, int is_there)
{
    const ot_norm &a = rows.a;
    const T *x = rows.at<T>(a.x, a.ld_x, g);
    T *y = (T *)rows.at<T>(a.y, a.ld_y, g);
    size_t C = is_there ? a.C : 0;
    pack held[HELD];
    float sum = 0, mean = 0;
    for_held_packs<TEAM>(C, [&](unsigned j, size_t i, size_t left) {
        held[j] = load_pack(x + i, left, rows.aligned);
        sum += sum_of(held[j], left);
    });
    if (a.kind == OT_LAYERNORM) {
        for_other_packs<TEAM>(
            C, [&](size_t i, size_t left) { sum += sum_of(load_pack(x + i, left, rows.aligned), left); });
        mean = team_sum<TEAM>(sum) / (float)a.C;
    }
    sum = 0;
    for_held_packs<TEAM>(C,
                         [&](unsigned j, size_t, size_t left) { sum += square_sum_of(held[j], mean, left); });
    for_other_packs<TEAM>(C, [&](size_t i, size_t left) {
        sum += square_sum_of(load_pack(x + i, left, rows.aligned), mean, left);
    });
    float rstd = 1.0f / sqrtf(team_sum<TEAM>(sum) / (float)a.C + a.eps);
    for_held_packs<TEAM>(C, [&](unsigned j, size_t i, size_t left) {
        norm_pack(a, y, rows.aligned, mean, rstd, i, left, held[j]);
    });
    for_other_packs<TEAM>(C, [&](size_t i, size_t left) {
        norm_pack(a, y, rows.aligned, mean, rstd, i, left, load_pack(x + i, left, rows.aligned));
    });
    if (!is_there || threadIdx.x % TEAM != 0)
        return;
    if (a.kind == OT_LAYERNORM && a.mean != NULL)
        a.mean[g] = mean;
    if (a.rstd != NULL)
        a.rstd[g] = rstd;
}

template <class T, unsigned TEAM>
__global__ void __launch_bounds__(BLOCK_THREADS) norm_forward(group_rows rows)
{
    size_t g = (size_t)blockIdx.x * (BLOCK_THREADS / TEAM) + threadIdx.x / TEAM;
    norm_group<T, TEAM>(rows, g, g < rows.a.N * rows.a.H);
}

/* ---- Backward ---- */

struct gradient_sums {
    float gradient, times_xhat;
};

/* xhat in place of x, dy * weight in place of `gradient`; returns what they add to the sums. */
template <class T>
__device__ inline void sum_gradients(const group_rows &rows, const T *x, const T *dy, float mean, float rstd,
                                     size_t i, size_t left, pack *xhat, pack *d, gradient_sums *sums)
{
    *xhat = load_pack(x + i, left, rows.aligned);
    *d = load_pack(dy + i, left, rows.aligned);
    pack weight = load_pack((const T *)rows.a.weight + i, left, rows.aligned);
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        xhat->v[k] = (xhat->v[k] - mean) * rstd;
        float gradient = d->v[k] * weight.v[k];
        sums->gradient += gradient;
        sums->times_xhat += k < left ? gradient * xhat->v[k] : 0.0f;
    }
}

template <class T>
__device__ inline void store_dx(const group_rows &rows, size_t g, float rstd, const gradient_sums &average,
                                size_t i, size_t left, const pack &xhat, const pack &d)
{
    const ot_norm &a = rows.a;
    T *dx = (T *)rows.at<T>(a.dx, a.ld_dx, g) + i;
    pack weight = load_pack((const T *)a.weight + i, left, rows.aligned), value, residual;
    if (a.dresidual != NULL)
        residual = load_pack(rows.at<T>(a.dresidual, a.ld_dx, g) + i, left, rows.aligned);
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        value.v[k] = rstd * (d.v[k] * weight.v[k] - xhat.v[k] * average.times_xhat - average.gradient);
        if (a.dresidual != NULL)
            value.v[k] = residual.v[k] + value.v[k];
    }
    store_pack(dx, left, rows.aligned, value);
}

/* The part of dweight and dbias that a thread adds up for its packs. */
struct column_sums {
    pack weight[HELD], bias[HELD];
};

/* The sums of one team, to be added up by add_column_sums: [2,teams,C]. */
__device__ inline float *sums_at(const ot_norm &a, unsigned which, size_t teams, size_t team)
{
    return (float *)a.workspace + (which * teams + team) * a.C;
}

__device__ inline void store_sums(const ot_norm &a, size_t teams, size_t team, size_t i, size_t left,
                                  const pack &weight, const pack &bias)
{
    if (a.dweight != NULL)
        store_pack(sums_at(a, 0, teams, team) + i, left, a.C % 4 == 0, weight);
    if (a.dbias != NULL)
        store_pack(sums_at(a, 1, teams, team) + i, left, a.C % 4 == 0, bias);
}

__device__ inline void add_to_columns(const pack &xhat, const pack &d, pack *weight, pack *bias)
{
#pragma unroll
    for (unsigned k = 0; k < PACK; k++) {
        weight->v[k] += d.v[k] * xhat.v[k];
        bias->v[k] += d.v[k];
    }
}

template <class T, unsigned TEAM>
__device__ inline void backward_group(const group_rows &rows, size_t g, int is_there, size_t teams,
                                      size_t team, column_sums *columns)
{
    const ot_norm &a = rows.a;
    const T *x = rows.at<T>(a.x, a.ld_x, g), *dy = rows.at<T>(a.dy, a.ld_y, g);
    size_t C = is_there ? a.C : 0;
    float mean = is_there && a.kind == OT_LAYERNORM ? a.mean[g] : 0.0f, rstd = is_there ? a.rstd[g] : 0.0f;
    pack xhat[HELD], d[HELD];
    gradient_sums sums = {0, 0};
    for_held_packs<TEAM>(C, [&](unsigned j, size_t i, size_t left) {
        sum_gradients(rows, x, dy, mean, rstd, i, left, &xhat[j], &d[j], &sums);
        add_to_columns(xhat[j], d[j], &columns->weight[j], &columns->bias[j]);
    });
    for_other_packs<TEAM>(C, [&](size_t i, size_t left) {
        pack h, e;
        sum_gradients(rows, x, dy, mean, rstd, i, left, &h, &e, &sums);
        pack weight = pack(), bias = pack();
        if (a.dweight != NULL)
            weight = load_pack(sums_at(a, 0, teams, team) + i, left, a.C % 4 == 0);
        if (a.dbias != NULL)
            bias = load_pack(sums_at(a, 1, teams, team) + i, left, a.C % 4 == 0);
        add_to_columns(h, e, &weight, &bias);
        store_sums(a, teams, team, i, left, weight, bias);
    });
    if (a.dx == NULL)
        return;
    gradient_sums average = {a.kind == OT_LAYERNORM ? team_sum<TEAM>(sums.gradient) / (float)a.C : 0.0f,
                             team_sum<TEAM>(sums.times_xhat) / (float)a.C};
    for_held_packs<TEAM>(C, [&](unsigned j, size_t i, size_t left) {
        store_dx<T>(rows, g, rstd, average, i, left, xhat[j], d[j]);
    });
    for_other_packs<TEAM>(C, [&](size_t i, size_t left) {
        pack h, e;
        gradient_sums unused = {0, 0};
        sum_gradients(rows, x, dy, mean, rstd, i, left, &h, &e, &unused);
        store_dx<T>(rows, g, rstd, average, i, left, h, e);
    });
}

/* A team takes every teams-th group, so that the sums do not depend on the card. */
template <class T, unsigned TEAM>
__global__ void __launch_bounds__(BLOCK_THREADS) norm_backward(group_rows rows, size_t teams)
{
    const ot_norm &a = rows.a;
    size_t groups = a.N * a.H, team = (size_t)blockIdx.x * (BLOCK_THREADS / TEAM) + threadIdx.x / TEAM;
    column_sums columns;
#pragma unroll
    for (unsigned j = 0; j < HELD; j++)
        columns.weight[j] = columns.bias[j] = pack();
    for_other_packs<TEAM>(
        a.C, [&](size_t i, size_t left) { store_sums(a, teams, team, i, left, pack(), pack()); });
    for (size_t first = 0; first < groups; first += teams)
        backward_group<T, TEAM>(rows, first + team, first + team < groups, teams, team, &columns);
    for_held_packs<TEAM>(a.C, [&](unsigned j, size_t i, size_t left) {
        store_sums(a, teams, team, i, left, columns.weight[j], columns.bias[j]);
    });
}

/* ---- Sums over rows ---- */

/* out[i] += sum over the rows of `sums`, a warp's worth of columns and as many lanes of rows to a block. */
__global__ void __launch_bounds__(BLOCK_THREADS)
    add_column_sums(const float *sums, size_t rows, size_t C, float *out)
{
    constexpr unsigned LANES = BLOCK_THREADS / 32;
    OT_SHARED(float, [LANES][32], lane);
    size_t i = (size_t)blockIdx.x * 32 + threadIdx.x % 32;
    unsigned first = threadIdx.x / 32;
    float sum = 0;
    if (i < C)
        for (size_t row = first; row < rows; row += LANES)
            sum += sums[row * C + i];
    lane[first][threadIdx.x % 32] = sum;
    __syncthreads();
    if (first != 0 || i >= C)
        return;
    for (unsigned k = 1; k < LANES; k++)
        sum += lane[k][threadIdx.x];
    out[i] += sum;
}

cudaError_t add_sums(cudaStream_t stream, const float *sums, size_t rows, size_t C, float *out)
{
    return OT_LAUNCH(add_column_sums, blocks_of(C, 32), BLOCK_THREADS, 0, stream, sums, rows, C, out);
}

constexpr unsigned BIAS_ROWS = 128; /* lanes of rows, and rows of the workspace */

/* Rows n, n + BIAS_ROWS, ... of a pack of columns. */
template <class T> struct sum_rows {
    ot_bias_backward a;
    int aligned;

    __device__ void operator()(size_t row, size_t i, size_t left) const
    {
        pack sum = pack();
        for (size_t n = row; n < a.N; n += BIAS_ROWS) {
            pack x = load_pack((const T *)a.dy + n * a.ld_dy + i, left, aligned);
#pragma unroll
            for (unsigned k = 0; k < PACK; k++)
                sum.v[k] += x.v[k];
        }
        store_pack((float *)a.workspace + row * a.OC + i, left, 0, sum);
    }
};

/* ---- Launches ---- */

template <unsigned TEAM, class T> cudaError_t launch_forward(cudaStream_t stream, const group_rows &rows)
{
    return OT_LAUNCH((norm_forward<T, TEAM>), blocks_of(rows.a.N * rows.a.H, BLOCK_THREADS / TEAM),
                     BLOCK_THREADS, 0, stream, rows);
}

unsigned backward_blocks(const ot_norm &a)
{
    size_t needed = blocks_of(a.N * a.H, a.C <= WARP_GROUP ? BLOCK_THREADS / 32 : 1);
    return (unsigned)(needed < SUM_BLOCKS ? needed : SUM_BLOCKS);
}

size_t backward_teams(const ot_norm &a)
{
    return (size_t)backward_blocks(a) * (a.C <= WARP_GROUP ? BLOCK_THREADS / 32 : 1);
}

template <unsigned TEAM, class T> cudaError_t launch_backward(cudaStream_t stream, const group_rows &rows)
{
    const ot_norm &a = rows.a;
    size_t teams = backward_teams(a);
    cudaError_t error =
        OT_LAUNCH((norm_backward<T, TEAM>), backward_blocks(a), BLOCK_THREADS, 0, stream, rows, teams);
    if (error == cudaSuccess && a.dweight != NULL)
        error = add_sums(stream, (const float *)a.workspace, teams, a.C, a.dweight);
    if (error == cudaSuccess && a.dbias != NULL)
        error = add_sums(stream, (const float *)a.workspace + teams * a.C, teams, a.C, a.dbias);
    return error;
}

} // namespace

cudaError_t ot_cuda_norm_forward(cudaStream_t stream, const ot_norm *args)
{
    ot_norm a = *args;
    if (a.N * a.H == 0)
        return cudaSuccess;
    int aligned = is_aligned(a.x) && is_aligned(a.y) && is_aligned(a.weight) && is_aligned(a.bias) &&
                  is_aligned(a.ld_x, a.dtype) && is_aligned(a.ld_y, a.dtype) && is_aligned(a.C, a.dtype);
    return with_dtype(a.dtype, [=](auto type) {
        using T = decltype(type);
        return a.C <= WARP_GROUP ? launch_forward<32, T>(stream, group_rows{a, aligned})
                                 : launch_forward<BLOCK_THREADS, T>(stream, group_rows{a, aligned});
    });
}

cudaError_t ot_cuda_norm_backward(cudaStream_t stream, const ot_norm *args)
{
    ot_norm a = *args;
    if (a.N * a.H == 0)
        return cudaSuccess;
    int aligned = is_aligned(a.x) && is_aligned(a.dy) && is_aligned(a.weight) && is_aligned(a.dresidual) &&
                  is_aligned(a.dx) && is_aligned(a.ld_x, a.dtype) && is_aligned(a.ld_y, a.dtype) &&
                  is_aligned(a.ld_dx, a.dtype) && is_aligned(a.C, a.dtype);
    return with_dtype(a.dtype, [=](auto type) {
        using T = decltype(type);
        return a.C <= WARP_GROUP ? launch_backward<32, T>(stream, group_rows{a, aligned})
                                 : launch_backward<BLOCK_THREADS, T>(stream, group_rows{a, aligned});
    });
}

uint64_t ot_cuda_norm_workspace(const ot_norm *args)
{
    return 2 * (uint64_t)backward_teams(*args) * args->C * sizeof(float);
}

cudaError_t ot_cuda_bias_backward(cudaStream_t stream, const ot_bias_backward *args)
{
    ot_bias_backward a = *args;
    if (a.N == 0 || a.OC == 0)
        return cudaSuccess;
    return with_dtype(a.dtype, [=](auto type) {
        int aligned = is_aligned(a.dy) && is_aligned(a.ld_dy, a.dtype);
        cudaError_t error = for_each_row_pack(stream, BIAS_ROWS, a.OC, sum_rows<decltype(type)>{a, aligned});
        return error != cudaSuccess ? error
                                    : add_sums(stream, (const float *)a.workspace, BIAS_ROWS, a.OC, a.dbias);
    });
}

uint64_t ot_cuda_bias_backward_workspace(const ot_bias_backward *args)
{
    return (uint64_t)BIAS_ROWS * args->OC * sizeof(float);
}
