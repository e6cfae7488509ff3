#include "html/svg_step.h"

#include "html/html.h"
#include "sim/memory_curve.h"
#include "html/svg.h"

#include <math.h>
#include <stdlib.h>

#define LEFT 80.0
#define PIXELS 756

/* What a lane shows apart; the number is the colour's, of class "step" (report.css). */
enum work {
    MATMUL,
    ATTENTION,
    MEMORY_BOUND,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_REDUCE,
    OTHER_COLLECTIVE,
    HOST_COPY,
    HOST,
    WORK_COUNT
};

static const struct {
    const char *words;
    unsigned colour;
} works[WORK_COUNT] = {
    [MATMUL] = {"matmul", 1},
    [ATTENTION] = {"attention", 2},
    [MEMORY_BOUND] = {"memory-bound kernels", 3},
    [ALL_GATHER] = {"all-gather", 7},
    [REDUCE_SCATTER] = {"reduce-scatter", 8},
    [ALL_REDUCE] = {"all-reduce", 6},
    [OTHER_COLLECTIVE] = {"other collective", 9},
    [HOST_COPY] = {"host copy", 4},
    [HOST] = {"host and storage", 10},
};

/* WORK_COUNT: nothing that takes time. */
static enum work work_of(enum dtp_op_kind kind)
{
    switch (dtp_op_kind_class(kind)) {
    case DTP_CLASS_MATMUL: return MATMUL;
    case DTP_CLASS_ATTENTION: return ATTENTION;
    case DTP_CLASS_MEMORY: return MEMORY_BOUND;
    case DTP_CLASS_COLLECTIVE: break;
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD: return HOST_COPY;
    case DTP_CLASS_HOST:
    case DTP_CLASS_STORAGE: return HOST;
    case DTP_CLASS_NONE: return WORK_COUNT;
    }
    switch (dtp_op_kind_collective(kind)) {
    case DTP_ALL_GATHER: return ALL_GATHER;
    case DTP_REDUCE_SCATTER: return REDUCE_SCATTER;
    case DTP_ALL_REDUCE: return ALL_REDUCE;
    default: return OTHER_COLLECTIVE;
    }
}

/* Seconds of each work in each pixel of each stream. */
struct lanes {
    double busy_s[DTP_STREAM_COUNT][PIXELS][WORK_COUNT];
    bool used[DTP_STREAM_COUNT], shown[WORK_COUNT];
};

static void fill(const struct dtp_simulated *s, struct lanes *lanes)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    double pixel_s = s->timeline.step_s / PIXELS;
    for (size_t i = 0; i < s->timeline.op_count; i++) {
        enum work work = work_of(ops[i].kind);
        double start = s->timeline.span[i].start_s / pixel_s, end = s->timeline.span[i].end_s / pixel_s;
        if (work == WORK_COUNT || !(end > start))
            continue;
        lanes->used[ops[i].stream] = lanes->shown[work] = true;
        for (int pixel = (int)start; pixel < PIXELS && pixel < end; pixel++)
            lanes->busy_s[ops[i].stream][pixel][work] += fmin(end, pixel + 1) - fmax(start, pixel);
    }
}

/* What took most of a pixel, if it was busy for more than half a tenth of it. */
static enum work most_of(const double busy[WORK_COUNT])
{
    enum work most = WORK_COUNT;
    for (int work = 0; work < WORK_COUNT; work++)
        if (busy[work] > 0.05 && (most == WORK_COUNT || busy[work] > busy[most]))
            most = (enum work)work;
    return most;
}

static void draw_lane(const double busy[PIXELS][WORK_COUNT], double top, FILE *file)
{
    for (int from = 0, to; from < PIXELS; from = to) {
        enum work work = most_of(busy[from]);
        for (to = from + 1; to < PIXELS && most_of(busy[to]) == work;)
            to++;
        if (work != WORK_COUNT)
            fprintf(file, "<rect class=\"f%u\" x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"26\"/>\n",
                    works[work].colour, LEFT + from, top, to - from);
    }
}

static void key(FILE *file, unsigned colour, const char *words)
{
    fprintf(file,
            "<li><svg viewBox=\"0 0 16 12\" class=\"key\" aria-hidden=\"true\"><rect class=\"f%u\" width=\"16\" "
            "height=\"12\"/></svg>",
            colour);
    dtp_html_format(file, "%s</li>", words);
}

