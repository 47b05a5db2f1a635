/* The only file that knows oneDNN: its C interface of version 2, or of version 3.
 *
 * Threads. oneDNN's primitives are made for, and run with, as many threads as the OpenMP runtime would start
 * for the calling thread. Setting that to one, for each calling thread, keeps every primitive on its caller:
 * nothing is started, no two teams compete, and the sums inside a tile do not depend on how many threads
 * there are. */
#include "kernels/cpu/onednn.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error                                                                                                       \
    "oneDNN is needed with the OpenMP or the sequential runtime: no other can be kept on the calling thread"
#endif

enum { SIZES_M = OT_TILE_M / OT_TILE_M_STEP, SIZES_K = OT_TILE_K / OT_TILE_K_STEP };

typedef void set_threads(int threads);

struct ot_tile {
    const ot_onednn *owner;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int threads;
    atomic_int ready; /* set once all the rest is */
};

struct ot_onednn {
    pthread_mutex_t lock;     /* held while a tile is made */
    set_threads *set_threads; /* of the OpenMP runtime that oneDNN has loaded; NULL: it is sequential */
    dnnl_engine_t engine;
    ot_tile tiles[2][2][SIZES_M][SIZES_K]; /* paired, add */
};

static ot_status check(dnnl_status_t status, const char *call)
{
    return status == dnnl_success
               ? OT_OK
               : ot_fail(OT_ERR_DEVICE, "oneDNN: %s failed with status %d", call, (int)status);
}

static void use_threads(const ot_onednn *onednn, int threads)
{
    if (onednn->set_threads != NULL)
        onednn->set_threads(threads);
}

