/* What attention's kernels are made of: tiles of rows in shared memory, and the two products of a warp with
 * such tiles, on tensor cores for 16-bit types and in plain FP32 otherwise.
 *
 * A warp has 16 rows of a product. A thread holds of them, as mma.m16n8k16 lays out its results, for every 8
 * columns n: acc[n][e] in row lane/4 + e/2*8 and column n*8 + lane%4*2 + e%2. HD is the width of the tiles;
 * a head dimension below it is filled up with zeros. */
#ifndef OT_KERNELS_CUDA_ATTENTION_CUH
#define OT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"

namespace
{

constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;

__device__ inline int lane_number()
{
    return (int)(threadIdx.x % 32);
}

__device__ inline int warp_number()
{
    return (int)(threadIdx.x / 32);
}

/* ---- Tiles ---- */

/* Rows of HD elements in chunks of 16 bytes, so placed that 8 rows' chunks of one number are in different
 * banks: exchanged within every 8 of a row where a row has a multiple of 8, or one chunk apart. */
template <class T, int HD> struct tile {
    static constexpr int CHUNK = 16 / sizeof(T), CHUNKS = HD / CHUNK;
    static constexpr bool EXCHANGED = CHUNKS % 8 == 0;
    static constexpr int STRIDE = EXCHANGED ? HD : HD + CHUNK;

    static constexpr int bytes(int rows)
    {
        return rows * STRIDE * (int)sizeof(T);
    }

    __device__ static T *at(T *base, int row, int chunk)
    {
        return base + row * STRIDE + (EXCHANGED ? chunk ^ (row & 7) : chunk) * CHUNK;
    }

    __device__ static const T *at(const T *base, int row, int chunk)
    {
        return base + row * STRIDE + (EXCHANGED ? chunk ^ (row & 7) : chunk) * CHUNK;
    }
};

/* One head of a tensor: the rows of a sequence, `ld` elements apart, of which `width` count. `aligned`: rows
 * and width are multiples of 16 bytes. */
template <class T> struct rows {
    T *base;
    size_t ld;
    int count, width, aligned;
};

/* Fills a tile with the rows from `first` on, zeros beyond their end and width; by all threads of the block.
 * Asynchronous where it can be: commit, wait and synchronise. */
template <class T, int HD, int ROWS>
__device__ inline void load_tile(T *shared, const rows<const T> &x, int first)
{
    typedef tile<T, HD> tile_type;
    for (int i = (int)threadIdx.x; i < ROWS * tile_type::CHUNKS; i += (int)blockDim.x) {
        int row = i / tile_type::CHUNKS, chunk = i % tile_type::CHUNKS, column = chunk * tile_type::CHUNK;
        int left = first + row < x.count ? x.width - column : 0;
        left = left < 0 ? 0 : left < tile_type::CHUNK ? left : tile_type::CHUNK;
        const T *from = left > 0 ? x.base + (size_t)(first + row) * x.ld + column : x.base;
        T *to = tile_type::at(shared, row, chunk);
        if (x.aligned) {
            ot_copy_async(to, from, (unsigned)left * (unsigned)sizeof(T));
        } else {
#pragma unroll
            for (int k = 0; k < tile_type::CHUNK; k++)
                if (k < left)
                    to[k] = from[k];
                else
                    narrow(&to[k], 0.0f);
        }
    }
}

/* A warp writes its 16 rows of a tile, from row `row` of it on, to the rows from `first` on: the chunks
 * begin .. end-1. */
template <class T, int HD>
__device__ inline void store_rows(const T *shared, int row, const rows<T> &x, int first, int begin, int end)
{
    typedef tile<T, HD> tile_type;
    for (int i = lane_number(); i < 16 * (end - begin); i += 32) {
        int k = i / (end - begin), chunk = begin + i % (end - begin), column = chunk * tile_type::CHUNK;
        if (first + k >= x.count)
            continue;
        T *to = x.base + (size_t)(first + k) * x.ld + column;
        const T *from = tile_type::at(shared, row + k, chunk);
        if (x.aligned && column < x.width) {
            *(vector<4> *)(void *)to = *(const vector<4> *)(const void *)from;
        } else {
#pragma unroll
            for (int j = 0; j < tile_type::CHUNK; j++)
                if (column + j < x.width)
                    to[j] = from[j];
        }
    }
}

/* A warp's accumulators times `factor`, of columns from chunk `begin` on, into its rows of a tile and out. */
template <class T, int HD, int COLUMNS>
__device__ inline void store_product(const float acc[COLUMNS / 8][4], float factor_low, float factor_high,
                                     T *shared, int row, const rows<T> &x, int first, int begin)
{
    typedef tile<T, HD> tile_type;
    int lane = lane_number();
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = n * 8 + lane % 4 * 2 + e % 2;
            T *to = tile_type::at(shared, row + lane / 4 + e / 2 * 8, begin + column / tile_type::CHUNK);
            narrow(&to[column % tile_type::CHUNK], acc[n][e] * (e < 2 ? factor_low : factor_high));
        }
    __syncwarp();
    store_rows<T, HD>(shared, row, x, first, begin, begin + COLUMNS / tile_type::CHUNK);
}

