/* A device: who owns the arenas, issues work to streams and computes.
 *
 * There are two. The CUDA device (exec/device/device_cuda.c) is asynchronous: everything below that takes a stream
 * returns when it is issued, and nothing between `capture_begin` and `capture_end` reaches the GPU before `launch`. The
 * host device (exec/device/device_host.c) does at once what it is told, on CPU cores, in the order of issue, for a
 * program is a list in an order in which it can be done; but for the streams of transfers between the stages of a
 * pipeline (dtp_stream_transfers), which are asynchronous there too.
 *
 * The interpreter makes a device, allocates the two arenas once, binds the program to them, lets the device prepare
 * what it is going to be asked (choices of algorithms, attention plans), and from then on only issues: no allocation,
 * no synchronisation inside a step. Streams and events are the device's own and opaque. Verbs that may fail for reasons
 * worth words take faults; those on the way of a step return 0 or a code that `error_text` names, and never anything
 * else. */
#ifndef DTP_DEVICE_H
#define DTP_DEVICE_H

#include "kernels/kernels.h"
#include "program/program.h"

/* What a device is asked to compute: one entry for each function of the kernel table, in its order. */
enum dtp_kernel {
#define X(name, args) DTP_KERNEL_##name,
    DTP_KERNEL_TABLE(X)
#undef X
        DTP_KERNEL_COUNT
};

struct dtp_device_memory {
    uint64_t total_bytes, free_bytes; /* of the GPU, whoever uses it; of the machine for the host device */
};

struct dtp_device_options {
    uint32_t ordinal;         /* which GPU of this machine */
    uint32_t threads;         /* of the host device's matmuls; 0: one per core */
    const char *choices_path; /* file of matmul algorithms, read and added to, its folders made; NULL: none */
    uint32_t matmul_sms;      /* as matmuls will be asked for, 0: all; algorithms chosen for a part are kept apart */
    bool peer_memory;         /* device memory is allocated so that NCCL can map it into the peers' address space */
    bool brief_search;   /* algorithms that the file does not have are chosen in a tenth of a second each, and not kept:
                            for who asks for hundreds of shapes */
    bool shared_gpu;     /* other processes compute on it in turns with this one (matmul_search.h) */
    bool untimed_search; /* of such algorithms the first that cuBLASLt names and that runs: on a GPU that others use too
                            no time tells them apart, and all who share it choose alike. Not kept */
};

struct dtp_device;

struct dtp_device_verbs {
    void (*destroy)(struct dtp_device *device);

    /* Memory. Each is called a few times, before step 0. `host` memory is pinned on CUDA and readable by it. Refused
     * with DTP_NO where the device has too little, in words that name both amounts; contents are not initialised;
     * addresses are multiples of 4096. */
    enum dtp_status (*memory)(struct dtp_device *device, struct dtp_device_memory *out, struct dtp_faults *faults);
    enum dtp_status (*allocate)(struct dtp_device *device, uint64_t bytes, void **out, struct dtp_faults *faults);
    void (*release)(struct dtp_device *device, void *memory);
    enum dtp_status (*allocate_host)(struct dtp_device *device, uint64_t bytes, void **out, struct dtp_faults *faults);
    void (*release_host)(struct dtp_device *device, void *memory);

    /* Between any two arenas, in either direction; device memory is never touched by the host otherwise. */
    int (*copy)(struct dtp_device *device, void *to, const void *from, uint64_t bytes, void *stream);

    /* Streams live as long as the device; gather, reduce and replicate have a higher priority than compute. */
    void *(*stream)(struct dtp_device *device, enum dtp_stream stream);

    /* Events. `timed` ones can be subtracted once both are done; they are what makes a trace. `wait` lets a stream wait
     * for what was recorded last; `finish` lets the host wait. */
    enum dtp_status (*event_create)(struct dtp_device *device, bool timed, void **out, struct dtp_faults *faults);
    void (*event_destroy)(struct dtp_device *device, void *event);
    int (*record)(struct dtp_device *device, void *event, void *stream);
    int (*wait)(struct dtp_device *device, void *stream, void *event);
    int (*finish)(struct dtp_device *device, void *event);
    int (*elapsed)(struct dtp_device *device, void *from, void *to, double *out_s);
    int (*synchronise)(struct dtp_device *device); /* all streams; also reports what failed asynchronously */

    /* `value` stands in `*slot`, which lies in memory of allocate_host, when all before it on the stream is done: so
     * that the host can see how far a stream is without asking the device, which may hang. */
    int (*mark)(struct dtp_device *device, uint32_t *slot, uint32_t value, void *stream);

    /* Work of the host in a stream's order: `call(argument)` runs when all before it on the stream is done. It must not
     * use the device. */
    int (*host_call)(struct dtp_device *device, void (*call)(void *argument), void *argument, void *stream);

    /* Capture of a whole step into a graph. Begins on the compute stream; another stream joins by waiting for an event
     * recorded on one that takes part, and must be waited for before the end. The host device refuses (DTP_BAD_INPUT).
     */
    enum dtp_status (*capture_begin)(struct dtp_device *device, struct dtp_faults *faults);
    enum dtp_status (*capture_end)(struct dtp_device *device, void **out_graph, struct dtp_faults *faults);
    int (*launch)(struct dtp_device *device, void *graph);
    void (*graph_destroy)(struct dtp_device *device, void *graph);

    /* Called once for each bound computation, before step 0 and before anything is initialised: `arguments` is the
     * struct the table's function will get, and all the memory it points to may be written (random numbers to time
     * candidates on). Refuses with DTP_BAD_INPUT or DTP_ENVIRONMENT what the device cannot compute and a workspace too
     * small. */
    enum dtp_status (*prepare)(struct dtp_device *device, enum dtp_kernel kernel, const void *arguments,
                               struct dtp_faults *faults);

    const char *(*error_text)(struct dtp_device *device, int code);
};

struct dtp_device {
    const struct dtp_device_verbs *verbs;
    struct dtp_kernels kernels; /* call as kernels.norm(kernels.self, &arguments, stream) */
    char name[128];             /* "host (2 threads, OpenBLAS)", "NVIDIA H200" */
    char libraries[256];        /* versions of what computes, for logs and reports */
    bool asynchronous;
};

/* Each sets *out, or refuses: DTP_ENVIRONMENT without a GPU, without memory. Destroy by device->verbs->destroy. */
enum dtp_status dtp_device_host_create(const struct dtp_device_options *options, struct dtp_device **out,
                                       struct dtp_faults *faults);
/* Only in builds with CUDA (DTP_WITH_CUDA). The node of the machine's memory that the GPU is near, -1 where that is not
 * known; makes no context. */
int dtp_device_cuda_numa_node(uint32_t ordinal);
enum dtp_status dtp_device_cuda_create(const struct dtp_device_options *options, struct dtp_device **out,
                                       struct dtp_faults *faults);
/* GPUs that this process may use; makes no context. DTP_ENVIRONMENT: there is none, or no driver. */
enum dtp_status dtp_device_cuda_count(uint32_t *out, struct dtp_faults *faults);

#endif
