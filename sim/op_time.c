#include "sim/op_time.h"

#include "cost/calibration.h"
#include "program/measured_op.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdlib.h>

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---- rates of a job --------------------------------------------------------------------------------------------- */

static const enum dtp_collective goes_so[DTP_CARRIED_COUNT] = {
#define AS_GOES_SO(suffix, collective, text) [DTP_CARRIED_##suffix] = collective,
    DTP_CARRIED_TABLE(AS_GOES_SO)
#undef AS_GOES_SO
};

static void prepare_group(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                          struct dtp_group placed, struct dtp_group_rates *out)
{
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        const enum dtp_collective collective = (enum dtp_collective)i;
        const struct dtp_collective_cost links = dtp_collective_cost(cluster, &placed, collective);
        out->cost[i] = dtp_collective_cost_chosen(cluster, &placed, execution, collective, DTP_CARRIED_PLAIN);
        out->load[i] = dtp_collective_load(cluster, &placed, execution, collective, DTP_CARRIED_PLAIN);
        out->link_s_per_byte[i] =
            least(links.s_per_byte[DTP_PROTOCOL_SIMPLE], out->cost[i].s_per_byte[DTP_PROTOCOL_SIMPLE]);
    }
    for (int i = DTP_CARRIED_PLAIN + 1; i < DTP_CARRIED_COUNT; i++) {
        const enum dtp_carried how = (enum dtp_carried)i;
        out->carried[i] = dtp_collective_cost_chosen(cluster, &placed, execution, goes_so[i], how);
        out->carried_load[i] = dtp_collective_load(cluster, &placed, execution, goes_so[i], how);
    }
    double bus = dtp_group_bus_bytes_per_s(cluster, &placed);
    /* Every link and NIC that a ring passes carries its bus rate. Where one is faster than the ring's slowest it has
     * room for another communicator; how much is not known for links below a network, so the slowest counts as full and
     * the others as used in proportion. */
    double ranks_per_node = ceil((double)placed.ranks / placed.nodes);
    double link = dtp_cluster_link_bytes_per_s(cluster);
    out->link_use = ranks_per_node > 1 ? (placed.nodes > 1 ? least(1, bus / link) : 1) : 0;
    out->network_use = placed.nodes > 1 ? 1 : 0;
}

static double plain_launch_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution)
{
    struct dtp_execution plain = *execution;
    if (plain.issuer == DTP_ISSUER_DTENSOR || plain.issuer == DTP_ISSUER_DTENSOR_COMPILED)
        plain.issuer = DTP_ISSUER_PYTORCH;
    return dtp_cluster_kernel_launch_s(cluster, &plain);
}

bool dtp_op_is_plain(const struct dtp_op *op)
{
    switch (op->kind) {
    case DTP_OP_MATMUL:
    case DTP_OP_EMBEDDING:
    case DTP_OP_EMBEDDING_BACKWARD:
    case DTP_OP_NORM:
    case DTP_OP_NORM_BACKWARD:
    case DTP_OP_LOSS:
    case DTP_OP_LOSS_PARTS:
    case DTP_OP_LOSS_BACKWARD:
    case DTP_OP_NEWTON_SCHULZ:
    case DTP_OP_PROJECTION:
    case DTP_OP_OPTIMIZER: return false;
    default: return dtp_op_is_kernel(op);
    }
}

uint8_t dtp_op_host_call(const struct dtp_op *op)
{
    switch (op->kind) {
    case DTP_OP_HOST_GROUPS: return 1 + DTP_HOST_GROUP;
    case DTP_OP_HOST_HOOKS: return 1 + DTP_HOST_HOOK;
    case DTP_OP_HOST_EXCHANGE: return 1 + DTP_HOST_EXCHANGE;
    case DTP_OP_HOST_CALL: return 1 + DTP_HOST_COMPILED;
    default: return 0;
    }
}

