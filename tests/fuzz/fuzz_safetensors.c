/* A safetensors file of any bytes is refused, or all of its tensors can be read. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition)
        abort();
}

static void read_ends(const ot_tensor_set *set, const ot_file_tensor *tensor, size_t file_bytes)
{
    unsigned char byte;
    check(tensor->offset >= 8 && tensor->offset <= file_bytes &&
          tensor->bytes <= file_bytes - tensor->offset);
    check(ot_tensor_set_find(set, tensor->spec.name) == tensor);
    if (tensor->bytes == 0)
        return;
    check(ot_tensor_set_read(set, tensor, 0, &byte, 1) == OT_OK);
    check(ot_tensor_set_read(set, tensor, tensor->bytes - 1, &byte, 1) == OT_OK);
}

static void open_file(const void *data, size_t bytes)
{
    static int fd = -1;
    static char path[64];
    ot_tensor_set *set;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        check(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    check(ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    if (ot_tensor_set_open_file(path, &set) != OT_OK) {
        check(strncmp(ot_error_text(), path, strlen(path)) == 0 || strstr(ot_error_text(), path) != NULL);
        return;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < ot_tensor_set_count(set); i++) {
        read_ends(set, ot_tensor_set_at(set, i), bytes);
        sum += ot_tensor_set_at(set, i)->bytes;
    }
    check(sum < bytes);
    ot_tensor_set_close(set);
}

/* The bytes as they are; and with the header's length put right, so that mutants get as far as its content. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    open_file(data, bytes);
    const uint8_t *end = bytes > 8 ? memrchr(data + 8, '}', bytes - 8) : NULL;
    if (end == NULL)
        return 0;
    uint64_t length = (uint64_t)(end + 1 - (data + 8));
    uint8_t *copy = malloc(bytes);
    check(copy != NULL);
    memcpy(copy, data, bytes);
    memcpy(copy, &length, sizeof length);
    open_file(copy, bytes);
    free(copy);
    return 0;
}
