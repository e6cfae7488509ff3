/* What the files of the probe share: one rank's part of it, and the samples of all ranks on their way to rows. */
#ifndef DTP_PROBER_H
#define DTP_PROBER_H

#include "bind/bind.h"
#include "machine/measured_row.h"
#include "probe/probe.h"
#include "train/run.h"
#include "job/scenario.h"

/* probe_rows.c: rank 0's samples, a row's in one place whoever measured them. */
struct dtp_probe_samples {
    struct dtp_measured_row row;
    double *seconds;
    size_t count, room;
};
struct dtp_probe_rows {
    struct dtp_probe_samples *all;
    size_t count, room;
};
enum dtp_status dtp_probe_rows_add(struct dtp_probe_rows *rows, const struct dtp_measured_row *row, double seconds,
                                   struct dtp_faults *faults);
/* Says each row with its median, quartiles and number of samples. */
void dtp_probe_rows_say(const struct dtp_probe_rows *rows, FILE *events);
void dtp_probe_rows_release(struct dtp_probe_rows *rows);

/* Lines of JSON; nothing where `events` is NULL. */
void dtp_probe_say_row(FILE *events, const struct dtp_measured_row *row);
void dtp_probe_say_about(FILE *events, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
void dtp_probe_say_start(FILE *events, const struct dtp_device *device, uint32_t ranks, uint32_t nodes);
void dtp_probe_say_progress(FILE *events, uint64_t done, uint64_t count, const char *words);
void dtp_probe_say_warning(FILE *events, const char *words);
/* Seconds of operations said so far go by a loop that took `loop_s`; at its best it took `least_s`. */
void dtp_probe_say_pace(FILE *events, double loop_s, double least_s);
void dtp_probe_say_end(FILE *events, bool interrupted);

struct dtp_prober {
    const struct dtp_probe_job *of;
    struct dtp_faults *faults;
    FILE *events; /* of rank 0, else NULL */
    bool first_rank, stop;
    uint32_t ranks, nodes;
    struct dtp_world world; /* its communicator comes and goes */
    struct dtp_device *device;
    char *device_base, *host_base; /* one of each, for all that is measured */
    uint64_t device_bytes, host_bytes;
    double loop_s, least_loop_s; /* of a host: the loop (pace.h) as it took at first, by which times of operations
                                    are said, and at its best */
    struct dtp_gpu gpu;          /* the catalogue's, or cores: of what is measured */
    struct dtp_probe_rows rows;  /* of rank 0 */
    uint64_t left_out;           /* times that no machine of the kind can reach, of all that this rank was to keep */
    char left_out_first[192];    /* what the first of them is of; "": none */
    uint64_t done, count;        /* measurements */
    char gpu_key[32];            /* of the catalogue, where the line names none */
    double gap_begin_s[2], gap_kernels; /* of the shorter of two programs that differ in depth: see probe_steps.c */
};

/* Before each measurement, on all ranks: false where one of them was asked to stop or the ranks fell apart. Ranks that
 * do not come to the next in time count as hanging. */
bool dtp_prober_next(struct dtp_prober *p, const char *words, enum dtp_status *status);
/* A sample of a row for this rank's rows, of which rank 0's are said, unless it is below what a machine of this kind
 * can do (measured_least.h): such a one is counted, and that said at the end. */
enum dtp_status dtp_prober_keep(struct dtp_prober *p, const struct dtp_measured_row *row, double seconds);
/* `count` samples by `once`, which all ranks call together; NAN: this rank takes no part. Where one of a rank is below
 * what a machine of this kind can do, all are taken anew, up to DTP_PROBE_TRIES times. */
#define DTP_PROBE_TRIES 3
typedef enum dtp_status (*dtp_probe_once)(void *of, double *seconds);
enum dtp_status dtp_prober_sample(struct dtp_prober *p, const struct dtp_measured_row *row, uint32_t count,
                                  dtp_probe_once once, void *of, double *samples);
/* Every rank's `count` samples under the same row; NAN is left out. This and the three below all ranks call together;
 * DTP_ENVIRONMENT: a rank does not answer. */
enum dtp_status dtp_prober_add(struct dtp_prober *p, const struct dtp_measured_row *row, const double *samples,
                               uint32_t count);
/* Every rank's `count` doubles, in the order of ranks, into rank 0's `all` [ranks * count]; `all` is NULL elsewhere. */
enum dtp_status dtp_prober_gather(struct dtp_prober *p, const double *mine, uint32_t count, double *all);
/* The least of all ranks' in place of each, on every rank. */
enum dtp_status dtp_prober_least(struct dtp_prober *p, double *values, uint32_t count);
enum dtp_status dtp_prober_barrier(struct dtp_prober *p);
/* How many times as long as at first a host's core takes, over the next `seconds`; of a GPU 1. */
double dtp_prober_slowed(struct dtp_prober *p, double seconds);
/* A fault in words of the device. */
enum dtp_status dtp_prober_device_failed(struct dtp_prober *p, int code, const char *what);
/* Fills device memory with random numbers of a tensor's name, from an element of it on. */
int dtp_prober_fill(struct dtp_prober *p, void *values, uint64_t count, uint64_t first, uint32_t tensor,
                    enum dtp_element element);

/* probe_table.c: a job of a step program. */
struct dtp_probe_step {
    struct dtp_job job;
    char words[96];
    enum {
        DTP_PROBE_ALONE,   /* each rank for itself */
        DTP_PROBE_DEEP,    /* so too: the deeper one of two that differ in depth, the other just before it */
        DTP_PROBE_TOGETHER /* all ranks one program that shards */
    } way;
    bool may_wait; /* of a host: it makes what is known better, and is left out where time is short */
};
/* The step programs to measure on this device with so many ranks, in their order. Caller frees *out. DTP_BAD_INPUT: the
 * line's own job is none. */
enum dtp_status dtp_probe_table(struct dtp_prober *p, struct dtp_probe_step **out, size_t *count);

/* probe_steps.c, probe_contention.c: one step program, from its lowering to its rows. DTP_NO: its first loss is wrong.
 */
enum dtp_status dtp_probe_step(struct dtp_prober *p, const struct dtp_probe_step *step);
enum dtp_status dtp_probe_step_together(struct dtp_prober *p, const struct dtp_probe_step *step);

/* A program that is ready to be walked. */
struct dtp_probe_program {
    struct dtp_job job;
    struct dtp_program *program;
    struct dtp_executor_arena arena;
    struct dtp_binding binding;
    struct dtp_run *run;
};
/* Bytes of its arenas. */
enum dtp_status dtp_probe_program_bytes(const struct dtp_job *job, uint64_t *device_bytes, uint64_t *host_bytes,
                                        struct dtp_faults *faults);
/* Close it also after a failure. */
enum dtp_status dtp_probe_program_open(struct dtp_prober *p, const struct dtp_job *job, bool together,
                                       struct dtp_probe_program *out);
void dtp_probe_program_close(struct dtp_prober *p, struct dtp_probe_program *program);
/* Plain steps, on all ranks as many, for `load_s` on a GPU; *step_s is the last one's. DTP_PROBE_LOAD_S: until its
 * clock is that of training. */
#define DTP_PROBE_LOAD_S 1.0
enum dtp_status dtp_probe_program_warm_up(struct dtp_prober *p, struct dtp_probe_program *program, double load_s,
                                          double *step_s);
/* One step. *host_s: what issuing it took the host. */
enum dtp_status dtp_probe_program_step(struct dtp_prober *p, struct dtp_probe_program *program, enum dtp_run_mode mode,
                                       double *step_s, double *host_s);
/* So many measured steps: begin and end of operation i in step s at spans[(s * ops + i) * 2]. Caller frees. */
enum dtp_status dtp_probe_program_spans(struct dtp_prober *p, struct dtp_probe_program *program, uint32_t steps,
                                        double **out);

/* Whether one rank is measured alone besides all at once: on a host a pass of its own does that. */
bool dtp_probe_both_ways_of_sharing(const struct dtp_prober *p);

/* probe_collectives.c, probe_copies.c, probe_host.c */
uint64_t dtp_probe_collective_count(const struct dtp_prober *p);
enum dtp_status dtp_probe_collectives(struct dtp_prober *p);
uint64_t dtp_probe_copy_count(const struct dtp_prober *p);
enum dtp_status dtp_probe_copies(struct dtp_prober *p);
uint64_t dtp_probe_host_count(const struct dtp_prober *p);
enum dtp_status dtp_probe_host(struct dtp_prober *p);
/* Bytes the two arenas should have for these, where there is as much. */
uint64_t dtp_probe_collective_bytes(const struct dtp_prober *p);
uint64_t dtp_probe_copy_bytes(const struct dtp_prober *p);

#endif
