/* A tokenizer.json of any bytes is refused, or makes a tokenizer that takes a text of any bytes. The input is the file, a NUL, and
 * the text. */
#include <stdlib.h>
#include <string.h>

#include "io/tokenizer_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition)
        abort();
}

/* Ids below V, which decode; and none other where words are not cut at what no merge goes across. */
static void use(const ot_tokenizer *tokenizer, const char *text, size_t bytes, int special)
{
    ot_tokenizer whole = *tokenizer;
    whole.borders = 0;
    ot_ids ids = {0}, expected = {0};
    ot_status status = ot_tokenizer_encode(tokenizer, text, bytes, special, &ids);
    check(status == OT_OK || status == OT_ERR_DATA || status == OT_ERR_FORMAT);
    check(ot_tokenizer_encode(&whole, text, bytes, special, &expected) == status);
    if (status == OT_OK) {
        check(ids.count == expected.count);
        for (size_t i = 0; i < ids.count; i++)
            check(ids.ids[i] >= 0 && (size_t)ids.ids[i] < tokenizer->info.V && ids.ids[i] == expected.ids[i]);
        char *decoded;
        size_t decoded_bytes;
        status = ot_tokenizer_decode(tokenizer, ids.ids, ids.count, special, &decoded, &decoded_bytes);
        check(status == OT_OK || status == OT_ERR_DATA);
        if (status == OT_OK)
            free(decoded);
    }
    ot_ids_free(&ids);
    ot_ids_free(&expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = bytes > 0 ? memchr(data, '\0', bytes) : NULL;
    size_t file = end != NULL ? (size_t)(end - data) : bytes, text = end != NULL ? bytes - file - 1 : 0;
    ot_tokenizer *tokenizer;
    ot_status status =
        ot_tokenizer_parse("/nonexistent", "tokenizer.json", (const char *)data, file, &tokenizer);
    if (status != OT_OK) {
        check(status == OT_ERR_FORMAT && strstr(ot_error_text(), "tokenizer.json") != NULL);
        return 0;
    }
    for (int special = 0; special < 2; special++)
        use(tokenizer, (const char *)data + bytes - text, text, special);
    ot_tokenizer_close(tokenizer);
    return 0;
}