enum dtp_status dtp_op_rates_prepare(const struct dtp_program *program, const struct dtp_cluster *cluster,
                                     struct dtp_op_rates *out, struct dtp_faults *faults)
{
    const struct dtp_execution *execution = dtp_program_execution(program);
    double ranks = cluster->gpus_per_node;
    *out = (struct dtp_op_rates){
        .cluster = cluster,
        .execution = execution,
        .copy_bytes_per_s = cluster->gpu.pcie_bytes_per_s * dtp_calibration.pcie_fraction,
        .host_optimizer_bytes_per_s = dtp_cluster_host_adam_bytes_per_s(cluster, execution, 0),
        .storage_read_bytes_per_s = cluster->machine.nvme_read_bytes_per_s / ranks,
        .storage_write_bytes_per_s = cluster->machine.nvme_write_bytes_per_s / ranks,
        .host_memory_bytes_per_s = cluster->machine.host_memory_bytes_per_s / ranks,
        .matmul_share = dtp_matmul_share(&cluster->gpu, execution),
        .accumulated_bytes_per_s = dtp_accumulated_bytes_per_s(&cluster->gpu),
        .gap_s = dtp_cluster_kernel_gap_s(cluster, execution),
        .passes = dtp_cluster_pass_rates(cluster),
        .launch_s = dtp_cluster_kernel_launch_s(cluster, execution),
        .plain_launch_s = plain_launch_s(cluster, execution),
        .collective_launch_s = dtp_cluster_collective_launch_s(cluster, execution),
        .loop_launch_s = dtp_cluster_collective_launch_s(cluster, execution), /* a plain launch too */
        .call_s = {[DTP_HOST_GROUP] = dtp_calibration.split_group_s,
                   [DTP_HOST_HOOK] = dtp_unit_hooks_s(execution),
                   [DTP_HOST_COMPILED] = dtp_calibration.compiled_call_s,
                   [DTP_HOST_EXCHANGE] = execution->issuer == DTP_ISSUER_MEGATRON ? dtp_calibration.megatron_experts_s
                                                                                  : dtp_calibration.expert_exchange_s},
        .group_count = dtp_program_group_count(program),
        .program = program,
        .ops = dtp_program_ops(program),
        .copy_duplex = cluster->measured ? dtp_measured_duplex(cluster->measured, cluster->gpus_per_node) : 1,
    };
    for (int i = 0; i < DTP_MEMORY_KERNEL_COUNT; i++)
        out->memory_kernel_bytes_per_s[i] =
            execution->own_kernels /* each of whose kernels was measured by itself, or none */
                ? dtp_memory_kernel_bytes_per_s(&cluster->gpu, execution, (enum dtp_memory_kernel)i)
                : dtp_cluster_memory_kernel_bytes_per_s(cluster, execution, (enum dtp_memory_kernel)i);
    if (cluster->measured) {
        out->measured_s = dtp_measured_op_seconds(program, cluster);
        if (!out->measured_s)
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for measured times");
    }
    if (!out->group_count)
        return DTP_OK;
    out->group = malloc(out->group_count * sizeof *out->group);
    if (!out->group) {
        dtp_op_rates_release(out);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for communicators");
    }
    const struct dtp_program_group *groups = dtp_program_groups(program);
    for (size_t i = 0; i < out->group_count; i++)
        prepare_group(cluster, execution, dtp_group_of(cluster, groups[i].ranks, groups[i].stride), &out->group[i]);
    for (size_t i = 0; i < out->group_count; i++)
        for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
            out->kernels_alike = out->kernels_alike || out->group[i].load[c].measured;
    return DTP_OK;
}

bool dtp_op_rates_place(struct dtp_op_rates *rates, const struct dtp_program_set *set, uint32_t role)
{
    const struct dtp_program_role *here = &set->roles[role];
    rates->peer = calloc(set->role_count, sizeof *rates->peer);
    if (!rates->peer)
        return false;
    for (uint32_t r = 0; r < set->role_count; r++) {
        uint32_t to = set->roles[r].first_rank;
        if (r != role)
            prepare_group(rates->cluster, rates->execution,
                          dtp_group_pair(rates->cluster, here->first_rank, to, set->run ? set->run : here->ranks),
                          &rates->peer[r]);
    }
    return true;
}

