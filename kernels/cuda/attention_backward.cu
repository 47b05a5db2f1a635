/* Attention backward (kernels.h, ot_attention), without atomics: one kernel has blocks of keys and goes
 * through the queries that see them, for dk and dv; another has blocks of queries and goes through their keys,
 * for dq. Both make the weights again; that is two products more than with one kernel, and the same bytes
 * every time. */
#include "kernels/cuda/attention.cuh"

namespace
{

constexpr int warps_of(size_t size, int HD)
{
    return size == 2 || HD <= 128 ? 4 : 2;
}

/* Blocks of keys and of queries; STEP: rows of the other side at a time. */
template <class T, int HD> struct key_shape : share<HD, warps_of(sizeof(T), HD), sizeof(T) == 4 ? 64 : 128> {
    static constexpr int STEP = sizeof(T) == 2 && HD <= 128 ? 32 : 16;
    static constexpr int SHARED_BYTES = tile<T, HD>::bytes(32 * warps_of(sizeof(T), HD) + 2 * STEP);
};

template <class T, int HD>
struct query_shape : share<HD, warps_of(sizeof(T), HD), sizeof(T) == 4 ? 128 : 256> {
    static constexpr int STEP = sizeof(T) == 2 ? 32 : 16;
    static constexpr int SHARED_BYTES = tile<T, HD>::bytes(32 * warps_of(sizeof(T), HD) + 2 * STEP);
};

/* ---- D = dout . out ---- */

/* A warp for each head of each token; a lane has up to 8 elements. */
template <class T> __global__ void __launch_bounds__(BLOCK_THREADS) row_products(ot_attention a, int aligned)
{
    size_t i = (size_t)blockIdx.x * (BLOCK_THREADS / 32) + threadIdx.x / 32;
    if (i >= a.B * a.T * a.NH)
        return;
    size_t n = i / a.NH, h = i % a.NH, at = n * a.ld_out + h * a.HD, column = (size_t)lane_number() * PACK;
    float sum = 0;
    if (column < a.HD) {
        pack x = load_pack((const T *)a.out + at + column, a.HD - column, aligned);
        pack d = load_pack((const T *)a.dout + at + column, a.HD - column, aligned);
#pragma unroll
        for (unsigned k = 0; k < PACK; k++)
            sum += x.v[k] * d.v[k];
    }
    sum = warp_sum(sum);
    if (lane_number() == 0)
        ((float *)a.workspace)[(n / a.T * a.NH + h) * a.T + n % a.T] = sum;
}

/* ---- dq ---- */

template <class T, int HD>
__global__ void __launch_bounds__(query_shape<T, HD>::THREADS, 1) query_gradients(ot_attention a, int aligned)
{
    typedef query_shape<T, HD> shape;
    typedef tile<T, HD> tile_type;
    constexpr int STEP = shape::STEP, COLUMNS = shape::COLUMNS;
    OT_SHARED_DYNAMIC(shared);
    T *q_tile = (T *)(void *)shared, *d_tile = q_tile + shape::ROWS * tile_type::STRIDE,
      *k_tile = d_tile + shape::ROWS * tile_type::STRIDE, *v_tile = k_tile + STEP * tile_type::STRIDE;
    int query = (int)(gridDim.x - 1 - blockIdx.x) * shape::ROWS, T_ = (int)a.T;
    size_t h = blockIdx.y, b = blockIdx.z, h_kv = h / (a.NH / a.NKV), statistics = (b * a.NH + h) * a.T;
    rows<const T> k = head_of<const T>(a, a.k, a.ld_kv, b, h_kv, aligned);
    rows<const T> v = head_of<const T>(a, a.v, a.ld_kv, b, h_kv, aligned);

    int warp_row = shape::row(), chunk = shape::template chunk<T>(), t = query + warp_row + lane_number() / 4,
        first[2];
    float lse[2], D[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = t + 8 * half;
        first[half] = first_key(a, b, at);
        lse[half] = at < T_ ? a.lse[statistics + (size_t)at] * LOG2E : INFINITY; /* a weight of 0 */
        D[half] = at < T_ ? ((const float *)a.workspace)[statistics + (size_t)at] : 0.0f;
    }
    int last = query + shape::ROWS <= T_ ? query + shape::ROWS - 1 : T_ - 1, all_see = first_key(a, b, last);
    float dq[COLUMNS / 8][4];
    clear<COLUMNS / 8>(dq);

    int key = first_key(a, b, query) / STEP * STEP;
    load_tile<T, HD, shape::ROWS>(q_tile, head_of<const T>(a, a.q, a.ld_q, b, h, aligned), query);
    load_tile<T, HD, shape::ROWS>(d_tile, head_of<const T>(a, a.dout, a.ld_out, b, h, aligned), query);
    load_tile<T, HD, STEP>(v_tile, v, key);
    load_tile<T, HD, STEP>(k_tile, k, key);
    ot_copy_commit();
    for (; key <= last; key += STEP) {
        ot_copy_wait<0>();
        __syncthreads();
        float s[STEP / 8][4], dp[STEP / 8][4];
        clear<STEP / 8>(s);
        clear<STEP / 8>(dp);
        products<T, HD>::template rows_by_rows<STEP>(dp, d_tile, warp_row, v_tile);
        products<T, HD>::template rows_by_rows<STEP>(s, q_tile, warp_row, k_tile);
        __syncthreads(); /* the values have been used */
        if (key + STEP <= last)
            load_tile<T, HD, STEP>(v_tile, v, key + STEP);
        int masked = key + STEP > query + 1 || key < all_see;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int j = key + n * 8 + lane_number() % 4 * 2 + e % 2, half = e / 2;
                float p = masked && (j < first[half] || j > t + 8 * half)
                              ? 0.0f
                              : exp2f(s[n][e] * (a.scale * LOG2E) - lse[half]);
                s[n][e] = p * (dp[n][e] - D[half]);
            }
        products<T, HD>::template by_columns<STEP, COLUMNS>(dq, s, k_tile, chunk);
        __syncthreads(); /* the keys have been used */
        if (key + STEP <= last)
            load_tile<T, HD, STEP>(k_tile, k, key + STEP);
        ot_copy_commit();
    }
    store_product<T, HD, COLUMNS>(dq, a.scale, a.scale, q_tile, warp_row,
                                  head_of<T>(a, a.dq, a.ld_dq, b, h, aligned), query + warp_row, chunk);
}

