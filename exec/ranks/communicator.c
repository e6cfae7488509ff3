#include "ranks/communicator.h"

struct dtp_group_place dtp_group_place(const struct dtp_program_group *group, uint32_t rank)
{
    uint32_t span = group->ranks * group->stride, first = rank / span * span + rank % group->stride;
    return (struct dtp_group_place){.instance = rank / span * group->stride + rank % group->stride,
                                    .index = (rank - first) / group->stride,
                                    .first = first,
                                    .ranks = group->ranks,
                                    .stride = group->stride};
}

enum dtp_status dtp_groups_check(const struct dtp_communicator_options *options, struct dtp_faults *faults)
{
    uint32_t world = options->ranks->world;
    for (uint32_t i = 0; i < options->group_count; i++) {
        uint64_t span = (uint64_t)options->groups[i].ranks * options->groups[i].stride;
        if (span == 0 || span > world || world % span != 0)
            return dtp_fault(
                faults, DTP_BAD_INPUT, NULL, 0,
                "group %u of %u ranks %u apart does not divide a world of %u; start as many ranks as the plan has GPUs",
                i, options->groups[i].ranks, options->groups[i].stride, world);
    }
    return DTP_OK;
}

void dtp_communicator_count_rows(struct dtp_communicator *c, const struct dtp_exchange *exchange, uint32_t member)
{
    c->calls[DTP_ALL_TO_ALL]++;
    c->sent_bytes[DTP_ALL_TO_ALL] += dtp_exchange_sent_bytes(exchange, member);
}

void dtp_communicator_count(struct dtp_communicator *c, const struct dtp_collective_args *args, uint32_t ranks)
{
    c->calls[args->collective]++;
    if (args->collective == DTP_SEND_RECV) {
        c->sent_bytes[args->collective] += args->receives ? 0 : args->bytes;
        return;
    }
    uint64_t ring_bytes = (args->bytes + ranks - 1) / ranks * (ranks - 1); /* as dtp_lower_ring rounds */
    c->sent_bytes[args->collective] += args->collective == DTP_ALL_REDUCE ? 2 * ring_bytes : ring_bytes;
}
