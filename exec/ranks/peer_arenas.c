#include "ranks/peer_arenas.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank tells all others: its arena, and whether it can be mapped. */
struct word {
    cudaIpcMemHandle_t handle;
    int code;
};

static enum dtp_status out_of_memory(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the arenas of other ranks");
}

/* The first rank that says it could not, in all ranks' `why`; whether all could. */
static bool all_could(struct dtp_peer_arenas *out, const struct word *all, uint32_t world, const char *what)
{
    for (uint32_t r = 0; r < world; r++)
        if (all[r].code) {
            snprintf(out->why, sizeof out->why, "rank %u cannot %s (%s)", r, what,
                     cudaGetErrorString((cudaError_t)all[r].code));
            return false;
        }
    return true;
}

static int open_wanted(struct dtp_peer_arenas *out, const struct word *all, uint32_t world, const bool *wanted)
{
    for (uint32_t r = 0; r < world; r++) {
        if (r == out->rank || !wanted[r])
            continue;
        void *at = NULL;
        cudaError_t code = cudaIpcOpenMemHandle(&at, all[r].handle, cudaIpcMemLazyEnablePeerAccess);
        if (code != cudaSuccess) {
            cudaGetLastError(); /* or the next launch would report it */
            return (int)code;
        }
        out->at[r] = at;
    }
    return 0;
}

static enum dtp_status map(const struct dtp_ranks *ranks, struct dtp_control *control, const bool *wanted,
                           struct word *all, struct dtp_peer_arenas *out, struct dtp_faults *faults)
{
    struct word mine;
    memset(&mine, 0, sizeof mine);
    mine.code = (int)cudaIpcGetMemHandle(&mine.handle, out->own);
    if (mine.code)
        cudaGetLastError();
    enum dtp_status status = dtp_control_exchange(control, &mine, sizeof mine, all, faults);
    if (status != DTP_OK || !all_could(out, all, ranks->world, "give its memory to others"))
        return status;
    mine.code = open_wanted(out, all, ranks->world, wanted);
    status = dtp_control_exchange(control, &mine, sizeof mine, all, faults);
    if (status == DTP_OK)
        all_could(out, all, ranks->world, "see a peer's memory");
    return status;
}

enum dtp_status dtp_peer_arenas_map(const struct dtp_ranks *ranks, struct dtp_control *control, void *arena,
                                    const bool *wanted, struct dtp_peer_arenas *out, struct dtp_faults *faults)
{
    *out = (struct dtp_peer_arenas){.at = calloc(ranks->world, sizeof *out->at), .own = arena, .rank = ranks->rank};
    struct word *all = calloc(ranks->world, sizeof *all);
    enum dtp_status status = out->at && all ? DTP_OK : out_of_memory(faults);
    if (status == DTP_OK) {
        out->at[out->rank] = out->own;
        status = map(ranks, control, wanted, all, out, faults);
    }
    free(all);
    if (status != DTP_OK || out->why[0]) {
        char why[sizeof out->why];
        memcpy(why, out->why, sizeof why);
        dtp_peer_arenas_close(out, ranks->world);
        memcpy(out->why, why, sizeof why);
    }
    return status;
}

void dtp_peer_arenas_close(struct dtp_peer_arenas *peers, uint32_t world)
{
    for (uint32_t r = 0; peers->at && r < world; r++)
        if (r != peers->rank && peers->at[r])
            cudaIpcCloseMemHandle(peers->at[r]);
    free(peers->at);
    *peers = (struct dtp_peer_arenas){0};
}