/* ---- dk, dv ---- */

/* The first token that sees none of the keys up to `last`, or T: first_key never falls. */
__device__ inline int end_of_queries(const ot_attention &a, size_t b, int last)
{
    int begin = last, end = (int)a.T;
    while (end - begin > 1) {
        int middle = begin + (end - begin) / 2;
        if (first_key(a, b, middle) > last)
            end = middle;
        else
            begin = middle;
    }
    return end;
}

/* What a block needs of each query, for STEP of them. */
template <int STEP> struct query_statistics {
    float lse[STEP], D[STEP];
    int first[STEP];
};

/* Those from `query` on of head h; by all threads of the block. */
template <int STEP>
__device__ inline void load_statistics(query_statistics<STEP> &x, const ot_attention &a, size_t b, size_t h,
                                       int query)
{
    int i = (int)threadIdx.x, t = query + i;
    if (i >= STEP)
        return;
    size_t at = (b * a.NH + h) * a.T + (size_t)t;
    x.first[i] = first_key(a, b, t);
    x.lse[i] = t < (int)a.T ? a.lse[at] * LOG2E : INFINITY; /* a weight of 0 */
    x.D[i] = t < (int)a.T ? ((const float *)a.workspace)[at] : 0.0f;
}

template <class T, int HD>
__global__ void __launch_bounds__(key_shape<T, HD>::THREADS, 1) key_gradients(ot_attention a, int aligned)
{
    typedef key_shape<T, HD> shape;
    typedef tile<T, HD> tile_type;
    constexpr int STEP = shape::STEP, COLUMNS = shape::COLUMNS;
    OT_SHARED_DYNAMIC(shared);
    OT_SHARED(query_statistics<STEP>, [1], statistics);
    T *k_tile = (T *)(void *)shared, *v_tile = k_tile + shape::ROWS * tile_type::STRIDE,
      *q_tile = v_tile + shape::ROWS * tile_type::STRIDE, *d_tile = q_tile + STEP * tile_type::STRIDE;
    int key = (int)blockIdx.x * shape::ROWS, T_ = (int)a.T;
    size_t h_kv = blockIdx.y, b = blockIdx.z, group = a.NH / a.NKV;
    int warp_row = shape::row(), chunk = shape::template chunk<T>(), j = key + warp_row + lane_number() / 4;

    int last = key + shape::ROWS <= T_ ? key + shape::ROWS - 1 : T_ - 1;
    int begin = key / STEP * STEP, steps = (end_of_queries(a, b, last) - begin + STEP - 1) / STEP;
    int count = steps * (int)group; /* through the queries of one head after the other */
    float dk[COLUMNS / 8][4], dv[COLUMNS / 8][4];
    clear<COLUMNS / 8>(dk);
    clear<COLUMNS / 8>(dv);

    load_tile<T, HD, shape::ROWS>(k_tile, head_of<const T>(a, a.k, a.ld_kv, b, h_kv, aligned), key);
    load_tile<T, HD, shape::ROWS>(v_tile, head_of<const T>(a, a.v, a.ld_kv, b, h_kv, aligned), key);
    for (int i = 0; i < count; i++) {
        size_t h = h_kv * group + (size_t)(i / steps);
        int query = begin + i % steps * STEP;
        load_tile<T, HD, STEP>(q_tile, head_of<const T>(a, a.q, a.ld_q, b, h, aligned), query);
        load_tile<T, HD, STEP>(d_tile, head_of<const T>(a, a.dout, a.ld_out, b, h, aligned), query);
        ot_copy_commit();
        load_statistics<STEP>(statistics[0], a, b, h, query);
        ot_copy_wait<0>();
        __syncthreads();
        float p[STEP / 8][4], ds[STEP / 8][4];
        clear<STEP / 8>(p);
        clear<STEP / 8>(ds);
        products<T, HD>::template rows_by_rows<STEP>(p, k_tile, warp_row, q_tile);
        products<T, HD>::template rows_by_rows<STEP>(ds, v_tile, warp_row, d_tile);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int k = n * 8 + lane_number() % 4 * 2 + e % 2, at = j + e / 2 * 8;
                int seen = at <= query + k && at >= statistics[0].first[k];
                p[n][e] = seen ? exp2f(p[n][e] * (a.scale * LOG2E) - statistics[0].lse[k]) : 0.0f;
                ds[n][e] = p[n][e] * (ds[n][e] - statistics[0].D[k]);
            }
        products<T, HD>::template by_columns<STEP, COLUMNS>(dv, p, d_tile, chunk);
        products<T, HD>::template by_columns<STEP, COLUMNS>(dk, ds, q_tile, chunk);
        __syncthreads(); /* the queries have been used */
    }
    store_product<T, HD, COLUMNS>(dk, a.scale, a.scale, k_tile, warp_row,
                                  head_of<T>(a, a.dk, a.ld_dkv, b, h_kv, aligned), key + warp_row, chunk);
    store_product<T, HD, COLUMNS>(dv, 1.0f, 1.0f, v_tile, warp_row,
                                  head_of<T>(a, a.dv, a.ld_dkv, b, h_kv, aligned), key + warp_row, chunk);
}

