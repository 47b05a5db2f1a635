/* The progress bar: the last line of the terminal, on stderr, which gives way to everything else that is printed. */
#ifndef OT_TOOLS_PROGRESS_H
#define OT_TOOLS_PROGRESS_H

#include "tools/metrics.h"

typedef struct ot_progress {
    int on, shown;
} ot_progress;

/* `word`: auto (a terminal), on, off. */
void ot_progress_init(ot_progress *progress, const char *word);

/* Draws the bar for a step that has ended. */
void ot_progress_draw(ot_progress *progress, const ot_row *row);

/* Takes it away; what is printed next begins on an empty line. */
void ot_progress_clear(ot_progress *progress);

/* "1:02:03", "4:05". */
enum { OT_DURATION_BYTES = 32 };
const char *ot_format_duration(double seconds, char out[OT_DURATION_BYTES]);

#endif
