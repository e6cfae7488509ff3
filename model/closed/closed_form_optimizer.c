#include "closed/closed_form_timing.h"

#include "cost/cluster_cost.h"
#include "net/layer_kind.h"
#include "plan/optimizer_state.h"
#include "plan/runtime_sizes.h"

double dtp_timing_newton_schulz_s(const struct dtp_timing *c)
{
    const struct dtp_plan *plan = c->plan;
    struct dtp_layer_kind kind;
    double all_s = 0;
    if (!dtp_optimizer_matrix_elements(c->transformer, plan))
        return 0;
    dtp_layer_kind_of(c->transformer, DTP_LAYER_DENSE, plan->fused_qkv, plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        struct dtp_newton_schulz p;
        dtp_newton_schulz_of(plan, kind.matrix[i].out, kind.matrix[i].in, &p);
        const double shapes[][3] = {{p.n, p.n, p.m}, {p.n, p.n, p.n}, {p.n, p.m, p.n}};
        for (int product = 0; product < 3; product++)
            all_s += DTP_NEWTON_SCHULZ_STEPS *
                     dtp_cluster_matmul_s(c->cluster, &c->execution, DTP_MEASURED_MATMUL_FORWARD, DTP_BF16,
                                          shapes[product][0], shapes[product][1], shapes[product][2]);
    }
    return c->layers * all_s;
}

double dtp_timing_optimizer_launch_s(const struct dtp_timing *c)
{
    return (double)dtp_optimizer_loop_kernels(c->transformer, c->plan) *
           dtp_cluster_kernel_launch_s(c->cluster, &c->execution);
}