int ot_onednn_pairs(void)
{
    /* Each instruction set's bits include those of the ones it builds on. */
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

ot_status ot_onednn_open(ot_onednn **out)
{
    ot_onednn *onednn = calloc(1, sizeof *onednn);
    if (onednn == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for the table of tile products");
    pthread_mutex_init(&onednn->lock, NULL);
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    memcpy(&onednn->set_threads, &symbol, sizeof symbol);
    ot_status status = check(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0), "engine_create");
    if (status != OT_OK) {
        ot_onednn_close(onednn);
        return status;
    }
    *out = onednn;
    return OT_OK;
}

static void free_primitive(ot_tile *tile)
{
    if (tile->primitive != NULL)
        dnnl_primitive_destroy(tile->primitive);
    if (tile->desc != NULL)
        dnnl_primitive_desc_destroy(tile->desc);
}

void ot_onednn_close(ot_onednn *onednn)
{
    if (onednn == NULL)
        return;
    ot_tile *tiles = &onednn->tiles[0][0][0][0];
    for (size_t i = 0; i < sizeof onednn->tiles / sizeof *tiles; i++)
        free_primitive(&tiles[i]);
    if (onednn->engine != NULL)
        dnnl_engine_destroy(onednn->engine);
    pthread_mutex_destroy(&onednn->lock);
    free(onednn);
}

/* ---- Making a tile ---- */

typedef struct matrix {
    dnnl_dim_t rows, cols;
    dnnl_data_type_t type;
    dnnl_format_tag_t tag;
} matrix;

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t make_matrix(dnnl_memory_desc_t *out, const matrix *m)
{
    return dnnl_memory_desc_create_with_tag(out, 2, (dnnl_dims_t){m->rows, m->cols}, m->type, m->tag);
}

static void free_matrix(dnnl_memory_desc_t *desc)
{
    dnnl_memory_desc_destroy(*desc);
}

static dnnl_status_t make_product(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                  dnnl_memory_desc_t desc[3], dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, desc[0], desc[1], NULL, desc[2], attr);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

#else

static dnnl_status_t make_matrix(dnnl_memory_desc_t *out, const matrix *m)
{
    return dnnl_memory_desc_init_by_tag(out, 2, (dnnl_dims_t){m->rows, m->cols}, m->type, m->tag);
}

static void free_matrix(dnnl_memory_desc_t *desc)
{
    (void)desc;
}

static dnnl_status_t make_product(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                  dnnl_memory_desc_t desc[3], dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t product;
    dnnl_status_t status = dnnl_matmul_desc_init(&product, &desc[0], &desc[1], NULL, &desc[2]);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &product, attr, engine, NULL);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

#endif

static ot_status make_attributes(int add, dnnl_scratchpad_mode_t scratchpad, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    ot_status status = check(dnnl_primitive_attr_create(out), "primitive_attr_create");
    OT_TRY(status);
    OT_TRY_GOTO(check(dnnl_primitive_attr_set_scratchpad_mode(*out, scratchpad), "set_scratchpad_mode"), out);
    if (add) {
        OT_TRY_GOTO(check(dnnl_post_ops_create(&ops), "post_ops_create"), out);
        OT_TRY_GOTO(check(append_sum(ops), "post_ops_append_sum"), out);
        OT_TRY_GOTO(check(dnnl_primitive_attr_set_post_ops(*out, ops), "set_post_ops"), out);
    }
out:
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    if (status != OT_OK) {
        dnnl_primitive_attr_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* The operands and the result are matrices 0, 1 and 2. */
static ot_status make_desc(ot_tile *tile, dnnl_primitive_attr_t attr, const matrix matrices[3])
{
    ot_status status = OT_OK;
    dnnl_memory_desc_t desc[3];
    int made = 0;
    for (; made < 3; made++)
        OT_TRY_GOTO(check(make_matrix(&desc[made], &matrices[made]), "memory_desc"), out);
    status =
        check(make_product(&tile->desc, tile->owner->engine, desc, attr), "matmul primitive_desc_create");
out:
    while (made > 0)
        free_matrix(&desc[--made]);
    return status;
}

static int is_fast(const ot_tile *tile)
{
    const char *name = "";
    dnnl_primitive_desc_query(tile->desc, dnnl_query_impl_info_str, 0, &name);
    return strncmp(name, "brg", 3) == 0;
}

/* B in FP32 with 64 columns is plain rows. oneDNN has a second name for that layout, and its best kernels
 * listen to that one alone; where the processor has none of them, the plain name finds the next best. */
static ot_status choose_desc(ot_tile *tile, dnnl_primitive_attr_t attr, int paired, size_t m, size_t k)
{
    dnnl_data_type_t type = paired ? dnnl_bf16 : dnnl_f32;
    matrix matrices[3] = {{(dnnl_dim_t)m, (dnnl_dim_t)k, type, dnnl_ab},
                          {(dnnl_dim_t)k, OT_TILE_N, type, paired ? dnnl_BA16a64b2a : dnnl_BA16a64b},
                          {(dnnl_dim_t)m, OT_TILE_N, dnnl_f32, dnnl_ab}};
    OT_TRY(make_desc(tile, attr, matrices));
    if (paired || is_fast(tile))
        return OT_OK;
    dnnl_primitive_desc_destroy(tile->desc);
    tile->desc = NULL;
    matrices[1].tag = dnnl_ab;
    return make_desc(tile, attr, matrices);
}

static ot_status make_tile(ot_tile *tile, int paired, int add, size_t m, size_t k)
{
    dnnl_primitive_attr_t attr;
    OT_TRY(make_attributes(add, dnnl_scratchpad_mode_user, &attr));
    ot_status status = choose_desc(tile, attr, paired, m, k);
    dnnl_primitive_attr_destroy(attr);
    OT_TRY(status);
    size_t scratch =
        dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(tile->desc, dnnl_query_scratchpad_md, 0));
    if (scratch > OT_TILE_SCRATCH_BYTES)
        return ot_fail(OT_ERR_DEVICE,
                       "oneDNN wants %zu bytes of scratch for a tile of %zu x %d x %zu, but gets %d", scratch,
                       m, OT_TILE_N, k, OT_TILE_SCRATCH_BYTES);
    return check(dnnl_primitive_create(&tile->primitive, tile->desc), "primitive_create");
}

ot_status ot_onednn_tile(ot_onednn *onednn, int paired, int add, size_t m, size_t k, const ot_tile **out)
{
    OT_ASSERT(m > 0 && m <= OT_TILE_M && m % OT_TILE_M_STEP == 0 && k > 0 && k <= OT_TILE_K &&
              k % OT_TILE_K_STEP == 0);
    ot_tile *tile = &onednn->tiles[paired][add][m / OT_TILE_M_STEP - 1][k / OT_TILE_K_STEP - 1];
    *out = tile;
    if (atomic_load_explicit(&tile->ready, memory_order_acquire))
        return OT_OK;
    use_threads(onednn, 1);
    pthread_mutex_lock(&onednn->lock);
    ot_status status = OT_OK;
    if (!atomic_load_explicit(&tile->ready, memory_order_relaxed)) {
        tile->owner = onednn;
        tile->threads = 1;
        status = make_tile(tile, paired, add, m, k);
        atomic_store_explicit(&tile->ready, status == OT_OK, memory_order_release);
    }
    pthread_mutex_unlock(&onednn->lock);
    return status;
}

/* ---- Running one ---- */

/* The scratchpad is the last of four. */
static ot_status open_call(const ot_tile *tile, int count, ot_tile_call *call)
{
    static const dnnl_query_t roles[OT_TILE_MATRICES] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                         dnnl_query_dst_md, dnnl_query_scratchpad_md};
    dnnl_engine_t engine = tile->owner->engine;
    *call = (ot_tile_call){.tile = tile};
    use_threads(tile->owner, tile->threads);
    ot_status status =
        check(dnnl_stream_create(&call->stream, engine, dnnl_stream_default_flags), "stream_create");
    for (; status == OT_OK && call->count < count; call->count += status == OT_OK)
        status = check(dnnl_memory_create(&call->matrices[call->count],
                                          dnnl_primitive_desc_query_md(tile->desc, roles[call->count], 0),
                                          engine, DNNL_MEMORY_NONE),
                       "memory_create");
    if (status != OT_OK)
        ot_tile_call_close(call);
    return status;
}

void ot_tile_call_close(ot_tile_call *call)
{
    while (call->count > 0)
        dnnl_memory_destroy(call->matrices[--call->count]);
    if (call->stream != NULL)
        dnnl_stream_destroy(call->stream);
    *call = (ot_tile_call){0};
}

static void *mutable(const void *p)
{
    return (void *)(uintptr_t)p;
}

static ot_status run_call(const ot_tile_call *call, void *const data[])
{
    static const int roles[OT_TILE_MATRICES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                                DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t args[OT_TILE_MATRICES];
    for (int i = 0; i < call->count; i++) {
        args[i] = (dnnl_exec_arg_t){roles[i], call->matrices[i]};
        OT_TRY(check(dnnl_memory_set_data_handle(args[i].memory, data[i]), "memory_set_data_handle"));
    }
    OT_TRY(check(dnnl_primitive_execute(call->tile->primitive, call->stream, call->count, args),
                 "primitive_execute"));
    return check(dnnl_stream_wait(call->stream), "stream_wait");
}

ot_status ot_tile_call_open(const ot_tile *tile, ot_tile_call *call)
{
    return open_call(tile, OT_TILE_MATRICES, call);
}

ot_status ot_tile_run(const ot_tile_call *call, const void *a, const void *b, float *c, void *scratch)
{
    return run_call(call, (void *[]){mutable(a), mutable(b), c, scratch});
}

/* ---- A whole product ---- */

ot_status ot_plain_open(ot_onednn *onednn, const ot_plain_product *p, ot_tile **out)
{
    dnnl_data_type_t type = p->paired ? dnnl_bf16 : dnnl_f32;
    dnnl_dim_t M = (dnnl_dim_t)p->M, N = (dnnl_dim_t)p->N, K = (dnnl_dim_t)p->K;
    matrix matrices[3] = {{M, K, type, p->turned_a ? dnnl_ba : dnnl_ab},
                          {K, N, type, p->turned_b ? dnnl_ba : dnnl_ab},
                          {M, N, p->c_paired ? dnnl_bf16 : dnnl_f32, dnnl_ab}};
    ot_tile *plain = calloc(1, sizeof *plain);
    if (plain == NULL)
        return ot_fail(OT_ERR_INTERNAL, "out of memory for a product");
    ot_status status = OT_OK;
    dnnl_primitive_attr_t attr = NULL;
    plain->owner = onednn;
    plain->threads = p->threads;
    use_threads(onednn, p->threads);
    OT_TRY_GOTO(make_attributes(p->add, dnnl_scratchpad_mode_library, &attr), out);
    OT_TRY_GOTO(make_desc(plain, attr, matrices), out);
    OT_TRY_GOTO(check(dnnl_primitive_create(&plain->primitive, plain->desc), "primitive_create"), out);
    *out = plain;
out:
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    if (status != OT_OK)
        ot_plain_close(plain);
    return status;
}

void ot_plain_close(ot_tile *plain)
{
    if (plain != NULL)
        free_primitive(plain);
    free(plain);
}

ot_status ot_plain_run(const ot_tile *plain, const void *a, const void *b, void *c)
{
    ot_tile_call call;
    OT_TRY(open_call(plain, 3, &call));
    ot_status status = run_call(&call, (void *[]){mutable(a), mutable(b), c});
    ot_tile_call_close(&call);
    return status;
}
