/* Attention forward, in blocks with a running maximum and sum (Dao et al. 2022, 2023; Milakov & Gimelshein
 * 2018): a block of threads has 64 queries of one head, a warp 16 of them, and goes through the keys that
 * they see. The keys that come next are copied while the weights are made, the values while the scores are. */
#include "kernels/cuda/attention.cuh"

namespace
{

template <class T, int HD> struct forward_shape : share<HD, 4, sizeof(T) == 2 ? 256 : HD == 128 ? 64 : 128> {
    static constexpr int KEYS = sizeof(T) == 4 ? 16 : HD <= 128 ? 64 : 32;
    static constexpr int SHARED_BYTES = tile<T, HD>::bytes(share<HD, 4, 256>::ROWS + 2 * KEYS);
};

/* Of one row: the largest score so far in powers of 2, and the sum of this thread's weights. */
struct running_row {
    float max, sum;
    int first; /* key that it sees */
};

/* The maximum over the four threads that share a row. */
__device__ inline float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

__device__ inline float row_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/* Scores to weights, in place, for rows t and t + 8; `out` is brought to the new maximum. */
template <int KEYS, int COLUMNS>
__device__ inline void soften(float s[KEYS / 8][4], float out[COLUMNS / 8][4], running_row row[2],
                              float scale, int t, int key, int masked)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        running_row &r = row[half];
        float max = r.max;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                int j = key + n * 8 + lane_number() % 4 * 2 + e % 2;
                s[n][e] = masked && (j < r.first || j > t + 8 * half) ? -INFINITY : s[n][e] * scale;
                max = fmaxf(max, s[n][e]);
            }
        max = row_max(max);
        float base = max == -INFINITY ? 0.0f : max; /* nothing seen yet */
        float factor = exp2f(r.max - base), sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[n][e] = exp2f(s[n][e] - base);
                sum += s[n][e];
            }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            out[n][2 * half] *= factor;
            out[n][2 * half + 1] *= factor;
        }
        r.max = max;
        r.sum = r.sum * factor + sum;
    }
}

template <class T, int HD>
__global__ void __launch_bounds__(forward_shape<T, HD>::THREADS, 1)
    attention_forward(ot_attention a, int aligned)
{
    typedef forward_shape<T, HD> shape;
    constexpr int KEYS = shape::KEYS, QUERIES = shape::ROWS, COLUMNS = shape::COLUMNS;
    typedef tile<T, HD> tile_type;
    OT_SHARED_DYNAMIC(shared);
    T *q_tile = (T *)(void *)shared, *k_tile = q_tile + QUERIES * tile_type::STRIDE,
      *v_tile = k_tile + KEYS * tile_type::STRIDE;
    /* The last queries, which see the most keys, go first. */
    int query = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, T_ = (int)a.T;
    size_t h = blockIdx.y, b = blockIdx.z, h_kv = h / (a.NH / a.NKV);
    rows<const T> q = head_of<const T>(a, a.q, a.ld_q, b, h, aligned);
    rows<const T> k = head_of<const T>(a, a.k, a.ld_kv, b, h_kv, aligned);
    rows<const T> v = head_of<const T>(a, a.v, a.ld_kv, b, h_kv, aligned);

    int warp_row = shape::row(), chunk = shape::template chunk<T>(), t = query + warp_row + lane_number() / 4;
    running_row row[2] = {{-INFINITY, 0, first_key(a, b, t)}, {-INFINITY, 0, first_key(a, b, t + 8)}};
    int last = query + QUERIES <= T_ ? query + QUERIES - 1 : T_ - 1, all_see = first_key(a, b, last);
    float out[COLUMNS / 8][4];
    clear<COLUMNS / 8>(out);

    int key = first_key(a, b, query) / KEYS * KEYS;
    load_tile<T, HD, QUERIES>(q_tile, q, query);
    load_tile<T, HD, KEYS>(k_tile, k, key);
    ot_copy_commit();
    for (; key <= last; key += KEYS) {
        ot_copy_wait<0>();
        __syncthreads(); /* the keys are there, the previous values have been used */
        load_tile<T, HD, KEYS>(v_tile, v, key);
        ot_copy_commit();
        float s[KEYS / 8][4];
        clear<KEYS / 8>(s);
        products<T, HD>::template rows_by_rows<KEYS>(s, q_tile, warp_row, k_tile);
        __syncthreads(); /* the keys have been used */
        if (key + KEYS <= last)
            load_tile<T, HD, KEYS>(k_tile, k, key + KEYS);
        ot_copy_commit();
        soften<KEYS, COLUMNS>(s, out, row, a.scale * LOG2E, t, key, key + KEYS > query + 1 || key < all_see);
        ot_copy_wait<1>();
        __syncthreads(); /* the values are there */
        products<T, HD>::template by_columns<KEYS, COLUMNS>(out, s, v_tile, chunk);
    }

    float sum[2] = {row_sum(row[0].sum), row_sum(row[1].sum)};
    rows<T> to = head_of<T>(a, a.out, a.ld_out, b, h, aligned);
    store_product<T, HD, COLUMNS>(out, 1.0f / sum[0], 1.0f / sum[1], q_tile, warp_row, to, query + warp_row,
                                  chunk);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (a.lse != NULL && chunk == 0 && lane_number() % 4 == 0 && t + 8 * half < T_)
            a.lse[(b * a.NH + h) * a.T + (size_t)(t + 8 * half)] = (row[half].max + log2f(sum[half])) * LN2;
}

} // namespace

cudaError_t ot_cuda_attention_forward(cudaStream_t stream, const ot_attention *args)
{
    const ot_attention a = *args;
    if (a.B * a.T * a.NH == 0)
        return cudaSuccess;
    if (!is_launchable(a))
        return cudaErrorInvalidValue;
    return with_head(a, [&](auto type, auto head) {
        using T = decltype(type);
        constexpr int HD = decltype(head)::value;
        typedef forward_shape<T, HD> shape;
        return OT_LAUNCH((attention_forward<T, HD>),
                         dim3(blocks_of(a.T, shape::ROWS), (unsigned)a.NH, (unsigned)a.B), shape::THREADS,
                         (size_t)shape::SHARED_BYTES, stream, a, is_aligned_attention(a, a.ld_q, a.ld_kv));
    });
}

uint64_t ot_cuda_attention_forward_workspace(const ot_attention *args)
{
    (void)args;
    return 0;
}
