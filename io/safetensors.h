/* Tensors in files: Hugging Face's safetensors, alone or as the shards of an index.
 *
 * A file is the length of its header (8 bytes, little-endian), the header (a JSON object: name -> dtype, shape,
 * data_offsets), and the tensors' bytes without a gap (https://github.com/huggingface/safetensors, "Format").
 * Reading is strict: whatever a file says is checked when it is opened, and OT_ERR_FORMAT names file and tensor. */
#ifndef OT_IO_SAFETENSORS_H
#define OT_IO_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "io/status.h"

typedef enum ot_file_dtype {
    OT_FILE_BOOL,
    OT_FILE_U8,
    OT_FILE_I8,
    OT_FILE_F8_E4M3,
    OT_FILE_F8_E5M2,
    OT_FILE_I16,
    OT_FILE_U16,
    OT_FILE_F16,
    OT_FILE_BF16,
    OT_FILE_I32,
    OT_FILE_U32,
    OT_FILE_F32,
    OT_FILE_I64,
    OT_FILE_U64,
    OT_FILE_F64,
} ot_file_dtype;

const char *ot_file_dtype_name(ot_file_dtype dtype); /* as in a header: "BF16" */
size_t ot_file_dtype_bytes(ot_file_dtype dtype);     /* of one element */

enum { OT_FILE_DIMENSIONS_MAX = 8 };

/* What a tensor is called and what it is. A shape without dimensions is one element. */
typedef struct ot_tensor_spec {
    const char *name;
    ot_file_dtype dtype;
    size_t dimensions;
    uint64_t shape[OT_FILE_DIMENSIONS_MAX];
} ot_tensor_spec;

/* ---- Reading ---- */

/* A tensor in its file. Lives as long as its set. */
typedef struct ot_file_tensor {
    ot_tensor_spec spec;
    uint64_t offset, bytes; /* in the file */
    size_t file;            /* of the set */
} ot_file_tensor;

typedef struct ot_tensor_set ot_tensor_set;

/* One file. OT_ERR_FORMAT, where it is missing, too; OT_ERR_IO where it cannot be read. */
ot_status ot_tensor_set_open_file(const char *path, ot_tensor_set **out) OT_MUST_CHECK;

/* DIRECTORY/STEM.safetensors, or the shards of DIRECTORY/STEM.safetensors.index.json, which has to agree with every
 * shard's header. Both at once are refused. */
ot_status ot_tensor_set_open(const char *directory, const char *stem, ot_tensor_set **out) OT_MUST_CHECK;

void ot_tensor_set_close(ot_tensor_set *set); /* NULL is allowed */

/* Tensors by number, in the order of files and of offsets in them, and by name: NULL where there is none. */
size_t ot_tensor_set_count(const ot_tensor_set *set);
const ot_file_tensor *ot_tensor_set_at(const ot_tensor_set *set, size_t index);
const ot_file_tensor *ot_tensor_set_find(const ot_tensor_set *set, const char *name);

/* The path of a tensor's file. */
const char *ot_tensor_set_path(const ot_tensor_set *set, const ot_file_tensor *tensor);

/* A text of the first file's __metadata__, or NULL. */
const char *ot_tensor_set_metadata(const ot_tensor_set *set, const char *key);

/* Bytes first .. first+bytes-1 of a tensor. Any thread; blocks. */
ot_status ot_tensor_set_read(const ot_tensor_set *set, const ot_file_tensor *tensor, uint64_t first,
                             void *data, uint64_t bytes) OT_MUST_CHECK;

/* ---- Writing ---- */

typedef struct ot_tensor_writer ot_tensor_writer;

#define OT_SHARD_BYTES UINT64_C(5000000000)

typedef struct ot_tensor_writer_options {
    const char *directory; /* exists; no file of the set is in it */
    const char *stem;      /* "model" */
    const ot_tensor_spec *tensors;
    size_t count;
    uint64_t shard_bytes; /* above it there are several files and an index; 0: OT_SHARD_BYTES */
} ot_tensor_writer_options;

/* Writes files as Hugging Face does: STEM.safetensors, or STEM-00001-of-0000N.safetensors and
 * STEM.safetensors.index.json, a tensor larger than a shard in a file of its own. The specs are copied. An existing file
 * is never overwritten: OT_ERR_IO. */
ot_status ot_tensor_writer_open(const ot_tensor_writer_options *options,
                                ot_tensor_writer **out) OT_MUST_CHECK;

/* The next bytes of all tensors, one after the other in the order given; cut anywhere. */
ot_status ot_tensor_writer_append(ot_tensor_writer *writer, const void *data, uint64_t bytes) OT_MUST_CHECK;

/* Behind the last byte: writes the index, and makes all files and the folder durable. */
ot_status ot_tensor_writer_finish(ot_tensor_writer *writer) OT_MUST_CHECK;

typedef struct ot_written_file {
    const char *name; /* in the directory; lives as long as the writer */
    uint64_t bytes;
    uint64_t xxh3; /* of the whole file, XXH3-64 */
} ot_written_file;

/* The files, with the index last, after ot_tensor_writer_finish. */
size_t ot_tensor_writer_files(const ot_tensor_writer *writer);
ot_written_file ot_tensor_writer_file(const ot_tensor_writer *writer, size_t index);

/* Closes what is open. What has been written stays: it is the caller's to remove. NULL is allowed. */
void ot_tensor_writer_close(ot_tensor_writer *writer);

#endif
