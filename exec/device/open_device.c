#include "device/open_device.h"

#include "ranks/cores.h"

#include <string.h>
#include <unistd.h>

#if !DTP_WITH_CUDA
static enum dtp_status no_cuda(struct dtp_faults *faults)
{
    return dtp_fault(
        faults, DTP_ENVIRONMENT, NULL, 0,
        "--device cuda: this dtplan was built without CUDA; build it where nvcc is, or take --device host");
}
#endif

/* Ranks of one machine share its cores evenly; 0: all of them. */
static uint32_t threads_of(const struct dtp_settings *settings, uint32_t ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (settings->threads > 0 || ranks <= 1 || cores < 1)
        return (uint32_t)settings->threads;
    return (uint32_t)cores > ranks ? (uint32_t)cores / ranks : 1;
}

/* srun --gpus-per-task and its like show each rank one GPU, its own, whatever its number on the machine. Ranks that
 * share GPUs are dealt to them in turn. */
uint32_t dtp_open_device_ordinal(const struct dtp_settings *settings, const struct dtp_ranks *ranks)
{
    uint32_t count = 0;
    bool binds = strcmp(ranks->launcher, "srun") == 0 || strcmp(ranks->launcher, "mpirun") == 0;
    if (!settings->cuda || dtp_open_device_count(settings, &count, NULL) != DTP_OK || count == 0)
        return settings->cuda ? ranks->local_rank : 0;
    if (settings->share_gpu)
        return ranks->local_rank % count;
    return binds && count == 1 ? 0 : ranks->local_rank;
}

enum dtp_status dtp_open_device(const struct dtp_settings *settings, const struct dtp_ranks *ranks,
                                const struct dtp_execution *execution, struct dtp_device **out,
                                struct dtp_faults *faults)
{
    struct dtp_device_options options = {.threads = threads_of(settings, ranks->local_world),
                                         .choices_path = settings->choices,
                                         .matmul_sms = execution ? execution->matmul_sms : 0,
                                         .peer_memory =
                                             ranks->world > 1 && execution && (execution->windows || execution->copied),
                                         .brief_search = !execution,
                                         .shared_gpu = settings->share_gpu,
                                         .untimed_search = settings->share_gpu || settings->untimed_matmuls};
    if (!settings->cuda)
        return dtp_device_host_create(&options, out, faults);
#if DTP_WITH_CUDA
    options.ordinal = dtp_open_device_ordinal(settings, ranks);
    return dtp_device_cuda_create(&options, out, faults);
#else
    return no_cuda(faults);
#endif
}

enum dtp_status dtp_open_device_count(const struct dtp_settings *settings, uint32_t *out, struct dtp_faults *faults)
{
    *out = 1;
    if (!settings->cuda)
        return DTP_OK;
#if DTP_WITH_CUDA
    return dtp_device_cuda_count(out, faults);
#else
    return no_cuda(faults);
#endif
}

enum dtp_status dtp_take_cores(const struct dtp_settings *settings, struct dtp_world *world, struct dtp_faults *faults)
{
#if DTP_WITH_CUDA
    if (settings->cuda)
        return dtp_cores_take(world, dtp_device_cuda_numa_node(dtp_open_device_ordinal(settings, &world->ranks)),
                              faults);
#endif
    (void)settings, (void)world, (void)faults;
    return DTP_OK;
}
