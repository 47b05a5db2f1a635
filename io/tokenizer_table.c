/* The tokenizer's containers: growing texts and ids, maps, tables of words. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/grow.h"
#include "io/tokenizer_parts.h"

ot_status ot_bytes_reserve(ot_bytes *bytes, size_t more)
{
    return ot_grow(&bytes->data, &bytes->capacity, bytes->count + more, 1, "a text");
}

ot_status ot_bytes_add(ot_bytes *bytes, const char *text, size_t count)
{
    OT_TRY(ot_bytes_reserve(bytes, count + 1)); /* one more, so that data is never NULL */
    memcpy(bytes->data + bytes->count, text, count);
    bytes->count += count;
    return OT_OK;
}

ot_status ot_ids_add(ot_ids *ids, int32_t id)
{
    OT_TRY(ot_grow(&ids->ids, &ids->capacity, ids->count + 1, sizeof *ids->ids, "token ids"));
    ids->ids[ids->count++] = id;
    return OT_OK;
}

void ot_ids_free(ot_ids *ids)
{
    free(ids->ids);
    ot_encoder_free(ids->encoder);
    *ids = (ot_ids){0};
}

static void map_place(ot_map *map, uint64_t key, uint64_t value)
{
    size_t at = ot_map_place(key, map->mask);
    while (map->slots[at].key != UINT64_MAX && map->slots[at].key != key)
        at = (at + 1) & map->mask;
    map->count += map->slots[at].key == UINT64_MAX;
    map->slots[at] = (struct ot_map_slot){key, value};
}

ot_status ot_map_put(ot_map *map, uint64_t key, uint64_t value)
{
    size_t slots = map->slots != NULL ? map->mask + 1 : 0;
    if (2 * (map->count + 1) > slots) {
        ot_map grown = {.mask = (slots > 0 ? 2 * slots : 64) - 1};
        grown.slots = malloc((grown.mask + 1) * sizeof *grown.slots);
        if (grown.slots == NULL)
            return ot_fail(OT_ERR_INTERNAL, "out of memory for %zu table entries", grown.mask + 1);
        for (size_t i = 0; i <= grown.mask; i++)
            grown.slots[i].key = UINT64_MAX;
        for (size_t i = 0; i < slots; i++)
            if (map->slots[i].key != UINT64_MAX)
                map_place(&grown, map->slots[i].key, map->slots[i].value);
        free(map->slots);
        *map = grown;
    }
    map_place(map, key, value);
    return OT_OK;
}

ot_status ot_words_make(size_t count, ot_words *out)
{
    size_t slots = 64;
    while (slots < 2 * count + 1)
        slots *= 2;
    out->slots = malloc(slots * sizeof *out->slots);
    if (out->slots == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a table of %zu tokens", count);
    for (size_t i = 0; i < slots; i++)
        out->slots[i] = OT_NONE;
    out->mask = slots - 1;
    return OT_OK;
}

int32_t ot_words_find(const ot_words *words, const ot_span *spans, const char *base, const char *text,
                      size_t bytes, int32_t add)
{
    for (size_t at = XXH3_64bits(text, bytes) & words->mask;; at = (at + 1) & words->mask) {
        int32_t id = words->slots[at];
        if (id == OT_NONE) {
            if (add != OT_NONE) /* the table of an open tokenizer is only read, by many threads */
                words->slots[at] = add;
            return add;
        }
        if (spans[id].length == bytes && memcmp(base + spans[id].offset, text, bytes) == 0)
            return id;
    }
}
