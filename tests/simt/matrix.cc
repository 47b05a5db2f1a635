/* The matrix instructions of the emulator, on what the 32 lanes of a warp hold (PTX ISA, "Matrix fragments for
 * mma.m16n8k16" and "ldmatrix"). */
#include "tests/simt/simt.h"

template <int transposed> static void load_matrices(const void *const in[32], void *const out[32])
{
    for (int lane = 0; lane < 32; lane++) {
        uint32_t *r = (uint32_t *)out[lane];
        for (int matrix = 0; matrix < 4; matrix++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                int row = transposed ? lane % 4 * 2 + e : lane / 4,
                    column = transposed ? lane / 4 : lane % 4 * 2 + e;
                const uint16_t *values = *(const uint16_t *const *)in[matrix * 8 + row];
                pair[e] = values[column];
            }
            r[matrix] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

void ot_ldmatrix_x4(uint32_t out[4], const void *row, const char *file, int line)
{
    simt_read_row(row);
    simt_warp("ldmatrix", 0xffffffffu, file, line, &row, out, load_matrices<0>);
}

void ot_ldmatrix_x4_trans(uint32_t out[4], const void *row, const char *file, int line)
{
    simt_read_row(row);
    simt_warp("ldmatrix", 0xffffffffu, file, line, &row, out, load_matrices<1>);
}

namespace
{

struct fragments {
    const uint32_t *a, *b;
};

struct half_table {
    float value[65536];
    half_table()
    {
        for (unsigned i = 0; i < 65536; i++) {
            __half_raw raw;
            raw.x = (unsigned short)i;
            value[i] = __half2float(__half(raw));
        }
    }
};

float widen(__half, uint32_t bits)
{
    static const half_table table;
    return table.value[bits & 0xffff];
}

float widen(__nv_bfloat16, uint32_t bits)
{
    return __uint_as_float(bits << 16);
}

/* Row and column of element e of register r in a lane's part of the 16x16 matrix a. */
template <class T> void multiply_fragments(const void *const in[32], void *const out[32])
{
    float a[16][16], b[16][8], sum[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const fragments *f = (const fragments *)in[lane];
        const float *c = (const float *)out[lane];
        int group = lane / 4, pair = lane % 4 * 2;
        for (int e = 0; e < 2; e++) {
            for (int r = 0; r < 4; r++)
                a[group + r % 2 * 8][pair + e + r / 2 * 8] = widen(T(), f->a[r] >> (16 * e));
            for (int r = 0; r < 2; r++)
                b[pair + e + r * 8][group] = widen(T(), f->b[r] >> (16 * e));
            sum[group][pair + e] = c[e];
            sum[group + 8][pair + e] = c[2 + e];
        }
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                sum[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < 32; lane++) {
        float *c = (float *)out[lane];
        for (int e = 0; e < 4; e++)
            c[e] = sum[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2];
    }
}

} // namespace

void ot_mma(__half, float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    fragments f = {a, b};
    simt_warp("mma", 0xffffffffu, file, line, &f, c, multiply_fragments<__half>);
}

void ot_mma(__nv_bfloat16, float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    fragments f = {a, b};
    simt_warp("mma", 0xffffffffu, file, line, &f, c, multiply_fragments<__nv_bfloat16>);
}