template <class T, int HD>
cudaError_t launch_backward(cudaStream_t stream, const ot_attention &a, int aligned)
{
    typedef key_shape<T, HD> keys;
    typedef query_shape<T, HD> queries;
    cudaError_t error = OT_LAUNCH(row_products<T>, blocks_of(a.B * a.T * a.NH, BLOCK_THREADS / 32),
                                  BLOCK_THREADS, 0, stream, a, aligned);
    if (error == cudaSuccess)
        error = OT_LAUNCH((key_gradients<T, HD>),
                          dim3(blocks_of(a.T, keys::ROWS), (unsigned)a.NKV, (unsigned)a.B), keys::THREADS,
                          (size_t)keys::SHARED_BYTES, stream, a, aligned);
    if (error == cudaSuccess)
        error = OT_LAUNCH((query_gradients<T, HD>),
                          dim3(blocks_of(a.T, queries::ROWS), (unsigned)a.NH, (unsigned)a.B),
                          queries::THREADS, (size_t)queries::SHARED_BYTES, stream, a, aligned);
    return error;
}

} // namespace

cudaError_t ot_cuda_attention_backward(cudaStream_t stream, const ot_attention *args)
{
    const ot_attention a = *args;
    if (a.B * a.T * a.NH == 0)
        return cudaSuccess;
    if (!is_launchable(a))
        return cudaErrorInvalidValue;
    int aligned = is_aligned_attention(a, a.ld_q, a.ld_kv) && is_aligned_attention(a, a.ld_dq, a.ld_dkv) &&
                  is_aligned(a.dout) && is_aligned(a.dq) && is_aligned(a.dk) && is_aligned(a.dv);
    return with_head(a, [&](auto type, auto head) {
        return launch_backward<decltype(type), decltype(head)::value>(stream, a, aligned);
    });
}

uint64_t ot_cuda_attention_backward_workspace(const ot_attention *args)
{
    return (uint64_t)args->B * args->T * args->NH * sizeof(float);
}
