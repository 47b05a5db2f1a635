/* A source that reads a model's values from tensor sets. Everything a set can have wrong is found when it is opened. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/modelfile_parts.h"
#include "io/text.h"
#include "kernels/element.h"

/* One plane's files. */
typedef struct plane_files {
    ot_tensor_set *set;             /* NULL: there is no such plane */
    ot_dtype dtype;                 /* of the values handed out */
    int strip;                      /* names lack the model's prefix */
    const ot_file_tensor **tensors; /* [tensor_count] in model order */
    const ot_file_tensor **scales;  /* [layer_count], INT8 only */
    void *whole;                    /* the transposed tensor that was read last, as the model has it */
    const ot_file_tensor *whole_is;
} plane_files;

enum { PLANES = 3 };

struct ot_model_source {
    const ot_model *model;
    const char *directory; /* while it is opened */
    plane_files planes[PLANES];
    size_t tensor_count;
    size_t *first; /* [layer_count]: number of each layer's tensor 0 */
    void *piece;
};

/* ---- Opening: what must be there ---- */

/* The model's name without the prefix of the family. */
static const char *stripped(const ot_model *model, const char *name)
{
    const char *prefix = model->config.family == OT_FAMILY_GPT2 ? "transformer." : "model.";
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 ? name + length : name;
}

static const ot_file_tensor *find(const ot_model_source *s, const plane_files *p, const char *name)
{
    return ot_tensor_set_find(p->set, p->strip ? stripped(s->model, name) : name);
}

static void show_shape(const ot_tensor_spec *spec, char out[256])
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < spec->dimensions; i++)
        n += (size_t)snprintf(out + n, 256 - n, "%s%" PRIu64, i > 0 ? "," : "", spec->shape[i]);
}

static ot_status check_shape(const plane_files *p, const ot_file_tensor *found,
                             const ot_tensor_spec *expected)
{
    char is[256], should[256];
    size_t n = expected->dimensions;
    if (found->spec.dimensions == n &&
        memcmp(found->spec.shape, expected->shape, n * sizeof *expected->shape) == 0)
        return OT_OK;
    show_shape(&found->spec, is);
    show_shape(expected, should);
    return ot_fail(OT_ERR_FORMAT, "%s: tensor %s has shape [%s], expected [%s] by config.json",
                   ot_tensor_set_path(p->set, found), found->spec.name, is, should);
}

/* Masters may be stored narrower; moments are what they are. */
static ot_status check_dtype(const ot_model_source *s, const plane_files *p, const ot_file_tensor *found,
                             ot_file_dtype expected)
{
    ot_file_dtype is = found->spec.dtype;
    int weights = p == &s->planes[OT_VALUE_MASTER];
    if (is == expected || (weights && (is == OT_FILE_BF16 || is == OT_FILE_F16)))
        return OT_OK;
    return ot_fail(OT_ERR_FORMAT, "%s: tensor %s is %s, expected %s%s", ot_tensor_set_path(p->set, found),
                   found->spec.name, ot_file_dtype_name(is), ot_file_dtype_name(expected),
                   weights ? ", BF16 or F16" : "");
}

static ot_status find_tensor(ot_model_source *s, plane_files *p, const ot_tensor_spec *expected,
                             const char *stem, const ot_file_tensor **out)
{
    const ot_file_tensor *found = find(s, p, expected->name);
    if (found == NULL)
        return ot_fail(OT_ERR_FORMAT, "%s/%s.safetensors: tensor %s is missing%s", s->directory, stem,
                       expected->name,
                       strcmp(expected->name, "lm_head.weight") == 0
                           ? "; if the head is the embedding, config.json must say tie_word_embeddings"
                           : "");
    OT_TRY(check_dtype(s, p, found, expected->dtype));
    OT_TRY(check_shape(p, found, expected));
    *out = found;
    return OT_OK;
}

static ot_status find_tensors(ot_model_source *s, plane_files *p, ot_value_plane plane, const char *stem)
{
    ot_file_dtype dtype = ot_value_file_dtype(plane, p->dtype);
    for (size_t l = 0; l < s->model->layer_count; l++) {
        const ot_layer *layer = &s->model->layers[l];
        for (size_t t = 0; t < layer->tensor_count; t++) {
            ot_tensor_spec spec = ot_tensor_file_spec(&layer->tensors[t], dtype);
            OT_TRY(find_tensor(s, p, &spec, stem, &p->tensors[s->first[l] + t]));
        }
        if (p->dtype == OT_INT8) {
            char name[OT_SCALES_NAME_BYTES];
            ot_layer_scales_name(layer, name);
            ot_tensor_spec spec = {name, OT_FILE_F32, 1, {ot_layer_scales(layer)}};
            OT_TRY(find_tensor(s, p, &spec, stem, &p->scales[l]));
        }
    }
    return OT_OK;
}