/* ---- Products ---- */

__device__ inline uint32_t pair_of(__half, float low, float high)
{
    return __half_as_ushort(__float2half_rn(low)) | (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
}

__device__ inline uint32_t pair_of(__nv_bfloat16, float low, float high)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

template <class T, int HD> struct products {
    typedef tile<T, HD> tile_type;

    /* acc [16,N] += A B^T: A the 16 rows of tile `a` from `row` on, B the N rows of tile `b`. */
    template <int N> __device__ static void rows_by_rows(float acc[N / 8][4], const T *a, int row, const T *b)
    {
        int lane = lane_number();
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            uint32_t left[4];
            ot_ldmatrix_x4(left, tile_type::at(a, row + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int n = 0; n < N / 16; n++) {
                uint32_t right[4];
                ot_ldmatrix_x4(right,
                               tile_type::at(b, n * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
                ot_mma(T(), acc[2 * n], left, right);
                ot_mma(T(), acc[2 * n + 1], left, right + 2);
            }
        }
    }

    /* acc [16,COLUMNS] += P B: P [16,N] rounded to T, B the N rows of tile `b`, columns from chunk `begin`. */
    template <int N, int COLUMNS>
    __device__ static void by_columns(float acc[COLUMNS / 8][4], const float p[N / 8][4], const T *b,
                                      int begin)
    {
        int lane = lane_number();
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            const float *low = p[2 * k], *high = p[2 * k + 1];
            uint32_t left[4] = {pair_of(T(), low[0], low[1]), pair_of(T(), low[2], low[3]),
                                pair_of(T(), high[0], high[1]), pair_of(T(), high[2], high[3])};
#pragma unroll
            for (int n = 0; n < COLUMNS / 16; n++) {
                uint32_t right[4];
                ot_ldmatrix_x4_trans(right, tile_type::at(b, k * 16 + lane % 16, begin + 2 * n + lane / 16));
                ot_mma(T(), acc[2 * n], left, right);
                ot_mma(T(), acc[2 * n + 1], left, right + 2);
            }
        }
    }
};

template <int HD> struct products<float, HD> {
    typedef tile<float, HD> tile_type;

    template <int N>
    __device__ static void rows_by_rows(float acc[N / 8][4], const float *a, int row, const float *b)
    {
        int lane = lane_number();
#pragma unroll 1
        for (int chunk = 0; chunk < tile_type::CHUNKS; chunk++) {
            float4 low = *(const float4 *)(const void *)tile_type::at(a, row + lane / 4, chunk);
            float4 high = *(const float4 *)(const void *)tile_type::at(a, row + lane / 4 + 8, chunk);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int column = n * 8 + lane % 4 * 2 + e;
                    float4 x = *(const float4 *)(const void *)tile_type::at(b, column, chunk);
                    acc[n][e] += low.x * x.x + low.y * x.y + low.z * x.z + low.w * x.w;
                    acc[n][2 + e] += high.x * x.x + high.y * x.y + high.z * x.z + high.w * x.w;
                }
        }
    }

    template <int N, int COLUMNS>
    __device__ static void by_columns(float acc[COLUMNS / 8][4], const float p[N / 8][4], const float *b,
                                      int begin)
    {
        int lane = lane_number();
#pragma unroll
        for (int k = 0; k < N; k++) {
            int owner = lane / 4 * 4 + k % 8 / 2;
            float low = __shfl_sync(ALL_LANES, p[k / 8][k % 2], owner);
            float high = __shfl_sync(ALL_LANES, p[k / 8][2 + k % 2], owner);
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                int column = n * 8 + lane % 4 * 2;
                float2 x =
                    *(const float2 *)(const void *)(tile_type::at(b, k, begin + column / 4) + column % 4);
                acc[n][0] += low * x.x;
                acc[n][1] += low * x.y;
                acc[n][2] += high * x.x;
                acc[n][3] += high * x.y;
            }
        }
    }
};

