/* Charts as inline SVG for report.html: no script, no font, nothing from elsewhere. */
#ifndef OT_TOOLS_CHART_H
#define OT_TOOLS_CHART_H

#include <stddef.h>
#include <stdio.h>

/* A line, or a layer of a stack. Values that are not finite leave a gap. */
typedef struct ot_series {
    const char *name;
    const double *values; /* [count] of the chart */
} ot_series;

typedef struct ot_chart {
    const char *title, *unit;
    const double *x; /* [count], ascending */
    size_t count;
    const ot_series *series;
    size_t series_count; /* at most OT_CHART_SERIES_MAX */
    int stacked;         /* 1: areas on top of one another, from 0 */
} ot_chart;

enum { OT_CHART_SERIES_MAX = 6 };

/* Writes a figure. With more points than it has columns a line goes through their means. Nothing for a chart without a finite
 * value. */
void ot_chart_print(const ot_chart *chart, FILE *out);

/* Text with <, >, & and quotes written as HTML wants them. */
void ot_html_text(const char *text, FILE *out);

/* The style that charts and tables share, for a <style> element. */
extern const char *const ot_html_style;

#endif