static const struct dtp_group_rates *group_rates(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    return rates->peer && dtp_op_kind_is_transfer(op->kind) ? &rates->peer[op->peer] : &rates->group[op->group];
}

void dtp_op_rates_release(struct dtp_op_rates *rates)
{
    free(rates->peer);
    free(rates->group);
    free(rates->measured_s);
    *rates = (struct dtp_op_rates){0};
}

/* ---- one operation ---------------------------------------------------------------------------------------------- */

static double matmul_seconds(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    const struct dtp_demand *d = op->demand;
    enum dtp_measured_matmul pass = dtp_measured_matmul_of_op(rates->program, op);
    if (!(d->m > 0 && d->n > 0 && d->k > 0))
        return 0;
    if (op->kind == DTP_OP_GROUPED_MATMUL)
        return dtp_cluster_grouped_matmul_s(rates->cluster, rates->execution, pass, d->dtype, d->groups, d->m, d->n,
                                            d->k);
    return (d->groups ? d->groups : 1) *
           dtp_cluster_matmul_s(rates->cluster, rates->execution, pass, d->dtype, d->m, d->n, d->k);
}

static double attention_seconds(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    const struct dtp_demand *d = op->demand;
    if (d->tokens <= 0)
        return 0;
    struct dtp_attention_time time =
        dtp_attention_time(&rates->cluster->gpu, &d->attention, rates->execution, d->tokens);
    return op->kind == DTP_OP_ATTENTION ? time.forward_s : time.backward_s;
}

static double gaps_of(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    const uint32_t kernels = op->demand->kernels;
    double one_s = dtp_op_is_plain(op) ? rates->plain_launch_s : rates->launch_s;
    return dtp_op_is_kernel(op) ? dtp_op_idle_s(rates, op->kind == DTP_OP_GROUPED_MATMUL, kernels,
                                                dtp_op_issued_s(rates, op->demand->issue, kernels, one_s))
                                : 0;
}

static double ratio(double amount, double rate)
{
    return amount > 0 ? amount / rate : 0;
}

static double collective_seconds(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    const struct dtp_group_rates *group = group_rates(rates, op);
    const enum dtp_carried how = dtp_op_carried(rates->program, op);
    return dtp_collective_time(how == DTP_CARRIED_PLAIN ? &group->cost[dtp_op_kind_collective(op->kind)]
                                                        : &group->carried[how],
                               op->demand->sent_bytes);
}

static uint32_t group_ctas(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    return dtp_program_groups(rates->program)[op->group].ctas;
}

/* The least that a collective takes where few thread blocks carry it, by what one of them moves; 0: no limit. */
static double few_ctas_s(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    uint32_t ctas = dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE ? group_ctas(rates, op) : 0;
    return ctas ? op->demand->sent_bytes / (ctas * dtp_calibration.ring_cta_bytes_per_s) : 0;
}

/* What passes, and sums over rows beside other kernels, take beside their bytes. */
static double pass_s(const struct dtp_pass_rates *rates, const struct dtp_demand *demand)
{
    double sums_s = demand->column_sums * rates->column_sum_s;
    if (demand->memory_kernel != DTP_KERNEL_PASS)
        return sums_s;
    return sums_s + demand->kernels * rates->start_s + demand->elements / rates->elements_per_s;
}

/* Columns of P [tokens, n], or rows of Q [tokens, n]. */
static double orthogonalize_seconds(const struct dtp_demand *d)
{
    return d->form == DTP_FORM_COLUMNS ? dtp_orthogonalize_s(d->n, d->tokens) : dtp_orthogonalize_s(d->tokens, d->n);
}

/* Of the result, which a matmul with that form reads too. */
static double subtracted_bytes(const struct dtp_demand *d)
{
    return d->form == DTP_FORM_SUBTRACTED ? d->m * d->n * dtp_dtype_bytes(d->dtype) : 0;
}

