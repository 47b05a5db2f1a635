#include "io/tokenbin.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LLMC_HEADER_BYTES = 1024, LLMC_GPT2 = 20240520, LLMC_LLAMA3 = 20240801 };

static uint32_t word(const ot_mapping *map, size_t index)
{
    uint32_t value;
    memcpy(&value, map->data + 4 * index, sizeof value);
    return value;
}

static ot_status read_llmc(const char *path, const ot_mapping *map, ot_tokenbin *out)
{
    uint32_t magic = word(map, 0), version = word(map, 1), wanted = magic == LLMC_GPT2 ? 1 : 7;
    if (version != wanted)
        return ot_fail(OT_ERR_DATA, "%s: llm.c's magic %u with version %u; version %u is read", path, magic,
                       version, wanted);
    out->kind = "llm.c";
    out->width = magic == LLMC_GPT2 ? 2 : 4;
    out->tokens = (const unsigned char *)map->data + LLMC_HEADER_BYTES;
    out->count = word(map, 2);
    uint64_t bytes = LLMC_HEADER_BYTES + out->count * (uint64_t)out->width;
    if (map->bytes != bytes)
        return ot_fail(OT_ERR_DATA,
                       "%s: its header counts %" PRIu64 " tokens, which are %" PRIu64
                       " bytes with it; the file has %zu: it is cut off or damaged",
                       path, out->count, bytes, map->bytes);
    return OT_OK;
}

/* The number that a pickle holds behind the text "vocab_size": BININT1, BININT2 or BININT, after one that stores the text. */
static uint64_t pickled_vocabulary(const ot_mapping *map)
{
    static const char key[] = "vocab_size";
    const char *found = map->data != NULL ? memmem(map->data, map->bytes, key, sizeof key - 1) : NULL;
    if (found == NULL)
        return 0;
    const unsigned char *at = (const unsigned char *)found + sizeof key - 1,
                        *end = (const unsigned char *)map->data + map->bytes;
    if (at < end && *at == 0x94)
        at++;
    else if (end - at >= 2 && *at == 'q')
        at += 2;
    if (end - at >= 2 && *at == 'K')
        return at[1];
    if (end - at >= 3 && *at == 'M')
        return at[1] | (uint64_t)at[2] << 8;
    if (end - at >= 5 && *at == 'J')
        return at[1] | (uint64_t)at[2] << 8 | (uint64_t)at[3] << 16 | (uint64_t)at[4] << 24;
    return 0;
}

static uint64_t read_meta(const char *path)
{
    char meta[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path + 1) : 0;
    ot_mapping map;
    if (snprintf(meta, sizeof meta, "%.*smeta.pkl", folder, path) >= PATH_MAX ||
        ot_mapping_open(meta, &map) != OT_OK)
        return 0;
    uint64_t V = pickled_vocabulary(&map);
    ot_mapping_close(&map);
    return V;
}

ot_status ot_tokenbin_read(const char *path, const ot_mapping *map, ot_tokenbin *out)
{
    *out = (ot_tokenbin){.kind = "nanoGPT", .width = 2};
    if (map->bytes >= LLMC_HEADER_BYTES && (word(map, 0) == LLMC_GPT2 || word(map, 0) == LLMC_LLAMA3))
        return read_llmc(path, map, out);
    if (map->bytes % 2 != 0)
        return ot_fail(
            OT_ERR_DATA,
            "%s: %zu bytes, an odd number, are no 16-bit tokens, and the file begins like no other "
            "kind; --data-format text or jsonl reads text",
            path, map->bytes);
    out->tokens = (const unsigned char *)map->data;
    out->count = map->bytes / 2;
    out->V = read_meta(path);
    return OT_OK;
}

uint32_t ot_tokenbin_id(const ot_tokenbin *bin, uint64_t index)
{
    const unsigned char *at = bin->tokens + index * (uint64_t)bin->width;
    uint32_t id = at[0] | (uint32_t)at[1] << 8;
    return bin->width == 2 ? id : id | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
