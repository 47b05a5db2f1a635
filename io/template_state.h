/* The inside of a chat template: its variants, and the segments that a conversation is rendered into. */
#ifndef OT_IO_TEMPLATE_STATE_H
#define OT_IO_TEMPLATE_STATE_H

#include "io/template.h"

typedef enum ot_style {
    OT_STYLE_NONE,
    OT_STYLE_CHATML,
    OT_STYLE_LLAMA2,
    OT_STYLE_LLAMA3,
    OT_STYLE_MISTRAL,
    OT_STYLE_GEMMA,
    OT_STYLE_PHI3,
    OT_STYLE_ZEPHYR,
    OT_STYLE_ALPACA,
    OT_STYLES,
} ot_style;

typedef enum ot_segment_kind {
    OT_SEGMENT_TEXT,
    OT_SEGMENT_MARKER, /* a special token where the tokenizer has it, else text; NUL-terminated */
    OT_SEGMENT_BOS,
    OT_SEGMENT_EOS,
} ot_segment_kind;

typedef struct ot_segment {
    ot_segment_kind kind;
    int trained;
    const char *text; /* of the turns or the template */
    size_t bytes;
} ot_segment;

typedef struct ot_segments {
    ot_segment *items;
    size_t count, capacity;
    int failed; /* out of memory */
} ot_segments;

enum { OT_MARKERS_MAX = 16 };

/* A special token that the template writes. */
typedef struct ot_marker {
    const char *text;
    int32_t id;
    int strips; /* swallows the white space behind it */
} ot_marker;

struct ot_template {
    ot_style style;
    const ot_tokenizer *tokenizer;
    int32_t bos_id, eos_id;
    int bos;       /* the text begins with BOS */
    int bos_each;  /* llama2: so does each question */
    char *system;  /* of conversations without a system turn; NULL: none */
    int thinks;    /* chatml, Qwen3: reasoning between <think> and </think> */
    int dated;     /* llama3, 3.1 on: a system turn with dates */
    int no_system; /* gemma 1 and 2, early mistral: a system turn is refused */
    int final_eos; /* phi3: EOS behind the conversation */
    char *open;    /* mistral: before and behind a user's turn */
    char *close;
    int space, trim; /* mistral: before an assistant's turn; of its text */
    int gap;         /* mistral, 0.1: a space behind EOS */
    int system_last; /* mistral: the system text stands before the last user's turn */

    ot_marker markers[OT_MARKERS_MAX];
    size_t marker_count;
    char
        *glue; /* a special token's text, where text behind one is encoded unlike at a beginning; else NULL */
};

/* Fills `out` with the conversation; its texts are those of `turns` and of the template. */
ot_status ot_template_render(const ot_template *chat, const ot_turn *turns, size_t count,
                             ot_segments *out) OT_MUST_CHECK;

/* The special tokens that a style writes; NULL behind the last. */
const char *const *ot_style_markers(ot_style style);

extern const char *const ot_style_names[OT_STYLES];

#endif