/* Of the rate of the executor's kernels that pass over memory and do little else. */
static double native_share(const struct dtp_op *op)
{
    const struct dtp_calibration *c = &dtp_calibration;
    switch (op->kind) {
    case DTP_OP_NORM_BACKWARD: return c->native_norm_backward;
    case DTP_OP_LOSS_PARTS:
    case DTP_OP_LOSS_BACKWARD: return c->native_loss * (op->demand->attention.softcap > 0 ? c->native_soft_cap : 1);
    default: return 1;
    }
}

double dtp_op_seconds(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    const struct dtp_demand *d = op->demand;
    double gaps_s = gaps_of(rates, op);
    if (rates->measured_s && isfinite(rates->measured_s[op - rates->ops]))
        return most(rates->measured_s[op - rates->ops], few_ctas_s(rates, op)) + (dtp_op_is_kernel(op) ? gaps_s : 0);
    switch (dtp_op_kind_class(op->kind)) {
    case DTP_CLASS_NONE: return 0;
    case DTP_CLASS_MATMUL:
        return gaps_s + matmul_seconds(rates, op) / rates->matmul_share +
               ratio(d->bytes + subtracted_bytes(d), rates->accumulated_bytes_per_s);
    case DTP_CLASS_ATTENTION: return gaps_s + attention_seconds(rates, op);
    case DTP_CLASS_MEMORY:
        if (op->kind == DTP_OP_ORTHOGONALIZE && rates->execution->own_kernels)
            return gaps_s + orthogonalize_seconds(d);
        return gaps_s + pass_s(&rates->passes, d) +
               ratio(d->bytes, rates->memory_kernel_bytes_per_s[d->memory_kernel] *
                                   (rates->execution->own_kernels ? native_share(op) : 1));
    case DTP_CLASS_COLLECTIVE: return most(collective_seconds(rates, op), few_ctas_s(rates, op));
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD: return ratio(d->sent_bytes, rates->copy_bytes_per_s);
    case DTP_CLASS_HOST: return ratio(d->bytes, rates->host_optimizer_bytes_per_s);
    case DTP_CLASS_STORAGE:
        return ratio(d->bytes, op->kind == DTP_OP_STORAGE_READ ? rates->storage_read_bytes_per_s
                                                               : rates->storage_write_bytes_per_s);
    }
    return 0;
}

/* Operations that agree in all that their price reads have one; of a matmul that are also its name and the roles of its
 * operands (measured_op.h), which programs that are only simulated leave empty. */
#define PRICES_KNOWN 512u

void dtp_op_seconds_all(const struct dtp_op_rates *rates, double *out, uint32_t *alike)
{
    const struct dtp_op *known[PRICES_KNOWN] = {NULL};
    for (size_t i = 0; i < dtp_program_op_count(rates->program); i++) {
        const struct dtp_op *op = &rates->ops[i];
        const struct dtp_operand *operands = dtp_program_operands(rates->program, op);
        uintptr_t at = ((uintptr_t)op->demand ^ (uintptr_t)op->name << 3) / 8 + op->kind;
        const struct dtp_op **same = &known[(at ^ at >> 9) % PRICES_KNOWN], *k = *same;
        bool shared = !rates->measured_s && !(operands && operands->role != DTP_ROLE_NONE);
        bool is_known = shared && k && k->demand == op->demand && k->name == op->name && k->kind == op->kind &&
                        k->group == op->group && k->peer == op->peer;
        out[i] = is_known ? out[k - rates->ops] : dtp_op_seconds(rates, op);
        if (alike)
            alike[i] = is_known ? (uint32_t)(k - rates->ops) : (uint32_t)i;
        if (shared && !is_known)
            *same = op;
    }
}

bool dtp_op_has_expert_rows(const struct dtp_op *op)
{
    if (!op->demand || !op->demand->groups)
        return false;
    switch (op->kind) {
    case DTP_OP_GROUPED_MATMUL:
    case DTP_OP_ALL_TO_ALL: return true;
    case DTP_OP_ACTIVATION:
    case DTP_OP_ACTIVATION_BACKWARD: return op->demand->k < 2; /* of rows that came; else of those that go */
    default: return false;
    }
}

