/* Byte-level text data. */
#include "engine/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/random.h"

typedef struct data_file {
    const unsigned char *bytes;
    uint64_t length, first_window, windows;
} data_file;

struct ot_dataset {
    data_file *files;
    size_t file_count;
    char *sample; /* the built-in text; NULL: the files are mapped */
    uint64_t windows, tokens, seed;
    size_t T;
    int shuffle;
};

/* ---- opening ---- */

static ot_status map_file(const char *path, data_file *file)
{
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0) {
        ot_status status = ot_fail(OT_ERR_DATA, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    void *bytes = MAP_FAILED;
    if (S_ISREG(facts.st_mode) && facts.st_size > 0)
        bytes = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int code = errno;
    close(fd);
    if (!S_ISREG(facts.st_mode))
        return ot_fail(OT_ERR_DATA, "%s is no regular file; give a text file", path);
    if (facts.st_size < 2)
        return ot_fail(
            OT_ERR_DATA,
            "%s has %lld bytes; a text of two or more is needed, since each byte is learnt from the one before",
            path, (long long)facts.st_size);
    if (bytes == MAP_FAILED)
        return ot_fail(OT_ERR_DATA, "%s: cannot be mapped: %s", path, strerror(code));
    *file = (data_file){.bytes = bytes, .length = (uint64_t)facts.st_size};
    return OT_OK;
}

static ot_status check_vocabulary(const char *path, const data_file *file, size_t V)
{
    uint64_t line = 1;
    for (uint64_t i = 0; V < 256 && i < file->length; i++) {
        if (file->bytes[i] >= V)
            return ot_fail(OT_ERR_DATA, "%s:%" PRIu64 ": byte %d is beyond the model's vocabulary of %zu",
                           path, line, file->bytes[i], V);
        line += file->bytes[i] == '\n';
    }
    return OT_OK;
}

static ot_status open_sample(ot_dataset *dataset)
{
    size_t length;
    dataset->sample = ot_builtin_text(&length);
    if (dataset->sample == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the built-in sample");
    dataset->files[0] = (data_file){.bytes = (const unsigned char *)dataset->sample, .length = length};
    dataset->file_count = 1;
    return OT_OK;
}

static ot_status open_files(ot_dataset *dataset, const ot_data_options *options)
{
    if (options->file_count == 0)
        OT_TRY(open_sample(dataset));
    for (size_t i = 0; i < options->file_count; i++) {
        OT_TRY(map_file(options->files[i], &dataset->files[i]));
        dataset->file_count++;
    }
    for (size_t i = 0; i < dataset->file_count; i++) {
        data_file *file = &dataset->files[i];
        OT_TRY(check_vocabulary(options->file_count > 0 ? options->files[i] : "the built-in sample", file,
                                options->V));
        file->first_window = dataset->windows;
        file->windows = (file->length - 1 + options->T - 1) / options->T;
        dataset->windows += file->windows;
        dataset->tokens += file->length - 1;
    }
    return OT_OK;
}

ot_status ot_dataset_open(const ot_data_options *options, ot_dataset **out)
{
    OT_ASSERT(options->T > 0);
    ot_dataset *dataset = calloc(1, sizeof *dataset);
    data_file *files = calloc(options->file_count + 1, sizeof *files);
    if (dataset == NULL || files == NULL) {
        free(files);
        free(dataset);
        return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu data files", options->file_count);
    }
    dataset->files = files;
    dataset->T = options->T;
    dataset->shuffle = options->shuffle;
    dataset->seed = options->seed;
    ot_status status = open_files(dataset, options);
    if (status != OT_OK) {
        ot_dataset_close(dataset);
        return status;
    }
    *out = dataset;
    return OT_OK;
}

void ot_dataset_close(ot_dataset *dataset)
{
    if (dataset == NULL)
        return;
    for (size_t i = 0; i < dataset->file_count && dataset->sample == NULL; i++)
        munmap((void *)(uintptr_t)dataset->files[i].bytes, dataset->files[i].length);
    free(dataset->sample);
    free(dataset->files);
    free(dataset);
}

/* ---- order ---- */

/* A Feistel network over the smallest even number of bits that holds `count`, walked until it lands inside: a permutation
 * without a table (Black & Rogaway 2002, "cycle walking"). */
uint64_t ot_shuffle(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch)
{
    enum { ROUNDS = 6 };
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << 2 * half) < count)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint32_t word[4];
            ot_philox(seed, right, epoch * ROUNDS + round, word);
            uint64_t next = left ^ (word[0] & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

uint64_t ot_dataset_windows(const ot_dataset *dataset)
{
    return dataset->windows;
}

uint64_t ot_dataset_tokens(const ot_dataset *dataset)
{
    return dataset->tokens;
}

uint64_t ot_dataset_steps(const ot_dataset *dataset, size_t sequences)
{
    return (dataset->windows + sequences - 1) / sequences;
}

static const data_file *file_of(const ot_dataset *dataset, uint64_t window)
{
    size_t low = 0, high = dataset->file_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(dataset->files[middle].first_window <= window ? &low : &high) = middle;
    }
    return &dataset->files[low];
}

/* One sequence of a micro-batch: `stride` elements lie between its tokens, targets, positions and document starts. Returns
 * the trained tokens: none without a file. */
static uint64_t fill_sequence(const data_file *file, uint64_t window, size_t T, size_t stride, int32_t *out)
{
    uint64_t trained = 0, start = file != NULL ? (window - file->first_window) * T : 0;
    for (size_t t = 0; t < T; t++) {
        int known = file != NULL && start + t + 1 < file->length;
        out[t] = known ? file->bytes[start + t] : 0;
        out[t + stride] = known ? file->bytes[start + t + 1] : -1;
        out[t + 2 * stride] = (int32_t)t;
        out[t + 3 * stride] = 0;
        trained += (uint64_t)known;
    }
    return trained;
}

uint64_t ot_dataset_fill(const ot_dataset *dataset, uint64_t step, size_t B, size_t M, int32_t *out)
{
    size_t T = dataset->T, stride = B * T;
    uint64_t steps = ot_dataset_steps(dataset, B * M), epoch = step / steps, first = step % steps * (B * M),
             trained = 0;
    for (size_t i = 0; i < B * M; i++) {
        uint64_t window = first + i;
        const data_file *file = NULL;
        if (window < dataset->windows) {
            if (dataset->shuffle)
                window = ot_shuffle(window, dataset->windows, dataset->seed, epoch);
            file = file_of(dataset, window);
        }
        trained += fill_sequence(file, window, T, stride, out + i / B * 4 * stride + i % B * T);
    }
    return trained;
}
