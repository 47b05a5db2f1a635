/* The files of a Hugging Face directory that go along with a model unchanged: its tokenizer, chat template and the like. */
#ifndef OT_ENGINE_COMPANIONS_H
#define OT_ENGINE_COMPANIONS_H

#include <stddef.h>

#include "io/status.h"

/* Their names, NULL behind the last. */
const char *ot_companion_name(size_t index);

/* Those of a folder, held open: a run can copy them until its end, whatever becomes of the folder, which may be that of a
 * checkpoint that makes room for newer ones. OT_ERR_IO, or OT_ERR_FORMAT where one is no file. */
typedef struct ot_companions ot_companions;
ot_status ot_companions_open(const char *folder, ot_companions **out) OT_MUST_CHECK;
void ot_companions_close(ot_companions *companions); /* NULL is allowed */

/* Copies those that are there; durable on return, apart from the folder's own entry. OT_ERR_IO. */
ot_status ot_companions_copy(const ot_companions *companions, const char *to) OT_MUST_CHECK;

#endif