double dtp_op_in_step_s(const struct dtp_op_rates *rates, const struct dtp_op *op, double alone_s, double factor,
                        double speedup)
{
    if (!dtp_op_is_kernel(op))
        return alone_s;
    return dtp_kernel_in_step_s(dtp_op_at_power_limit(rates->program, &rates->cluster->gpu, op), gaps_of(rates, op),
                                alone_s, factor, speedup);
}

struct dtp_kernel_sums dtp_op_sum_kernels(const struct dtp_op_rates *rates, const double *alone_s)
{
    struct dtp_kernel_sums sums = {0, 0, 0};
    const struct dtp_op *ops = dtp_program_ops(rates->program);
    for (size_t i = 0; i < dtp_program_op_count(rates->program); i++) {
        bool computes = ops[i].stream == DTP_STREAM_COMPUTE || ops[i].stream == DTP_STREAM_WEIGHT_GRADIENT;
        if (!computes || !dtp_op_is_kernel(&ops[i]))
            continue;
        double power = dtp_op_power(rates->program, &rates->cluster->gpu, &ops[i]);
        double gaps_s = power > 0 ? gaps_of(rates, &ops[i]) : alone_s[i];
        *(power < 1 ? &sums.lighter_s : &sums.matmul_s) += alone_s[i] - gaps_s;
        sums.other_s += gaps_s;
    }
    return sums;
}

double dtp_kernel_speedup(const struct dtp_cluster *cluster, const struct dtp_kernel_sums *sums, double other_s)
{
    return dtp_cluster_matmul_speedup(cluster, sums->matmul_s, sums->lighter_s, other_s);
}

/* Share of the SMs on which the thread blocks sit that carry a transfer, from its launch until it is through. */
static double held_sms(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    const double sms = (double)rates->cluster->gpu.sm_count;
    uint32_t ctas = group_ctas(rates, op);
    if (!ctas && !dtp_op_kind_is_transfer(op->kind))
        return 1; /* as its load has it */
    double blocks = ctas                                      ? ctas
                    : group_rates(rates, op)->network_use > 0 ? dtp_calibration.nccl_network_transfer_ctas
                                                              : dtp_calibration.nccl_transfer_ctas;
    return sms > 0 ? least(dtp_calibration.collective_most_sms, blocks / sms) : 0;
}

/* A collective takes its share of the SMs for as long as it runs: its CTAs sit there (contention_sm_share; none where
 * copy engines do its work), and what its buffers move through L2 and HBM slows every kernel beside it, matmuls too
 * (contention_memory_passes; a profiled down projection's backward took 410 us instead of 261). Both are counted as
 * SMs, for that is what computing kernels have all of: the same two constants and the same loss as the closed form's,
 * here only while something runs beside it. It is the kernel that yields: CTAs of a collective, once resident, do not
 * leave their SMs, hence the weight. */
static struct dtp_usage collective_usage(const struct dtp_op_rates *rates, const struct dtp_op *op, double seconds)
{
    const struct dtp_group_rates *group = group_rates(rates, op);
    const enum dtp_collective collective = dtp_op_kind_collective(op->kind);
    const enum dtp_carried how = dtp_op_carried(rates->program, op);
    const struct dtp_collective_load *load =
        how == DTP_CARRIED_PLAIN ? &group->load[collective] : &group->carried_load[how];
    double sent_per_s = op->demand->sent_bytes / seconds, hbm = sent_per_s / rates->cluster->gpu.memory_bytes_per_s;
    double sms = least(load->sm_share, held_sms(rates, op)) + load->memory_passes * hbm;
    double bus = least(1, sent_per_s * group->link_s_per_byte[collective]);
    struct dtp_usage usage = {.weight = dtp_calibration.collective_weight};
    usage.of[DTP_RESOURCE_SM] = least(sms, dtp_calibration.collective_most_sms);
    usage.of[DTP_RESOURCE_HBM] = least(1, 2 * hbm);
    /* a ring sends and receives at once; a transfer does one of them, and the network is its sender's */
    usage.of[DTP_RESOURCE_LINK_OUT] = op->kind == DTP_OP_RECV ? 0 : bus * group->link_use;
    usage.of[DTP_RESOURCE_LINK_IN] = op->kind == DTP_OP_SEND ? 0 : bus * group->link_use;
    usage.of[DTP_RESOURCE_NETWORK] = op->kind == DTP_OP_RECV ? 0 : bus * group->network_use;
    return usage;
}

