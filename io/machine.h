/* Facts about the machine that decide how well training runs on it: for `doctor` and `version`. */
#ifndef OT_IO_MACHINE_H
#define OT_IO_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Instruction sets beyond the baseline of the architecture; each bit stands for all that its name lists. */
enum {
    OT_ISA_AVX2 = 1,        /* AVX2, FMA */
    OT_ISA_AVX512 = 2,      /* AVX-512 F, BW, DQ, VL */
    OT_ISA_AVX512_BF16 = 4, /* the above and AVX512_BF16 */
};

/* The sets that this processor has and the kernel saves; 0 on architectures other than x86-64. */
unsigned ot_isa_find(void);

enum { OT_ISA_NAMES_MAX = 4 };

/* Writes the names of the baseline and of the sets in `isa` into `names` and returns how many: "x86-64",
 * "AVX2+FMA", "AVX-512", "AVX512-BF16". They are string literals. */
size_t ot_isa_names(unsigned isa, const char *names[OT_ISA_NAMES_MAX]);

enum { OT_MACHINE_GPUS_MAX = 16 };

typedef struct ot_gpu {
    char address[16]; /* on the PCI bus: "0000:01:00.0" */
    char name[64];    /* as the driver names it; "NVIDIA 10de:2684" where no driver does */
} ot_gpu;

typedef struct ot_machine {
    char kernel[128];         /* release: "6.1.0-18-amd64" */
    int wsl;                  /* 0: no, else the version of the Windows Subsystem for Linux, 1 or 2 */
    char container[32];       /* "docker", "podman", "kubernetes", "lxc", …, or "" */
    char cpu[128];            /* model name, or "unknown" */
    unsigned isa;             /* OT_ISA_ bits */
    int numa_nodes;           /* at least 1 */
    char huge_page_mode[16];  /* of transparent ones: "always", "madvise", "never"; "" where there are none */
    uint64_t huge_page_bytes; /* size of an explicit huge page; 0 where there are none */
    uint64_t huge_pages, huge_pages_free; /* reserved explicit ones */
    uint64_t memlock_bytes;               /* soft limit; UINT64_MAX: none */
    int can_lock;                         /* CAP_IPC_LOCK is effective: the limit does not bind */
    int uring_errno;                      /* 0: io_uring works, else why a ring cannot be set up */
    int uring_disabled; /* kernel.io_uring_disabled: 0, 1, 2; -1 where the kernel has no such setting */
    char driver[64];    /* version of the loaded NVIDIA kernel driver, or "" */
    int gpu_devices;    /* /dev/nvidia0, … and, under WSL, /dev/dxg */
    size_t gpu_count;   /* NVIDIA GPUs on the bus, also those without a driver */
    ot_gpu gpus[OT_MACHINE_GPUS_MAX]; /* the first of them, by address */
} ot_machine;

/* Fills `out`. What cannot be found out stays at its empty value: this is advice, and never fails. Processor,
 * memlock limit and io_uring are those of the running process; the rest is read below `root`: "" on a real
 * system, in tests a folder that holds proc/, sys/, dev/ and run/. Sets up a small ring and tears it down. */
void ot_machine_read(const char *root, ot_machine *out);

#endif
