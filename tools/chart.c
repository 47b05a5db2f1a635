#include "tools/chart.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 560, HEIGHT = 220, LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 26, COLUMNS = 400, TICKS = 4 };

const char *const ot_html_style =
    ":root{--ink:#1b1f24;--faint:#8a929c;--paper:#fff;--rule:#e3e6ea;"
    "--c0:#2f6fde;--c1:#d9822b;--c2:#2f9e62;--c3:#b0457b;--c4:#7a5bd0;--c5:#8a929c}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--faint:#8a929c;--paper:#16191d;--rule:#2b3036;"
    "--c0:#6fa0ff;--c1:#f0a45a;--c2:#5cc98e;--c3:#e07fae;--c4:#a68cf0;--c5:#8a929c}}"
    "body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;"
    "margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem}h2{font-size:1.05rem;margin-top:2rem}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:1rem}figure{margin:0}"
    "figcaption{font-weight:600}svg{width:100%;height:auto}svg text{fill:var(--faint);font-size:11px}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:right;border-bottom:1px solid "
    "var(--rule)}td:first-child,th:first-child{text-align:left}th{color:var(--faint);font-weight:500}"
    "pre{background:var(--rule);padding:.6rem .8rem;overflow-x:auto;border-radius:4px}.key{font-weight:400;color:"
    "var(--faint);margin-left:.8rem}.key i{display:inline-block;width:.7em;height:.7em;margin-right:.3em}";

void ot_html_text(const char *text, FILE *out)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
}

/* What is drawn: `count` columns, each with the mean of the points that fall into it. */
typedef struct drawing {
    const ot_chart *chart;
    size_t count;
    double x[COLUMNS], y[OT_CHART_SERIES_MAX][COLUMNS];
    double low, high;
} drawing;

static void thin_out(drawing *d)
{
    const ot_chart *c = d->chart;
    d->count = c->count < COLUMNS ? c->count : COLUMNS;
    for (size_t i = 0; i < d->count; i++) {
        size_t begin = i * c->count / d->count, end = (i + 1) * c->count / d->count;
        d->x[i] = c->x[end - 1];
        for (size_t s = 0; s < c->series_count; s++) {
            double sum = 0;
            size_t finite = 0;
            for (size_t k = begin; k < end; k++)
                if (isfinite(c->series[s].values[k])) {
                    sum += c->series[s].values[k];
                    finite++;
                }
            d->y[s][i] = finite > 0 ? sum / (double)finite : NAN;
        }
    }
}

static void stack_up(drawing *d)
{
    for (size_t i = 0; i < d->count; i++)
        for (size_t s = 0; s < d->chart->series_count; s++) {
            double below = s > 0 ? d->y[s - 1][i] : 0;
            d->y[s][i] = below + (isfinite(d->y[s][i]) ? d->y[s][i] : 0);
        }
}

/* Steps of 1, 2 or 5 times a power of ten, about TICKS of them. */
static double tick_step(double range)
{
    double raw = range / TICKS, power = pow(10, floor(log10(raw))), rest = raw / power;
    return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

static int find_range(drawing *d)
{
    d->low = INFINITY;
    d->high = -INFINITY;
    for (size_t s = 0; s < d->chart->series_count; s++)
        for (size_t i = 0; i < d->count; i++)
            if (isfinite(d->y[s][i])) {
                d->low = fmin(d->low, d->y[s][i]);
                d->high = fmax(d->high, d->y[s][i]);
            }
    if (!isfinite(d->low))
        return 0;
    if (d->chart->stacked)
        d->low = 0;
    if (d->high <= d->low) {
        double room = d->high != 0 ? fabs(d->high) * 0.1 : 1;
        d->high += room;
        d->low -= d->chart->stacked ? 0 : room;
    }
    return 1;
}

static double at_x(const drawing *d, double x)
{
    double first = d->x[0], last = d->x[d->count - 1];
    double share = last > first ? (x - first) / (last - first) : 0.5;
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double at_y(const drawing *d, double y)
{
    return HEIGHT - BOTTOM - (y - d->low) / (d->high - d->low) * (HEIGHT - TOP - BOTTOM);
}

static void print_axes(const drawing *d, FILE *out)
{
    double step = tick_step(d->high - d->low);
    for (double y = ceil(d->low / step) * step; y <= d->high + step * 1e-9; y += step) {
        double value = fabs(y) < step * 1e-9 ? 0 : y;
        fprintf(
            out,
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--rule)\"/><text x=\"%d\" y=\"%.1f\" "
            "text-anchor=\"end\">%.4g</text>",
            LEFT, WIDTH - RIGHT, at_y(d, y), at_y(d, y), LEFT - 6, at_y(d, y) + 4, value);
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\">%.10g</text>", LEFT, HEIGHT - 8, d->x[0]);
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">step %.10g</text>", WIDTH - RIGHT, HEIGHT - 8,
            d->x[d->count - 1]);
}

static void print_line(const drawing *d, size_t s, FILE *out)
{
    int pen = 0;
    fputs("<path fill=\"none\" stroke-width=\"1.6\" stroke=\"", out);
    fprintf(out, "var(--c%zu)\" d=\"", s);
    for (size_t i = 0; i < d->count; i++) {
        if (isfinite(d->y[s][i]))
            fprintf(out, "%c%.1f %.1f", pen ? 'L' : 'M', at_x(d, d->x[i]), at_y(d, d->y[s][i]));
        pen = isfinite(d->y[s][i]);
    }
    fputs("\"/>", out);
    for (size_t i = 0; i < d->count && d->count < 8; i++)
        if (isfinite(d->y[s][i]))
            fprintf(out, "<circle r=\"2.2\" fill=\"var(--c%zu)\" cx=\"%.1f\" cy=\"%.1f\"/>", s,
                    at_x(d, d->x[i]), at_y(d, d->y[s][i]));
}

static void print_area(const drawing *d, size_t s, FILE *out)
{
    fprintf(out, "<path fill=\"var(--c%zu)\" d=\"", s);
    for (size_t i = 0; i < d->count; i++)
        fprintf(out, "%c%.1f %.1f", i > 0 ? 'L' : 'M', at_x(d, d->x[i]), at_y(d, d->y[s][i]));
    for (size_t i = d->count; i-- > 0;)
        fprintf(out, "L%.1f %.1f", at_x(d, d->x[i]), at_y(d, s > 0 ? d->y[s - 1][i] : 0));
    fputs("Z\"/>", out);
}

void ot_chart_print(const ot_chart *chart, FILE *out)
{
    drawing d = {.chart = chart};
    if (chart->count == 0)
        return;
    thin_out(&d);
    if (chart->stacked)
        stack_up(&d);
    if (!find_range(&d))
        return;
    fputs("<figure><figcaption>", out);
    ot_html_text(chart->title, out);
    fputs("<span class=\"key\">", out);
    ot_html_text(chart->unit, out);
    fputs("</span>", out);
    for (size_t s = 0; s < chart->series_count && chart->series_count > 1; s++) {
        fprintf(out, "<span class=\"key\"><i style=\"background:var(--c%zu)\"></i>", s);
        ot_html_text(chart->series[s].name, out);
        fputs("</span>", out);
    }
    fprintf(out, "</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH, HEIGHT);
    print_axes(&d, out);
    for (size_t s = 0; s < chart->series_count; s++)
        (chart->stacked ? print_area : print_line)(&d, s, out);
    fputs("</svg></figure>\n", out);
}