/* ---- Opening: what else is there ---- */

/* Constants that older versions of `transformers` saved. */
static int is_buffer(const ot_model *model, const char *name)
{
    if (model->config.family == OT_FAMILY_GPT2)
        return ot_ends_with(name, ".attn.bias") || ot_ends_with(name, ".attn.masked_bias");
    return ot_ends_with(name, ".rotary_emb.inv_freq");
}

/* A tied model's head, which some files hold a second time. */
static ot_status check_tied_head(ot_model_source *s, const plane_files *p, const ot_file_tensor *head)
{
    const ot_file_tensor *table = p->tensors[0];
    const char *path = ot_tensor_set_path(p->set, head);
    uint64_t half = OT_PIECE_ELEMENTS * sizeof(float) / 2;
    int same = head->spec.dtype == table->spec.dtype && head->bytes == table->bytes;
    for (uint64_t at = 0; same && at < head->bytes; at += half) {
        uint64_t n = head->bytes - at < half ? head->bytes - at : half;
        char *a = s->piece, *b = a + half;
        OT_TRY(ot_tensor_set_read(p->set, head, at, a, n));
        OT_TRY(ot_tensor_set_read(p->set, table, at, b, n));
        same = memcmp(a, b, n) == 0;
    }
    if (!same)
        return ot_fail(OT_ERR_FORMAT,
                       "%s: tensor %s differs from %s, but by config.json the head is the embedding "
                       "(tie_word_embeddings)",
                       path, head->spec.name, table->spec.name);
    return OT_OK;
}

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const ot_file_tensor *const *)a,
              y = (uintptr_t) * (const ot_file_tensor *const *)b;
    return x < y ? -1 : x > y;
}

static ot_status check_extra(ot_model_source *s, const plane_files *p, const ot_file_tensor **known,
                             size_t count)
{
    qsort(known, count, sizeof *known, compare_addresses);
    for (size_t i = 0; i < ot_tensor_set_count(p->set); i++) {
        const ot_file_tensor *tensor = ot_tensor_set_at(p->set, i);
        const char *name = tensor->spec.name;
        if (bsearch(&tensor, known, count, sizeof *known, compare_addresses) != NULL ||
            is_buffer(s->model, name))
            continue;
        if (s->model->config.tied && strcmp(name, "lm_head.weight") == 0)
            OT_TRY(check_tied_head(s, p, tensor));
        else
            return ot_fail(OT_ERR_FORMAT, "%s: tensor %s is not one of the model that config.json describes",
                           ot_tensor_set_path(p->set, tensor), name);
    }
    return OT_OK;
}

