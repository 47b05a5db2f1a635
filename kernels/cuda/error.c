/* The driver's codes in plain words: what was found, and what to do. */
#include <stdio.h>
#include <string.h>

#include "io/text.h"
#include "kernels/cuda/state.h"

typedef struct meaning {
    cudaError_t code;
    int fatal;
    const char *text;
} meaning;

static const meaning meanings[] = {
    {cudaErrorNoDevice, 0, "no NVIDIA GPU is visible: look at nvidia-smi and at CUDA_VISIBLE_DEVICES"},
    {cudaErrorInvalidDevice, 0, "there is no GPU of this number: nvidia-smi lists them"},
    {cudaErrorDevicesUnavailable, 0,
     "the GPU is taken by another process in exclusive mode: end it, or `nvidia-smi -c DEFAULT`"},
    {cudaErrorNoKernelImageForDevice, 0,
     "this build has no kernels for the GPU and its driver cannot make them: install a newer driver, or build offtrain "
     "on this machine"},
    {cudaErrorUnsupportedPtxVersion, 0,
     "the driver is too old to make kernels for this GPU: install a newer one"},
    {cudaErrorSystemDriverMismatch, 0,
     "the loaded kernel driver and its libraries are of different versions: restart the machine"},
    {cudaErrorSystemNotReady, 0,
     "the GPU's system service is not running: see `systemctl status nvidia-fabricmanager`"},
    {cudaErrorCompatNotSupportedOnDevice, 0,
     "the driver is too old, and its compatibility libraries do not serve this GPU: install a newer driver"},
    {cudaErrorMemoryAllocation, 0, "out of GPU memory, or of host memory that may be pinned"},
    {cudaErrorIllegalAddress, 1, "a kernel touched memory that is not the device's: a bug of offtrain"},
    {cudaErrorMisalignedAddress, 1, "a kernel touched memory at a wrong alignment: a bug of offtrain"},
    {cudaErrorLaunchFailure, 1,
     "a kernel broke down: a bug of offtrain, or the GPU is failing; see dmesg for Xid"},
    {cudaErrorLaunchTimeout, 1, "a kernel ran longer than the desktop on this GPU allows"},
    {cudaErrorECCUncorrectable, 1,
     "the GPU's memory has an error that cannot be corrected: reset or replace the card"},
    {cudaErrorHardwareStackError, 1, "the GPU reports a fault of its hardware: see dmesg for Xid"},
    {cudaErrorContained, 1, "the GPU reports a contained memory error: start again"},
    {cudaErrorUnknown, 1,
     "the GPU does not answer any more: it may have fallen off the bus; see dmesg for Xid"},
};

static const meaning *find_meaning(cudaError_t code)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (meanings[i].code == code)
            return &meanings[i];
    return NULL;
}

int ot_cuda_is_fatal(cudaError_t code)
{
    const meaning *found = find_meaning(code);
    return found != NULL && found->fatal;
}

static ot_status old_driver(const char *what)
{
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return ot_fail(OT_ERR_DEVICE, "%s: no NVIDIA driver is loaded; install one (doctor tells how)", what);
    return ot_fail(
        OT_ERR_DEVICE,
        "%s: the NVIDIA driver supports CUDA %d.%d, and this build needs %d.%d; install a newer driver", what,
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

ot_status ot_cuda_error(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return OT_OK;
    (void)cudaGetLastError(); /* or a later launch would be blamed */
    if (code == cudaErrorInsufficientDriver)
        return old_driver(what);
    const meaning *found = find_meaning(code);
    if (found == NULL)
        return ot_fail(OT_ERR_DEVICE, "%s: %s (%s, %d)", what, cudaGetErrorString(code),
                       cudaGetErrorName(code), (int)code);
    return ot_fail(OT_ERR_DEVICE, "%s: %s (%s, %d)", what, found->text, cudaGetErrorName(code), (int)code);
}

ot_status ot_cublas_error(cublasStatus_t code, const char *what)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return OT_OK;
    return ot_fail(OT_ERR_DEVICE, "%s: cuBLAS: %s (%d)", what, cublasGetStatusString(code), (int)code);
}