void dtp_svg_lanes(const struct dtp_simulated *s, FILE *file)
{
    struct lanes *lanes = calloc(1, sizeof *lanes);
    double top = 8, bottom = 8;
    if (!lanes || !(s->timeline.step_s > 0)) {
        free(lanes);
        return;
    }
    fill(s, lanes);
    for (int stream = 0; stream < DTP_STREAM_COUNT; stream++)
        bottom += lanes->used[stream] ? 34 : 0;
    struct dtp_svg_axis axis = dtp_svg_axis(0, s->timeline.step_s * 1e3, 0, 8, LEFT, LEFT + PIXELS);
    axis.most = s->timeline.step_s * 1e3; /* lanes end where the step ends */
    while (axis.tick_count > 0 && axis.ticks[axis.tick_count - 1] > axis.most)
        axis.tick_count--;
    fputs("<ul class=\"legend\">", file);
    for (int work = 0; work < WORK_COUNT; work++)
        if (lanes->shown[work])
            key(file, works[work].colour, works[work].words);
    fputs("</ul>\n", file);
    dtp_svg_begin(file, "What each stream of a GPU does during a step", bottom + 46);
    dtp_svg_x_axis(file, &axis, 8, bottom, "ms of one step: what took most of each pixel");
    for (int stream = 0; stream < DTP_STREAM_COUNT; stream++) {
        if (!lanes->used[stream])
            continue;
        dtp_svg_text(file, LEFT - 8, top + 18, "end", dtp_stream_text((enum dtp_stream)stream));
        draw_lane((const double(*)[WORK_COUNT])lanes->busy_s[stream], top, file);
        top += 34;
    }
    dtp_svg_end(file);
    free(lanes);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* From below to above, what stays longest first; the colours are those of the bars of memory. */
static const struct {
    enum dtp_owner owner;
    unsigned colour;
} layers[DTP_OWNER_COUNT] = {
    {DTP_OWNER_PARAMS, 1},  {DTP_OWNER_OPTIMIZER, 2},   {DTP_OWNER_WORKSPACE, 9},
    {DTP_OWNER_GRADS, 3},   {DTP_OWNER_ACTIVATIONS, 4}, {DTP_OWNER_LOGITS, 5},
    {DTP_OWNER_WEIGHTS, 6}, {DTP_OWNER_GATHER, 7},      {DTP_OWNER_REDUCE, 8},
};

#define BINS (PIXELS / 2)

/* The fullest point of each bin, where nothing changes that of the bin before. */
static void choose(const struct dtp_memory_point *points, size_t count, double last_s,
                   const struct dtp_memory_point *chosen[BINS])
{
    size_t next = 0;
    const struct dtp_memory_point *now = points;
    for (size_t bin = 0; bin < BINS; bin++) {
        const struct dtp_memory_point *most = now;
        for (; next < count && points[next].time_s <= last_s * (double)(bin + 1) / BINS; next++) {
            now = &points[next];
            most = now->total_bytes > most->total_bytes ? now : most;
        }
        chosen[bin] = most;
    }
}

static double height_of(const struct dtp_memory_point *point, size_t layer_count)
{
    double bytes = 0;
    for (size_t i = 0; i < layer_count; i++)
        bytes += (double)point->bytes[layers[i].owner];
    return bytes / 0x1p30;
}

static void draw_layer(const struct dtp_memory_point *const chosen[BINS], size_t layer, const struct dtp_svg_axis *y,
                       FILE *file)
{
    fprintf(file, "<path class=\"f%u\" d=\"M%.0f %.1f", layers[layer].colour, LEFT,
            dtp_svg_place(y, height_of(chosen[0], layer)));
    for (int bin = 0; bin < BINS; bin++)
        fprintf(file, "L%.0f %.1f", LEFT + 2 * bin, dtp_svg_place(y, height_of(chosen[bin], layer + 1)));
    for (int bin = BINS - 1; bin > 0; bin--)
        fprintf(file, "L%.0f %.1f", LEFT + 2 * bin, dtp_svg_place(y, height_of(chosen[bin], layer)));
    fputs("z\"/>\n", file);
}

static void draw_memory(const struct dtp_memory_point *points, size_t count, FILE *file)
{
    const struct dtp_memory_point *chosen[BINS];
    double most = 0, last_s = points[count - 1].time_s;
    choose(points, count, last_s, chosen);
    for (int bin = 0; bin < BINS; bin++)
        most = fmax(most, height_of(chosen[bin], DTP_OWNER_COUNT));
    struct dtp_svg_axis x = dtp_svg_axis(0, last_s * 1e3, 0, 8, LEFT, LEFT + PIXELS);
    struct dtp_svg_axis y = dtp_svg_axis(0, most, 0, 6, 300, 34);
    x.most = last_s * 1e3;
    while (x.tick_count > 0 && x.ticks[x.tick_count - 1] > x.most)
        x.tick_count--;
    fputs("<ul class=\"legend\">", file);
    for (size_t layer = 0; layer < DTP_OWNER_COUNT; layer++) {
        uint64_t held = 0;
        for (int bin = 0; bin < BINS; bin++)
            held |= chosen[bin]->bytes[layers[layer].owner];
        if (held)
            key(file, layers[layer].colour, dtp_owner_words(layers[layer].owner));
    }
    fputs("</ul>\n", file);
    dtp_svg_begin(file, "Tensors on the device over a step, by owner", 350);
    dtp_svg_x_axis(file, &x, 34, 300, "ms of one step, as the device comes to it");
    dtp_svg_y_axis(file, &y, LEFT, LEFT + PIXELS, "tensors on the device, GiB");
    for (size_t layer = 0; layer < DTP_OWNER_COUNT; layer++)
        draw_layer(chosen, layer, &y, file);
    dtp_svg_end(file);
}

enum dtp_status dtp_svg_memory(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    const struct dtp_memory_point *points;
    size_t count;
    if (!dtp_memory_curve(s->program, &s->timeline, &arena, &points, &count))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (count > 1 && points[count - 1].time_s > 0)
        draw_memory(points, count, file);
    dtp_host_arena_release(&arena);
    return DTP_OK;
}