static ot_status check_extras(ot_model_source *s, const plane_files *p)
{
    size_t count = s->tensor_count, scales = p->dtype == OT_INT8 ? s->model->layer_count : 0;
    const ot_file_tensor **known = calloc(count + scales, sizeof *known);
    if (known == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a list of %zu tensors", count);
    memcpy(known, p->tensors, count * sizeof *known);
    if (scales > 0)
        memcpy(known + count, p->scales, scales * sizeof *known);
    ot_status status = check_extra(s, p, known, count + scales);
    free(known);
    return status;
}

/* ---- Opening ---- */

static ot_status open_plane(ot_model_source *s, ot_value_plane plane, const char *stem, ot_dtype dtype)
{
    plane_files *p = &s->planes[plane];
    const ot_model *model = s->model;
    OT_TRY(ot_tensor_set_open(s->directory, stem, &p->set));
    p->dtype = dtype;
    p->tensors = calloc(s->tensor_count, sizeof *p->tensors);
    p->scales = calloc(model->layer_count, sizeof *p->scales);
    if (p->tensors == NULL || p->scales == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a list of %zu tensors", s->tensor_count);
    const char *table = model->layers[0].tensors[0].name;
    p->strip = ot_tensor_set_find(p->set, table) == NULL &&
               ot_tensor_set_find(p->set, stripped(model, table)) != NULL;
    OT_TRY(find_tensors(s, p, plane, stem));
    OT_TRY(check_extras(s, p));
    uint64_t whole = ot_model_whole_elements(model) * ot_dtype_bytes(dtype);
    if (whole > 0 && (p->whole = malloc(whole)) == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a tensor of %" PRIu64 " bytes", whole);
    return OT_OK;
}

static ot_status open_source(ot_model_source *s, const ot_model_source_options *o)
{
    s->model = o->model;
    s->directory = o->directory;
    s->first = calloc(s->model->layer_count, sizeof *s->first);
    s->piece = malloc(ot_model_piece_elements(s->model) * sizeof(float));
    if (s->first == NULL || s->piece == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for reading %s", o->directory);
    for (size_t l = 0; l < s->model->layer_count; l++) {
        s->first[l] = s->tensor_count;
        s->tensor_count += s->model->layers[l].tensor_count;
    }
    OT_TRY(open_plane(s, OT_VALUE_MASTER, o->stem, OT_FP32));
    if (o->moment1_stem != NULL)
        OT_TRY(open_plane(s, OT_VALUE_MOMENT1, o->moment1_stem, o->state_dtype));
    if (o->moment2_stem != NULL)
        OT_TRY(open_plane(s, OT_VALUE_MOMENT2, o->moment2_stem, o->state_dtype));
    s->directory = NULL;
    return OT_OK;
}

ot_status ot_model_source_open(const ot_model_source_options *options, ot_model_source **out)
{
    ot_model_source *source = calloc(1, sizeof *source);
    if (source == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for reading %s", options->directory);
    ot_status status = open_source(source, options);
    if (status != OT_OK) {
        ot_model_source_close(source);
        return status;
    }
    *out = source;
    return OT_OK;
}

void ot_model_source_close(ot_model_source *source)
{
    if (source == NULL)
        return;
    for (int i = 0; i < PLANES; i++) {
        ot_tensor_set_close(source->planes[i].set);
        free(source->planes[i].tensors);
        free(source->planes[i].scales);
        free(source->planes[i].whole);
    }
    free(source->first);
    free(source->piece);
    free(source);
}

ot_dtype ot_model_source_dtype(const ot_model_source *source)
{
    const plane_files *p = &source->planes[OT_VALUE_MASTER];
    uint64_t elements[OT_DTYPES] = {0};
    for (size_t i = 0; i < source->tensor_count; i++) {
        ot_file_dtype is = p->tensors[i]->spec.dtype;
        elements[is == OT_FILE_BF16  ? OT_BF16
                 : is == OT_FILE_F16 ? OT_FP16
                                     : OT_FP32] += p->tensors[i]->bytes / ot_file_dtype_bytes(is);
    }
    ot_dtype most = OT_FP32;
    for (ot_dtype dtype = OT_FP32; dtype <= OT_FP16; dtype++)
        if (elements[dtype] > elements[most])
            most = dtype;
    return most;
}

/* ---- Filling ---- */

static void widen(ot_file_dtype from, const void *src, size_t n, float *restrict out)
{
    const uint16_t *restrict half = src;
    if (from == OT_FILE_BF16)
        for (size_t i = 0; i < n; i++)
            out[i] = ot_widen_bf16(half[i]);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = ot_widen_fp16(half[i]);
}

/* Elements first .. first+count-1 of the tensor as the file orders them. */
static ot_status read_elements(ot_model_source *s, const plane_files *p, const ot_file_tensor *tensor,
                               uint64_t first, uint64_t count, void *out)
{
    uint64_t bytes = ot_file_dtype_bytes(tensor->spec.dtype);
    if (bytes == ot_dtype_bytes(p->dtype)) /* check_dtype: then it is the same dtype */
        return ot_tensor_set_read(p->set, tensor, first * bytes, out, count * bytes);
    float *values = out;
    for (uint64_t done = 0; done < count;) {
        uint64_t n = count - done < OT_PIECE_ELEMENTS ? count - done : OT_PIECE_ELEMENTS;
        OT_TRY(ot_tensor_set_read(p->set, tensor, (first + done) * bytes, s->piece, n * bytes));
        widen(tensor->spec.dtype, s->piece, n, values + done);
        done += n;
    }
    return OT_OK;
}

/* `lines` lines of the file, which are columns from `column` on of the tensor [rows,cols], to their places. */
static void place_columns(const plane_files *p, ot_file_dtype from, const void *piece,
                          const ot_tensor *tensor, size_t column, size_t lines)
{
    for (size_t r = 0; r < tensor->rows; r++)
        for (size_t j = 0; j < lines; j++) {
            size_t to = r * tensor->cols + column + j, at = j * tensor->rows + r;
            if (p->dtype == OT_INT8)
                ((uint8_t *)p->whole)[to] = ((const uint8_t *)piece)[at];
            else if (p->dtype == OT_BF16)
                ((uint16_t *)p->whole)[to] = ((const uint16_t *)piece)[at];
            else if (from == OT_FILE_F32)
                ((float *)p->whole)[to] = ((const float *)piece)[at];
            else if (from == OT_FILE_BF16)
                ((float *)p->whole)[to] = ot_widen_bf16(((const uint16_t *)piece)[at]);
            else
                ((float *)p->whole)[to] = ot_widen_fp16(((const uint16_t *)piece)[at]);
        }
}

static ot_status read_whole(ot_model_source *s, plane_files *p, const ot_file_tensor *found,
                            const ot_tensor *tensor)
{
    if (p->whole_is == found)
        return OT_OK;
    p->whole_is = NULL;
    uint64_t line = tensor->rows * ot_file_dtype_bytes(found->spec.dtype);
    size_t most = ot_model_piece_elements(s->model) / tensor->rows;
    for (size_t column = 0; column < tensor->cols;) {
        size_t lines = tensor->cols - column < most ? tensor->cols - column : most;
        OT_TRY(ot_tensor_set_read(p->set, found, column * line, s->piece, lines * line));
        place_columns(p, found->spec.dtype, s->piece, tensor, column, lines);
        column += lines;
    }
    p->whole_is = found;
    return OT_OK;
}

/* Elements of the layer's flat vector; what lies between tensors is zero. */
static ot_status fill_plane(ot_model_source *s, plane_files *p, const ot_chunk_values *chunk, void *values)
{
    const ot_layer *layer = &s->model->layers[chunk->layer];
    uint64_t at = chunk->first, end = chunk->first + chunk->count, bytes = ot_dtype_bytes(p->dtype);
    char *base = values;
    for (size_t t = 0; t < layer->tensor_count && at < end; t++) {
        const ot_tensor *tensor = &layer->tensors[t];
        const ot_file_tensor *found = p->tensors[s->first[chunk->layer] + t];
        uint64_t begin = tensor->offset, stop = begin + ot_tensor_elements(tensor);
        begin = begin > at ? begin : at;
        stop = stop < end ? stop : end;
        if (begin >= stop)
            continue;
        memset(base + (at - chunk->first) * bytes, 0, (begin - at) * bytes);
        char *out = base + (begin - chunk->first) * bytes;
        uint64_t first = begin - tensor->offset, count = stop - begin;
        if (tensor->transposed) {
            OT_TRY(read_whole(s, p, found, tensor));
            memcpy(out, (const char *)p->whole + first * bytes, count * bytes);
        } else {
            OT_TRY(read_elements(s, p, found, first, count, out));
        }
        at = stop;
    }
    memset(base + (at - chunk->first) * bytes, 0, (end - at) * bytes);
    return OT_OK;
}

static ot_status fill_moment(ot_model_source *s, plane_files *p, const ot_chunk_values *chunk, void *values,
                             float *scales)
{
    if (values == NULL || p->set == NULL)
        return OT_OK;
    OT_TRY(fill_plane(s, p, chunk, values));
    if (p->dtype != OT_INT8)
        return OT_OK;
    uint64_t first = chunk->first / OT_MOMENT_BLOCK,
             count = (chunk->count + OT_MOMENT_BLOCK - 1) / OT_MOMENT_BLOCK;
    return ot_tensor_set_read(p->set, p->scales[chunk->layer], first * sizeof(float), scales,
                              count * sizeof(float));
}

static ot_status fill(void *context, const ot_chunk_values *chunk)
{
    ot_model_source *s = context;
    if (chunk->master != NULL)
        OT_TRY(fill_plane(s, &s->planes[OT_VALUE_MASTER], chunk, chunk->master));
    OT_TRY(fill_moment(s, &s->planes[OT_VALUE_MOMENT1], chunk, chunk->moment1, chunk->scale1));
    return fill_moment(s, &s->planes[OT_VALUE_MOMENT2], chunk, chunk->moment2, chunk->scale2);
}

ot_source ot_model_source_values(ot_model_source *source)
{
    return (ot_source){fill, source};
}
