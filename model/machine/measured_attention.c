/* How long causal attention takes by its shape: its FLOPs at a rate that grows with the sequence, for the first and
 * last blocks of a row are masked or short, and with the width of a head, which feeds the tensor cores more per
 * softmax. */
#include "machine/measured_shape.h"

#include <math.h>

enum {
#define AS_ENUM(suffix, words, unit) suffix,
    DTP_MEASURED_ATTENTION_PARAMETERS(AS_ENUM)
#undef AS_ENUM
};

double dtp_measured_attention_log_s(bool backward, const struct dtp_measured_shape *shape, const double *parameters)
{
    double rows = exp(shape->at[0]), sequence = exp(shape->at[1]), width = exp(shape->at[2]);
    /* QK^T and PV are 2 s^2 d each, half of it masked; backward forms five such products, forward two (op_cost.c). */
    double flops = rows * 2 * sequence * sequence * width * (backward ? DTP_ATTENTION_BACKWARD_FLOPS : 1);
    double narrower = (log(128) - shape->at[2]) / M_LN2; /* halvings from 128 */
    double rate = exp(parameters[RATE] + parameters[HEAD] * narrower) * sequence / (sequence + exp(parameters[HALF]));
    return log(exp(parameters[LATENCY]) + flops / rate);
}