template <int N> __device__ inline void clear(float acc[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[n][e] = 0;
}

/* ---- Shares ---- */

/* A block of threads has 16 rows for each of WARPS warps; where a thread cannot hold its part of whole rows,
 * PARTS warps share the rows, each with COLUMNS of the columns. */
template <int HD, int WARPS_, int COLUMNS_> struct share {
    static constexpr int WARPS = WARPS_, ROWS = 16 * WARPS_, COLUMNS = COLUMNS_ < HD ? COLUMNS_ : HD;
    static constexpr int PARTS = HD / COLUMNS, THREADS = 32 * WARPS * PARTS;

    __device__ static int row()
    {
        return warp_number() % WARPS * 16;
    }

    template <class T> __device__ static int chunk()
    {
        return warp_number() / WARPS * (COLUMNS / tile<T, HD>::CHUNK);
    }
};

/* ---- What a query sees ---- */

/* The first key of token t of sequence b; t itself, or more, for what is beyond the end. It never falls. */
__device__ inline int first_key(const ot_attention &a, size_t b, int t)
{
    if (t >= (int)a.T)
        return t;
    int first = a.doc_start != NULL ? a.doc_start[b * a.T + (size_t)t] : 0;
    int inside = a.window > 0 && (size_t)t + 1 > a.window ? t + 1 - (int)a.window : 0;
    return first > inside ? first : inside;
}

/* ---- Heads and launches ---- */

/* Head h of sequence b, in a tensor whose rows are `ld` apart. */
template <class T, class P>
__device__ inline rows<T> head_of(const ot_attention &a, P *x, size_t ld, size_t b, size_t h, int aligned)
{
    return rows<T>{(T *)x + b * a.T * ld + h * a.HD, ld, (int)a.T, (int)a.HD, aligned};
}

inline int is_aligned_attention(const ot_attention &a, size_t ld_q, size_t ld_kv)
{
    return is_aligned(a.HD, a.dtype) && is_aligned(ld_q, a.dtype) && is_aligned(ld_kv, a.dtype) &&
           is_aligned(a.ld_out, a.dtype) && is_aligned(a.q) && is_aligned(a.k) && is_aligned(a.v) &&
           is_aligned(a.out);
}

inline int is_launchable(const ot_attention &a)
{
    return a.HD > 0 && a.HD <= OT_CUDA_HEAD_DIM_MAX && a.NKV > 0 && a.NH % a.NKV == 0 && a.NH <= 65535 &&
           a.B <= 65535 && a.T <= 0x7ffffff0;
}

template <int HD> struct width {
    static constexpr int value = HD;
};

/* function(T(), width<HD>()) with the narrowest tile that has room for a head. FP32 has fewer of them. */
template <class F> inline cudaError_t with_head(const ot_attention &a, F function)
{
    return with_dtype(a.dtype, [&](auto type) {
        using T = decltype(type);
        if (a.HD <= 64)
            return function(type, width<64>());
        if constexpr (sizeof(T) == 2) {
            if (a.HD <= 80)
                return function(type, width<80>());
            if (a.HD <= 96)
                return function(type, width<96>());
        }
        if (a.HD <= 128)
            return function(type, width<128>());
        return function(type, width<256>());
    });
}

} // namespace

#endif
