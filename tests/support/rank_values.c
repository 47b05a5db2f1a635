#include "tests/support/rank_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/ranks.h"

static char folder[] = "./offtrain-test-XXXXXX", folders[RANKS][64];
const char *rank_directories[RANKS];

int rank_folders_open(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    for (int rank = 0; rank < RANKS; rank++) {
        snprintf(folders[rank], sizeof folders[rank], "%s/rank-%d", folder, rank);
        rank_directories[rank] = folders[rank];
        if (mkdir(folders[rank], 0700) != 0)
            return -1;
    }
    return 0;
}

int rank_folders_close(void **state)
{
    (void)state;
    for (int rank = 0; rank < RANKS; rank++)
        if (rmdir(folders[rank]) != 0)
            return -1;
    return rmdir(folder);
}

uint64_t model_elements(const ot_model *model, size_t layer)
{
    uint64_t elements = 0;
    for (size_t l = 0; l < layer; l++)
        elements += model->layers[l].params;
    return elements;
}

void model_values_open(model_values *v, const ot_model *model)
{
    *v = (model_values){.model = model};
    for (int p = 0; p < 3; p++)
        must((v->plane[p] = calloc(model_elements(model, model->layer_count), sizeof(float))) != NULL);
}

void model_values_close(model_values *v)
{
    for (int p = 0; p < 3; p++)
        free(v->plane[p]);
}

static uint64_t first_of(const model_values *v, const ot_chunk_values *chunk)
{
    must(chunk->count > 0 && chunk->first + chunk->count <= v->model->layers[chunk->layer].params);
    return model_elements(v->model, chunk->layer) + chunk->first;
}

ot_status model_values_take(void *context, const ot_chunk_values *chunk)
{
    model_values *v = context;
    const void *planes[] = {chunk->master, chunk->moment1, chunk->moment2};
    must(first_of(v, chunk) == v->taken);
    for (int p = 0; p < 3; p++)
        memcpy(v->plane[p] + v->taken, planes[p], chunk->count * sizeof(float));
    v->taken += chunk->count;
    return OT_OK;
}

ot_status model_values_fill(void *context, const ot_chunk_values *chunk)
{
    const model_values *v = context;
    void *planes[] = {chunk->master, chunk->moment1, chunk->moment2};
    for (int p = 0; p < 3; p++)
        memcpy(planes[p], v->plane[p] + first_of(v, chunk), chunk->count * sizeof(float));
    return OT_OK;
}
