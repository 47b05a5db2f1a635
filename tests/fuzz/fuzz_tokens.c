/* A token file of any bytes is refused, or everything in it can be read; with its hashes put right, so that more than they are
 * tried. The same bytes as another program's token file. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/tokenbin.h"
#include "io/tokens.h"
#include "io/tokens_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition)
        abort();
}

static void mend(uint8_t *data, size_t bytes)
{
    ot_tokens_header h;
    if (bytes < OT_TOKENS_HEADER_BYTES)
        return;
    memcpy(&h, data, sizeof h);
    h.body_hash = XXH3_64bits(data + OT_TOKENS_HEADER_BYTES, bytes - OT_TOKENS_HEADER_BYTES);
    h.header_hash = XXH3_64bits(&h, offsetof(ot_tokens_header, header_hash));
    memcpy(data, &h, sizeof h);
}

static void read_all(const ot_tokens *tokens)
{
    const ot_tokens_info *info = ot_tokens_query(tokens);
    uint64_t line, letters = 0;
    for (uint64_t d = 0; d < info->documents; d++) {
        uint64_t start = ot_tokens_start(tokens, d), end = ot_tokens_start(tokens, d + 1);
        check(start < end && end <= info->tokens);
        letters += strlen(ot_tokens_origin(tokens, d, &line));
        check(ot_tokens_count_trained(tokens, start, end - start) <= end - start);
        for (uint64_t i = start; i < end; i++)
            check(ot_tokens_id(tokens, i) >= 0 && (size_t)ot_tokens_id(tokens, i) < info->V);
    }
    check(letters < UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    check(copy != NULL);
    memcpy(copy, data, bytes);
    mend(copy, bytes);
    int fd = memfd_create("fuzz", 0);
    check(fd >= 0 && write(fd, copy, bytes) == (ssize_t)bytes);
    free(copy);
    ot_tokens *tokens;
    if (ot_tokens_open_fd(fd, "fuzz", &tokens) == OT_OK) {
        read_all(tokens);
        ot_tokens_close(tokens);
    }
    ot_tokenbin bin;
    const ot_mapping map = {bytes > 0 ? (const char *)data : NULL, bytes};
    uint64_t sum = 0;
    if (ot_tokenbin_read("/nowhere/fuzz", &map, &bin) == OT_OK)
        for (uint64_t i = 0; i < bin.count; i++)
            sum += ot_tokenbin_id(&bin, i);
    check(sum < UINT64_MAX);
    return 0;
}