/* Matmuls and attention want all SMs, and what HBM their operands pass through. A memory-bound kernel spends its time
 * partly in the SMs, partly in HBM, one after the other (op_cost.c: 1/rate = 1/HBM + 1/SMs), so it uses either in that
 * proportion and leaves the rest to other streams; so does a narrow matmul. In profiles of 2 H200 a collective beside
 * them cost matmuls 0.4 s a second and memory-bound kernels nothing. Vectors are made orthonormal by one thread block.
 */
static struct dtp_usage kernel_usage(const struct dtp_op_rates *rates, const struct dtp_op *op, double seconds)
{
    const struct dtp_demand *d = op->demand;
    double attainable = dtp_copy_bytes_per_s(&rates->cluster->gpu);
    struct dtp_usage usage = {.weight = 1};
    if (op->kind == DTP_OP_ORTHOGONALIZE && rates->execution->own_kernels) {
        usage.of[DTP_RESOURCE_SM] = rates->cluster->gpu.sm_count ? 1.0 / rates->cluster->gpu.sm_count : 1;
        return usage;
    }
    if (dtp_op_kind_class(op->kind) == DTP_CLASS_MEMORY && !rates->kernels_alike) {
        double bytes_s = ratio(d->bytes, rates->memory_kernel_bytes_per_s[d->memory_kernel]);
        double busy = least(1, (bytes_s + pass_s(&rates->passes, d)) / seconds);
        usage.of[DTP_RESOURCE_HBM] = least(busy, d->bytes / attainable / seconds);
        usage.of[DTP_RESOURCE_SM] = busy - usage.of[DTP_RESOURCE_HBM];
        return usage;
    }
    double operand_bytes = dtp_op_kind_class(op->kind) != DTP_CLASS_MATMUL
                               ? 0
                               : ((d->m + d->n) * d->k + d->m * d->n) * dtp_dtype_bytes(d->dtype);
    usage.of[DTP_RESOURCE_HBM] = least(1, operand_bytes / attainable / seconds);
    usage.of[DTP_RESOURCE_SM] = dtp_op_kind_class(op->kind) == DTP_CLASS_MATMUL ? rates->matmul_share : 1;
    if (op->kind == DTP_OP_MATMUL && dtp_matmul_is_narrow(d->dtype, d->m, d->n, d->k))
        usage.of[DTP_RESOURCE_SM] = least(rates->matmul_share, 1 - usage.of[DTP_RESOURCE_HBM]);
    return usage;
}

/* All SMs together make m n elements of a result, or attend with so many queries' heads, in `seconds`. */
double dtp_op_tile_s(const struct dtp_op_rates *rates, const struct dtp_op *op, double seconds)
{
    const struct dtp_demand *d = op->demand;
    bool attends = dtp_op_kind_class(op->kind) == DTP_CLASS_ATTENTION;
    double all = attends ? d->tokens * d->attention.heads : op->kind == DTP_OP_MATMUL ? d->m * d->n : 0;
    double tile = (attends ? 128 : 128 * 256) * (double)rates->cluster->gpu.sm_count;
    return all > 0 ? seconds * least(1, tile / all) : 0;
}

static double host_memory_use(const struct dtp_op_rates *rates, double bytes, double seconds)
{
    return rates->host_memory_bytes_per_s > 0 ? bytes / seconds / rates->host_memory_bytes_per_s : 0;
}

