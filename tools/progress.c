#include "tools/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "io/text.h"

void ot_progress_init(ot_progress *progress, const char *word)
{
    progress->shown = 0;
    progress->on = strcmp(word, "on") == 0 || (strcmp(word, "auto") == 0 && isatty(STDERR_FILENO));
}

const char *ot_format_duration(double seconds, char out[OT_DURATION_BYTES])
{
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(out, OT_DURATION_BYTES, "?");
        return out;
    }
    long long all = llround(seconds), hours = all / 3600, minutes = all / 60 % 60;
    if (hours > 0)
        snprintf(out, OT_DURATION_BYTES, "%lld:%02lld:%02lld", hours, minutes, all % 60);
    else
        snprintf(out, OT_DURATION_BYTES, "%lld:%02lld", minutes, all % 60);
    return out;
}

static int terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

void ot_progress_draw(ot_progress *progress, const ot_row *row)
{
    enum { BAR_MAX = 60, BAR_MIN = 8 };
    if (!progress->on)
        return;
    char text[160], eta[OT_DURATION_BYTES], rate[OT_NUMBER_TEXT_BYTES], bar[BAR_MAX + 1];
    double done = (double)row->step / (double)row->total_steps;
    int length =
        snprintf(text, sizeof text, "%3.0f %%  %" PRIu64 "/%" PRIu64 "  loss %.4f  %5s tok/s  ETA %5s",
                 100 * done, row->step, row->total_steps, row->loss, ot_format_number(row->tok_per_s, rate),
                 ot_format_duration(row->eta_s, eta));
    int width = terminal_columns() - length - 4;
    width = width > BAR_MAX ? BAR_MAX : width < BAR_MIN ? BAR_MIN : width;
    int filled = (int)(done * width);
    for (int i = 0; i < width; i++)
        bar[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    bar[width] = '\0';
    fprintf(stderr, "\r[%s] %s\033[K", bar, text);
    fflush(stderr);
    progress->shown = 1;
}

void ot_progress_clear(ot_progress *progress)
{
    if (!progress->shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->shown = 0;
}
