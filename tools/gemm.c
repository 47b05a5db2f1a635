#include "tools/gemm.h"

#include <string.h>

#include "io/clock.h"
#include "io/host.h"

ot_status ot_gemm_open_device(int64_t threads, const char *isa, ot_device **device, ot_stream **stream)
{
    const ot_device_options options = {.kind = "cpu",
                                       .memory_bytes = (uint64_t)1 << 46, /* as much as there is */
                                       .threads = (int)threads,
                                       .isa = strcmp(isa, "auto") == 0 ? NULL : isa};
    const ot_stream_options compute = {.kind = OT_STREAM_COMPUTE, .name = "compute"};
    OT_TRY(ot_device_open(&options, device));
    return ot_stream_open(*device, &compute, stream);
}

ot_status ot_gemm_check(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most)
        return ot_fail(OT_ERR_USAGE, "--%s: %lld is not in %lld to %lld", name, (long long)value,
                       (long long)least, (long long)most);
    return OT_OK;
}

uint64_t ot_gemm_take(uint64_t *at, uint64_t bytes)
{
    uint64_t begin = *at;
    *at = ot_round_up(begin + bytes, OT_PAGE_BYTES) + 5 * OT_PAGE_BYTES;
    return begin;
}

void ot_gemm_fill(ot_dtype dtype, void *data, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t random = (uint32_t)(i * 2654435761u + seed) * 2246822519u >> 16;
        /* Either sign, exponents just below 1, any mantissa. */
        uint32_t sign = random & 1, exponent = random >> 1 & 1, mantissa = random >> 2 & 0x7f;
        if (dtype == OT_FP32)
            ((uint32_t *)data)[i] = sign << 31 | (125 + exponent) << 23 | mantissa << 16;
        else if (dtype == OT_BF16)
            ((uint16_t *)data)[i] = (uint16_t)(sign << 15 | (125 + exponent) << 7 | mantissa);
        else
            ((uint16_t *)data)[i] = (uint16_t)(sign << 15 | (13 + exponent) << 10 | mantissa << 3);
    }
}

ot_status ot_gemm_run_plain(const ot_tile *plain, const void *a, const void *b, void *c, double flops,
                            double *rate)
{
    int64_t start = ot_clock_ns();
    OT_TRY(ot_plain_run(plain, a, b, c));
    *rate = flops / (double)(ot_clock_ns() - start);
    return OT_OK;
}

ot_status ot_gemm_open_square(ot_onednn *onednn, ot_dtype dtype, int threads, ot_tile **out)
{
    int paired = dtype == OT_BF16;
    ot_plain_product product = {.M = OT_GEMM_SQUARE,
                                .N = OT_GEMM_SQUARE,
                                .K = OT_GEMM_SQUARE,
                                .paired = paired,
                                .c_paired = paired,
                                .threads = threads};
    return ot_plain_open(onednn, &product, out);
}

void ot_gemm_fill_square(ot_dtype dtype, void *memory)
{
    ot_dtype plain = dtype == OT_BF16 ? OT_BF16 : OT_FP32;
    ot_gemm_fill(plain, memory, (size_t)ot_gemm_square_bytes() / ot_dtype_bytes(plain), 4);
}

ot_status ot_gemm_run_square(const ot_tile *square, void *memory, double *rate)
{
    const double side = OT_GEMM_SQUARE;
    unsigned char *matrices = memory;
    size_t bytes = (size_t)(ot_gemm_square_bytes() / 3);
    return ot_gemm_run_plain(square, matrices, matrices + bytes, matrices + 2 * bytes, 2 * side * side * side,
                             rate);
}
