#include "ranks/ranks.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

/* What each launcher calls what we need. The first whose rank variable is set is the launcher. */
struct names {
    const char *launcher, *rank, *world, *local_rank, *local_world;
};
static const struct names launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

struct reading {
    char *(*get)(const char *name);
    struct dtp_ranks *ranks;
    struct dtp_faults *faults;
    enum dtp_status status;
};

static const char *value_of(const struct reading *r, const char *name)
{
    const char *value = r->get(name);
    return value && *value ? value : NULL;
}

/* `fallback` where the variable is not set; UINT32_MAX: it must be. */
static uint32_t whole(struct reading *r, const char *launcher, const char *name, uint64_t maximum, uint32_t fallback)
{
    const char *value = value_of(r, name);
    uint64_t number = 0;
    if (!value && fallback != UINT32_MAX)
        return fallback;
    if (!value)
        r->status =
            dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0,
                      "%s: not set, though %s started this process; start all ranks by one launcher", name, launcher);
    else if (!dtp_number_parse_integer(value, false, 0, maximum, &number))
        r->status = dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0, "%s: '%s' is no whole number up to %llu", name, value,
                              (unsigned long long)maximum);
    return (uint32_t)number;
}

static const struct names *find_launcher(const struct reading *r)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        /* Inside an allocation Slurm sets its variables for a plain process too; only srun numbers the step's tasks. */
        bool srun = strcmp(launchers[i].launcher, "srun") == 0;
        if (value_of(r, launchers[i].rank) && (!srun || value_of(r, "SLURM_STEP_ID")))
            return &launchers[i];
    }
    if (value_of(r, "WORLD_SIZE") && strcmp(value_of(r, "WORLD_SIZE"), "1") != 0)
        return &launchers[0]; /* which will find RANK missing */
    return NULL;
}

/* "node[003-010,12],other" -> "node003": the first host of Slurm's list. */
static bool first_host(const char *list, char *out, size_t bytes)
{
    size_t stem = strcspn(list, "[,"), digits = list[stem] == '[' ? strcspn(list + stem + 1, "-,]") : 0;
    int length = snprintf(out, bytes, "%.*s%.*s", (int)stem, list, (int)digits, digits ? list + stem + 1 : "");
    return length > 0 && (size_t)length < bytes;
}

static void find_host(struct reading *r, const char *launcher)
{
    struct dtp_ranks *ranks = r->ranks;
    const char *given = value_of(r, "MASTER_ADDR"), *slurm = value_of(r, "SLURM_LAUNCH_NODE_IPADDR");
    const char *nodes = value_of(r, "SLURM_STEP_NODELIST");
    bool srun = strcmp(launcher, "srun") == 0, fits = true;
    if (given)
        fits = snprintf(ranks->host, sizeof ranks->host, "%s", given) < (int)sizeof ranks->host;
    else if (ranks->local_world == ranks->world)
        snprintf(ranks->host, sizeof ranks->host, "127.0.0.1");
    else if (srun && nodes) /* rank 0 runs on the step's first node; the launch node may be a login node */
        fits = first_host(nodes, ranks->host, sizeof ranks->host);
    else if (srun && slurm)
        fits = snprintf(ranks->host, sizeof ranks->host, "%s", slurm) < (int)sizeof ranks->host;
    else
        r->status = dtp_fault(
            r->faults, DTP_BAD_INPUT, NULL, 0,
            "MASTER_ADDR: not set, and %u ranks are on several machines; set it to the host of rank 0", ranks->world);
    if (!fits)
        r->status = dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0, "MASTER_ADDR: no host's name is that long");
}

static void find_port(struct reading *r, const char *launcher)
{
    const char *agent = value_of(r, "TORCHELASTIC_USE_AGENT_STORE");
    bool taken = agent && strcmp(agent, "True") == 0;
    uint32_t fallback = DTP_RANKS_DEFAULT_PORT;
    if (strcmp(launcher, "srun") == 0)
        fallback = 20000 + whole(r, launcher, "SLURM_JOB_ID", UINT32_MAX, 0) % 40000;
    uint32_t port = whole(r, launcher, "MASTER_PORT", 65534, fallback);
    if (port == 0)
        r->status =
            dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0, "MASTER_PORT: 0 is no port; give one from 1024 to 65534");
    r->ranks->port = (uint16_t)(port + taken);
}

enum dtp_status dtp_ranks_read(char *(*get)(const char *name), struct dtp_ranks *out, struct dtp_faults *faults)
{
    struct reading r = {get, out, faults, DTP_OK};
    *out = (struct dtp_ranks){.world = 1, .local_world = 1, .port = DTP_RANKS_DEFAULT_PORT, .host = "127.0.0.1"};
    const struct names *names = find_launcher(&r);
    if (!names)
        return DTP_OK;
    snprintf(out->launcher, sizeof out->launcher, "%s", names->launcher);
    out->rank = whole(&r, names->launcher, names->rank, DTP_RANKS_MAX - 1, UINT32_MAX);
    out->world = whole(&r, names->launcher, names->world, DTP_RANKS_MAX, UINT32_MAX);
    out->local_rank = whole(&r, names->launcher, names->local_rank, DTP_RANKS_MAX - 1, UINT32_MAX);
    bool srun =
        strcmp(names->launcher, "srun") == 0; /* which does not say how many it starts on each of several nodes */
    bool here = srun ? whole(&r, names->launcher, "SLURM_STEP_NUM_NODES", UINT32_MAX, 0) == 1
                     : value_of(&r, "MASTER_ADDR") == NULL;
    uint32_t all_here = here ? out->world : 0;
    out->local_world = whole(&r, names->launcher, names->local_world, DTP_RANKS_MAX, all_here);
    if (r.status == DTP_OK && out->rank >= out->world)
        r.status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: rank %u of %u; ranks count from 0 to %s - 1",
                             names->rank, out->rank, out->world, names->world);
    if (r.status == DTP_OK && out->local_world && out->local_rank >= out->local_world)
        r.status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: %u of %u on this machine", names->local_rank,
                             out->local_rank, out->local_world);
    find_host(&r, names->launcher);
    find_port(&r, names->launcher);
    return r.status;
}
