/* How long a matmul takes by its shape: waves of tiles over the SMs, or the traffic of its operands, whichever is
 * longer.
 *
 * [m,k] x [k,n] is cut into tiles of 128 x 256 or 128 x 128, each worth k (+ a prologue and epilogue) steps on one SM.
 * S SMs run them in waves: a last wave that fills few SMs takes as long as a full one, unless the kernel spreads its
 * work finer (stream-K), so the time is between that of tiles/S and of ceil(tiles/S) waves. Where tiles are few, k is
 * cut into 2 to 16 parts whose results are added up through memory. The library tries these and takes the best, and so
 * does this.
 *
 * Of a grouped matmul each group has tiles of its own, which the last row of them may not fill; the SMs take tiles of
 * all groups one after the other. Each group has its own operands.
 *
 * A processor in place of the GPU (one "SM") works in blocks of registers: tiles of 8 x 8, so that no wave is
 * left empty. */
#include "machine/measured_shape.h"

#include <math.h>

enum {
#define AS_ENUM(suffix, words, unit) suffix,
    DTP_MEASURED_MATMUL_PARAMETERS(AS_ENUM)
#undef AS_ENUM
};

struct work {
    double groups, m, n, k, sms, operand_bytes, memory_bytes_per_s;
    double sm_flops_per_s, prologue, whole_waves; /* of the parameters */
};

static double tiled_s(const struct work *w, double tile_m, double tile_n, double speed, double parts)
{
    double waves = w->groups * ceil(w->m / tile_m) * ceil(w->n / tile_n) * parts / w->sms;
    double whole = ceil(waves), spread = fmax(1, waves);
    double tile_s = 2 * tile_m * tile_n * (w->k / parts + w->prologue) / (w->sm_flops_per_s * speed);
    double partial_bytes = parts > 1 ? 8 * parts * w->groups * w->m * w->n : 0; /* fp32, written and read */
    double compute_s = tile_s * spread * pow(whole / spread, w->whole_waves);
    double memory_s = (w->operand_bytes + partial_bytes) / w->memory_bytes_per_s;
    if (w->sms == 1) /* a processor widens and packs its operands before it multiplies */
        return compute_s + memory_s;
    double longer = fmax(compute_s, memory_s), shorter = fmin(compute_s, memory_s) / longer;
    /* Near the ridge neither hides the other wholly. */
    return longer * sqrt(sqrt(1 + shorter * shorter * shorter * shorter));
}

double dtp_measured_matmul_log_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype,
                                 const struct dtp_measured_shape *shape, const double *parameters)
{
    const double edge = gpu->sm_count > 1 ? 128 : 8;
    const double tiles[][2] = {{edge, 2 * edge}, {2 * edge, edge}, {edge, edge}};
    double in_bytes = dtp_dtype_bytes(dtype), out_bytes = in_bytes < 2 ? 2 : in_bytes;
    struct work w = {.groups = round(exp(shape->at[4])),
                     .m = fmax(1, round(exp(shape->at[0]))),
                     .n = round(exp(shape->at[1])),
                     .k = fmax(1, round(exp(shape->at[2]))),
                     .sms = gpu->sm_count}; /* whole numbers: a millionth of a row would cost a tile */
    w.operand_bytes = w.groups * ((w.m + w.n) * w.k * in_bytes + w.m * w.n * out_bytes);
    w.memory_bytes_per_s = gpu->memory_bytes_per_s * exp(parameters[MEMORY]);
    w.sm_flops_per_s = exp(parameters[RATE]) / w.sms;
    w.prologue = exp(parameters[PROLOGUE]);
    w.whole_waves = 1 / (1 + exp(-parameters[QUANTISATION]));
    double best = INFINITY, small_tile = exp(parameters[SMALL_TILE]);
    for (int i = 0; i < 3; i++)
        for (double parts = 1; parts <= 16; parts *= 2) {
            best = fmin(best, tiled_s(&w, tiles[i][0], tiles[i][1], i == 2 ? small_tile : 1, parts));
            if (w.groups * ceil(w.m / tiles[i][0]) * ceil(w.n / tiles[i][1]) * parts >= w.sms)
                break; /* all SMs have work: more parts only add traffic */
        }
    return log(exp(parameters[LATENCY]) + best);
}
