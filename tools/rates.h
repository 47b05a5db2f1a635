/* How fast a machine is: measured here, or typical figures of a GPU that is not here. */
#ifndef OT_TOOLS_RATES_H
#define OT_TOOLS_RATES_H

#include "kernels/device.h"
#include "kernels/dtype.h"
#include "offload/simulate.h"

/* What a card reaches with large matrix products, and its memory. */
typedef struct ot_card {
    const char *name; /* "rtx4090" */
    double gibibytes;
    double tflops, fp32_tflops; /* 16-bit factors with FP32 sums; FP32 */
    double pcie_gbs;            /* each way */
    double memory_gbs;          /* of its own memory, by kernels that do nothing but move */
} ot_card;

/* OT_ERR_USAGE with the nearest name for an unknown one. */
ot_status ot_card_find(const char *name, const ot_card **out) OT_MUST_CHECK;

/* Typical rates of a workstation with this card. */
void ot_rates_of_card(const ot_card *card, ot_dtype dtype, ot_rates *out);

/* Measures matrix products in `dtype` and copies on the device, and the optimizer there and on the CPU, within a fraction of
 * a second. The drive's rate is a typical one. Takes about 100 MB of device memory and gives it back. */
ot_status ot_rates_measure(ot_device *device, ot_dtype dtype, int threads, ot_rates *out) OT_MUST_CHECK;

#endif
