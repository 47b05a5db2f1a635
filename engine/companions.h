/* The files of a Hugging Face directory that go along with a model unchanged: its tokenizer, chat template and the like. */
#ifndef OT_ENGINE_COMPANIONS_H
#define OT_ENGINE_COMPANIONS_H

#include <stddef.h>

#include "io/status.h"

/* Their names, NULL behind the last. */
const char *ot_companion_name(size_t index);

/* Copies those that are there; durable on return, apart from the folder's own entry. OT_ERR_IO. */
ot_status ot_companions_copy(const char *from, const char *to) OT_MUST_CHECK;

#endif
