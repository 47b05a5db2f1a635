/* A counter-based random generator: the same numbers on every device, for any split of the work.
 *
 * Philox-4x32 with 7 rounds: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1,
 * 2, 3", SC 2011, section 5.3 (7 rounds pass BigCrush). Common subset of C and C++; a device's
 * compiler defines OT_HOST_DEVICE. */
#ifndef OT_KERNELS_RANDOM_H
#define OT_KERNELS_RANDOM_H

#include <stdint.h>

#ifndef OT_HOST_DEVICE
#define OT_HOST_DEVICE
#endif

enum { OT_PHILOX_ROUNDS = 7 };

/* Four words for counter (`index`, `sequence`) under the key `seed`. */
static inline OT_HOST_DEVICE void ot_philox(uint64_t seed, uint64_t index, uint64_t sequence, uint32_t out[4])
{
    uint32_t a = (uint32_t)index, b = (uint32_t)(index >> 32);
    uint32_t c = (uint32_t)sequence, d = (uint32_t)(sequence >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < OT_PHILOX_ROUNDS; round++) {
        uint64_t p = (uint64_t)a * 0xD2511F53u, q = (uint64_t)c * 0xCD9E8D57u;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        d = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

#endif