struct dtp_usage dtp_op_usage(const struct dtp_op_rates *rates, const struct dtp_op *op, double seconds)
{
    const struct dtp_demand *d = op->demand;
    struct dtp_usage usage = {.weight = 1};
    switch (dtp_op_kind_class(op->kind)) {
    case DTP_CLASS_NONE: break;
    case DTP_CLASS_MATMUL:
    case DTP_CLASS_ATTENTION:
    case DTP_CLASS_MEMORY: return kernel_usage(rates, op, seconds);
    case DTP_CLASS_COLLECTIVE: return collective_usage(rates, op, seconds);
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD:
        usage.of[op->kind == DTP_OP_UPLOAD ? DTP_RESOURCE_PCIE_UP : DTP_RESOURCE_PCIE_DOWN] =
            rates->measured_s ? 1 : least(1, d->sent_bytes / seconds / rates->copy_bytes_per_s);
        usage.of[op->kind == DTP_OP_UPLOAD ? DTP_RESOURCE_PCIE_DOWN : DTP_RESOURCE_PCIE_UP] = rates->copy_duplex - 1;
        usage.of[DTP_RESOURCE_HOST_MEMORY] = host_memory_use(rates, d->sent_bytes, seconds);
        break;
    case DTP_CLASS_HOST: usage.of[DTP_RESOURCE_HOST_MEMORY] = host_memory_use(rates, d->bytes, seconds); break;
    case DTP_CLASS_STORAGE:
        usage.of[DTP_RESOURCE_STORAGE] = 1;
        usage.of[DTP_RESOURCE_HOST_MEMORY] = host_memory_use(rates, d->bytes, seconds);
        break;
    }
    return usage;
}

/* Not of GPUs up to Ampere: zero-bubble pipelines of A100 (131 runs of arXiv:2401.10241), whose receives wait beside
 * passes, are as fast beside 1F1B, whose do not, as the schedules alone make them; with SMs held they would be 17 %
 * slower. Measured it was on Hopper, whose matmuls are persistent kernels with a thread block for each SM. */
static bool waiting_takes_sms(const struct dtp_gpu *gpu)
{
    return gpu->architecture > DTP_GPU_AMPERE;
}

struct dtp_usage dtp_op_waiting_usage(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    struct dtp_usage usage = {.weight = dtp_calibration.collective_weight};
    usage.of[DTP_RESOURCE_SM] = waiting_takes_sms(&rates->cluster->gpu) ? held_sms(rates, op) : 0;
    return usage;
}

double dtp_op_waves_beside_waiting(const struct dtp_op_rates *rates, const struct dtp_op *op, double share)
{
    const struct dtp_demand *d = op->demand;
    const double made_for = dtp_matmul_share(&rates->cluster->gpu, rates->execution);
    const double taken = most(0, share - (1 - made_for)) / made_for; /* of the SMs that it is made for */
    if (op->kind != DTP_OP_MATMUL || dtp_matmul_is_narrow(d->dtype, d->m, d->n, d->k) || taken <= 0 || taken >= 1)
        return 1;
    return dtp_matmul_speed_on_fewer_sms(made_for * rates->cluster->gpu.sm_count, d->m, d->n, taken) / (1 - taken);
}

double dtp_op_speed_beside_kernels(const struct dtp_op_rates *rates, const struct dtp_op *op)
{
    if (dtp_op_kind_class(op->kind) != DTP_CLASS_COLLECTIVE)
        return 1;
    return 1 / group_rates(rates, op)->load[dtp_op_kind_collective(op->kind)].slowdown;
}

double dtp_op_isolated_s(const struct dtp_program *program, const struct dtp_op *op, const struct dtp_cluster *cluster)
{
    struct dtp_op_rates rates;
    if (dtp_op_rates_prepare(program, cluster, &rates, NULL) != DTP_OK)
        return NAN;
    double seconds = dtp_op_seconds(&rates, op);
    dtp_op_rates_release(&rates);
    return seconds;
}
