/* The CUDA device: our kernels, cuBLASLt and cuDNN on one GPU. */
#include "device/device.h"

#include "base/append.h"
#include "device/attention.h"
#include "device/matmul.h"
#include "device/pages.h"

#include <cublasLt.h>
#include <ctype.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

/* Codes of the libraries beyond CUDA's own, which stay below the first of these. */
#define MATMUL_CODE 100000
#define CUDNN_CODE 200000
#define ALLOCATION_BYTES (2u << 20) /* whole pages of the GPU: addresses are multiples of it */

typedef CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);

/* Above it, host memory is of our own pages, pinned afterwards: placed near this rank's cores, and huge. */
#define OWN_PAGES_BYTES (UINT64_C(64) << 20)
#define OWN_PAGES_COUNT 4 /* the host's arena, and what a checkpoint and a snapshot are copied to */

struct cuda_device {
    struct dtp_device device;
    struct {
        void *memory; /* NULL: none */
        uint64_t bytes;
    } own_pages[OWN_PAGES_COUNT]; /* large pieces that are pinned */
    cudaStream_t streams[DTP_STREAM_COUNT];
    struct dtp_matmul *matmul;
    struct dtp_attention_plans *attention;
    write_value *write_value;
    bool peer_memory;
};

static struct cuda_device *own(struct dtp_device *device)
{
    return (struct cuda_device *)device;
}

static enum dtp_status refuse(struct dtp_faults *faults, const char *doing, cudaError_t error)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the GPU cannot %s: %s", doing, cudaGetErrorString(error));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static enum dtp_status memory(struct dtp_device *device, struct dtp_device_memory *out, struct dtp_faults *faults)
{
    size_t free_bytes, total_bytes;
    (void)device;
    const cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return refuse(faults, "tell its memory", error);
    *out = (struct dtp_device_memory){.total_bytes = total_bytes, .free_bytes = free_bytes};
    return DTP_OK;
}

static cudaError_t take(const struct cuda_device *cuda, uint64_t bytes, void **out)
{
#if NCCL_VERSION_CODE >= 21900
    if (cuda->peer_memory)
        return ncclMemAlloc(out, bytes) == ncclSuccess ? cudaSuccess : cudaErrorMemoryAllocation;
#endif
    return cudaMalloc(out, bytes);
}

static enum dtp_status allocate(struct dtp_device *device, uint64_t bytes, void **out, struct dtp_faults *faults)
{
    struct dtp_device_memory gpu = {0};
    *out = NULL;
    enum dtp_status status = memory(device, &gpu, faults);
    if (status != DTP_OK)
        return status;
    if (bytes > gpu.free_bytes - gpu.free_bytes % ALLOCATION_BYTES)
        return dtp_fault(faults, DTP_NO, NULL, 0,
                         "the plan takes %.2f GiB on %s, of whose %.2f GiB %.2f GiB are free; take a smaller batch, "
                         "checkpointing, more shards, or end what else runs there",
                         (double)bytes / 0x1p30, device->name, (double)gpu.total_bytes / 0x1p30,
                         (double)gpu.free_bytes / 0x1p30);
    const uint64_t whole_bytes =
        (bytes / ALLOCATION_BYTES + (bytes % ALLOCATION_BYTES != 0 || bytes == 0)) * (uint64_t)ALLOCATION_BYTES;
    const cudaError_t error = take(own(device), whole_bytes, out);
    if (error == cudaErrorMemoryAllocation)
        return dtp_fault(faults, DTP_NO, NULL, 0, "%s has no %.2f GiB in one piece, though %.2f GiB are free",
                         device->name, (double)bytes / 0x1p30, (double)gpu.free_bytes / 0x1p30);
    return error == cudaSuccess ? DTP_OK : refuse(faults, "give memory", error);
}

static void release(struct dtp_device *device, void *arena)
{
#if NCCL_VERSION_CODE >= 21900
    if (own(device)->peer_memory) {
        ncclMemFree(arena);
        return;
    }
#endif
    (void)device;
    cudaFree(arena);
}

/* False where the driver does not pin memory that it has not given itself; it gives memory that is pinned then. */
static bool pin_own_pages(struct cuda_device *cuda, uint64_t bytes, void **out)
{
    int i = 0;
    while (i < OWN_PAGES_COUNT && cuda->own_pages[i].memory)
        i++;
    if (i == OWN_PAGES_COUNT || dtp_pages_take(bytes, out, NULL) != DTP_OK)
        return false;
    if (cudaHostRegister(*out, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) == cudaSuccess) {
        cuda->own_pages[i].memory = *out;
        cuda->own_pages[i].bytes = bytes;
        return true;
    }
    cudaGetLastError(); /* or the next launch would report it */
    dtp_pages_release(*out, bytes);
    return false;
}

static enum dtp_status allocate_host(struct dtp_device *device, uint64_t bytes, void **out, struct dtp_faults *faults)
{
    struct cuda_device *cuda = own(device);
    *out = NULL;
    if (bytes >= OWN_PAGES_BYTES && pin_own_pages(cuda, bytes, out))
        return DTP_OK;
    const cudaError_t error = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation)
        return dtp_fault(faults, DTP_NO, NULL, 0,
                         "the host cannot pin %.2f GiB for the GPU; offload less, leave out --async-checkpoints or "
                         "--elastic, which copy the state there, or raise the limit of locked memory (ulimit -l)",
                         (double)bytes / 0x1p30);
    return error == cudaSuccess ? DTP_OK : refuse(faults, "pin memory of the host", error);
}

static void release_host(struct dtp_device *device, void *arena)
{
    struct cuda_device *cuda = own(device);
    int i = 0;
    while (i < OWN_PAGES_COUNT && cuda->own_pages[i].memory != arena)
        i++;
    if (i == OWN_PAGES_COUNT) {
        cudaFreeHost(arena);
        return;
    }
    cudaHostUnregister(arena);
    dtp_pages_release(arena, cuda->own_pages[i].bytes);
    cuda->own_pages[i].memory = NULL;
}

static int copy(struct dtp_device *device, void *to, const void *from, uint64_t bytes, void *stream)
{
    (void)device;
    return (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static void *stream_of(struct dtp_device *device, enum dtp_stream stream)
{
    return own(device)->streams[stream];
}

static enum dtp_status event_create(struct dtp_device *device, bool timed, void **out, struct dtp_faults *faults)
{
    cudaEvent_t event = NULL;
    (void)device;
    const cudaError_t error = cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming);
    *out = event;
    return error == cudaSuccess ? DTP_OK : refuse(faults, "make an event", error);
}

static void event_destroy(struct dtp_device *device, void *event)
{
    (void)device;
    if (event)
        cudaEventDestroy(event);
}

static int record(struct dtp_device *device, void *event, void *stream)
{
    (void)device;
    return (int)cudaEventRecord(event, stream);
}

static int wait_for(struct dtp_device *device, void *stream, void *event)
{
    (void)device;
    return (int)cudaStreamWaitEvent(stream, event, 0);
}

static int finish(struct dtp_device *device, void *event)
{
    (void)device;
    return (int)cudaEventSynchronize(event);
}

static int elapsed(struct dtp_device *device, void *from, void *to, double *out_s)
{
    float elapsed_ms = 0;
    (void)device;
    const cudaError_t error = cudaEventElapsedTime(&elapsed_ms, from, to);
    *out_s = (double)elapsed_ms * 1e-3;
    return (int)error;
}

static int synchronise(struct dtp_device *device)
{
    (void)device;
    return (int)cudaDeviceSynchronize();
}

/* CUDA's runtime has no call that writes a value in a stream's order; its driver has. */
static int mark(struct dtp_device *device, uint32_t *slot, uint32_t value, void *stream)
{
    return own(device)->write_value(stream, (CUdeviceptr)(uintptr_t)slot, value, CU_STREAM_WRITE_VALUE_DEFAULT) ==
                   CUDA_SUCCESS
               ? 0
               : (int)cudaErrorNotSupported;
}

static enum dtp_status find_write_value(struct cuda_device *cuda, struct dtp_faults *faults)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &entry, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "this driver is older than CUDA 12; update it");
    cuda->write_value = (write_value *)entry;
    return DTP_OK;
}

static int host_call(struct dtp_device *device, void (*call)(void *argument), void *argument, void *stream)
{
    (void)device;
    return (int)cudaLaunchHostFunc(stream, call, argument);
}

/* ---- capture ----------------------------------------------------------------------------------------------------- */

static enum dtp_status capture_begin(struct dtp_device *device, struct dtp_faults *faults)
{
    /* Thread-local: another thread may prefetch the next batch meanwhile. */
    const cudaError_t error =
        cudaStreamBeginCapture(own(device)->streams[DTP_STREAM_COMPUTE], cudaStreamCaptureModeThreadLocal);
    return error == cudaSuccess ? DTP_OK : refuse(faults, "capture a step", error);
}

static enum dtp_status capture_end(struct dtp_device *device, void **out_graph, struct dtp_faults *faults)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t instance = NULL;
    *out_graph = NULL;
    cudaError_t error = cudaStreamEndCapture(own(device)->streams[DTP_STREAM_COMPUTE], &graph);
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&instance, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    *out_graph = instance;
    return error == cudaSuccess ? DTP_OK : refuse(faults, "make a graph of the step", error);
}

static int launch(struct dtp_device *device, void *graph)
{
    return (int)cudaGraphLaunch(graph, own(device)->streams[DTP_STREAM_COMPUTE]);
}

static void graph_destroy(struct dtp_device *device, void *graph)
{
    (void)device;
    if (graph)
        cudaGraphExecDestroy(graph);
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static int matmul_code(int code)
{
    return code ? MATMUL_CODE + code : 0;
}

static int cudnn_code(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? 0 : CUDNN_CODE + (int)status;
}

/* The table's matmul lives here, where cuBLASLt may be called. */
int dtp_cuda_matmul(void *self, const struct dtp_matmul_args *arguments, void *stream)
{
    return matmul_code(dtp_matmul_run(own(self)->matmul, arguments, stream));
}

/* Which of three computes this attention, by the arguments of either direction: cuDNN, our kernels on tensor cores, or
 * the plain ones. */
#define FUSES(a, length)                                                                                               \
    dtp_attention_is_fused((a)->element != DTP_ELEMENT_FP32, length, (a)->head_dim, (a)->value_dim,                    \
                           (a)->softcap > 0 || (a)->alibi)
#define IS_FUSED(a)                                                                                                    \
    (FUSES(a, (a)->keys ? (a)->sequence - (a)->first_query : (a)->sequence) && (!(a)->keys || FUSES(a, (a)->key_count)))

#define IS_OWN_MMA(a) dtp_attention_is_own_mma((a)->element != DTP_ELEMENT_FP32, (a)->head_dim, (a)->value_dim)

static int attention(void *self, const struct dtp_attention_args *arguments, void *stream)
{
    if (!IS_FUSED(arguments))
        return IS_OWN_MMA(arguments) ? dtp_cuda_attention_mma(NULL, arguments, stream)
                                     : dtp_cuda_attention(NULL, arguments, stream);
    return cudnn_code(dtp_attention_forward(own(self)->attention, arguments, stream));
}

static int attention_backward(void *self, const struct dtp_attention_backward_args *arguments, void *stream)
{
    if (!IS_FUSED(arguments))
        return IS_OWN_MMA(arguments) ? dtp_cuda_attention_mma_backward(NULL, arguments, stream)
                                     : dtp_cuda_attention_backward(NULL, arguments, stream);
    return cudnn_code(dtp_attention_backward(own(self)->attention, arguments, stream));
}

static enum dtp_status prepare(struct dtp_device *device, enum dtp_kernel kernel, const void *arguments,
                               struct dtp_faults *faults)
{
    struct cuda_device *cuda = own(device);
    const struct dtp_attention_args *forward = arguments;
    const struct dtp_attention_backward_args *backward = arguments;
    switch (kernel) {
    case DTP_KERNEL_matmul:
        return dtp_matmul_prepare(cuda->matmul, arguments, cuda->streams[DTP_STREAM_COMPUTE], faults);
    case DTP_KERNEL_attention:
        return IS_FUSED(forward) ? dtp_attention_prepare(cuda->attention, forward, faults) : DTP_OK;
    case DTP_KERNEL_attention_backward:
        return IS_FUSED(backward) ? dtp_attention_prepare_backward(cuda->attention, backward, faults) : DTP_OK;
    default: return DTP_OK;
    }
}

static const char *error_text(struct dtp_device *device, int code)
{
    (void)device;
    if (code >= CUDNN_CODE)
        return cudnnGetErrorString((cudnnStatus_t)(code - CUDNN_CODE));
    return code >= MATMUL_CODE ? dtp_matmul_error_text(code - MATMUL_CODE) : dtp_cuda_error_text(code);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void destroy(struct dtp_device *device)
{
    if (!device)
        return;
    struct cuda_device *cuda = own(device);
    cudaDeviceSynchronize();
    dtp_attention_destroy(cuda->attention);
    dtp_matmul_destroy(cuda->matmul);
    for (int i = 0; i < DTP_STREAM_COUNT; i++)
        if (cuda->streams[i])
            cudaStreamDestroy(cuda->streams[i]);
    free(cuda);
}

static const struct dtp_device_verbs verbs = {.destroy = destroy,
                                              .memory = memory,
                                              .allocate = allocate,
                                              .release = release,
                                              .allocate_host = allocate_host,
                                              .release_host = release_host,
                                              .copy = copy,
                                              .stream = stream_of,
                                              .event_create = event_create,
                                              .event_destroy = event_destroy,
                                              .record = record,
                                              .wait = wait_for,
                                              .finish = finish,
                                              .elapsed = elapsed,
                                              .synchronise = synchronise,
                                              .mark = mark,
                                              .host_call = host_call,
                                              .capture_begin = capture_begin,
                                              .capture_end = capture_end,
                                              .launch = launch,
                                              .graph_destroy = graph_destroy,
                                              .prepare = prepare,
                                              .error_text = error_text};

enum dtp_status dtp_device_cuda_count(uint32_t *out, struct dtp_faults *faults)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    *out = (uint32_t)count;
    if (error != cudaSuccess || count < 1)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "no GPU can be used: %s; --device host runs on this machine's cores",
                         error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
    return DTP_OK;
}

static enum dtp_status take_gpu(uint32_t ordinal, struct cudaDeviceProp *out, struct dtp_faults *faults)
{
    uint32_t count;
    enum dtp_status status = dtp_device_cuda_count(&count, faults);
    if (status != DTP_OK)
        return status;
    if (ordinal >= count)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "there is no GPU %" PRIu32 ": this machine shows %" PRIu32,
                         ordinal, count);
    cudaError_t error = cudaSetDevice((int)ordinal);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(out, (int)ordinal);
    if (error == cudaSuccess)
        error = cudaFree(NULL); /* makes the context */
    if (error != cudaSuccess)
        return refuse(faults, "be opened", error);
    if (out->major < 8)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "%s has compute capability %d.%d; bf16 and the kernels of this build need 8.0 or later",
                         out->name, out->major, out->minor);
    return DTP_OK;
}

/* What Linux says of the GPU's PCI function; -1 on a machine of one node, and where a GPU shows no function. */
int dtp_device_cuda_numa_node(uint32_t ordinal)
{
    char function[32], path[96];
    int node = -1;
    if (cudaDeviceGetPCIBusId(function, sizeof function, (int)ordinal) != cudaSuccess)
        return -1;
    for (char *c = function; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", function);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &node) != 1)
        node = -1;
    if (file)
        fclose(file);
    return node;
}

static enum dtp_status make_streams(struct cuda_device *cuda, struct dtp_faults *faults)
{
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (int i = 0; i < DTP_STREAM_COUNT && error == cudaSuccess; i++) {
        const bool urgent = i == DTP_STREAM_GATHER || i == DTP_STREAM_REDUCE || i == DTP_STREAM_REPLICATE;
        error = cudaStreamCreateWithPriority(&cuda->streams[i], cudaStreamNonBlocking, urgent ? greatest : least);
    }
    return error == cudaSuccess ? DTP_OK : refuse(faults, "make streams", error);
}

static void name_libraries(struct cuda_device *cuda, const struct dtp_device_options *options)
{
    int runtime = 0, driver = 0;
    const size_t blas = cublasLtGetVersion(), dnn = cudnnGetVersion();
    const uint32_t damaged = dtp_matmul_damaged_lines(cuda->matmul);
    char *out = cuda->device.libraries;
    const size_t bytes = sizeof cuda->device.libraries;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    snprintf(out, bytes, "CUDA %d.%d on a driver for %d.%d, cuBLASLt %zu.%zu.%zu, cuDNN %zu.%zu.%zu", runtime / 1000,
             runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, blas / 10000, blas / 100 % 100, blas % 100,
             dnn / 10000, dnn / 100 % 100, dnn % 100);
    if (damaged)
        dtp_append(out, bytes, "; %" PRIu32 " damaged lines of %.100s not used", damaged, options->choices_path);
}

enum dtp_status dtp_device_cuda_create(const struct dtp_device_options *options, struct dtp_device **out,
                                       struct dtp_faults *faults)
{
    struct cudaDeviceProp properties;
    *out = NULL;
    enum dtp_status status = take_gpu(options->ordinal, &properties, faults);
    if (status != DTP_OK)
        return status;
    struct cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    cuda->device.verbs = &verbs;
    cuda->device.asynchronous = true;
    char owner[sizeof cuda->device.name + 16]; /* of the choices of algorithms */
    if (options->matmul_sms)
        snprintf(owner, sizeof owner, "%s/%" PRIu32 "SMs", cuda->device.name, options->matmul_sms);
    else
        snprintf(owner, sizeof owner, "%s", cuda->device.name);
    cuda->peer_memory = options->peer_memory;
    snprintf(cuda->device.name, sizeof cuda->device.name, "%.100s", properties.name);
#define X(kernel, args) cuda->device.kernels.kernel = dtp_cuda_##kernel;
    DTP_KERNEL_TABLE(X)
#undef X
    cuda->device.kernels.self = cuda;
    cuda->device.kernels.attention = attention;
    cuda->device.kernels.attention_backward = attention_backward;
    status = find_write_value(cuda, faults);
    if (status == DTP_OK)
        status = make_streams(cuda, faults);
    if (status == DTP_OK)
        status = dtp_matmul_create(owner, options->choices_path, &cuda->matmul, faults);
    if (status == DTP_OK && options->shared_gpu)
        dtp_matmul_on_shared_gpu(cuda->matmul);
    if (status == DTP_OK && options->brief_search)
        dtp_matmul_search_as(cuda->matmul, DTP_MATMUL_BRIEFLY);
    if (status == DTP_OK && options->untimed_search)
        dtp_matmul_search_as(cuda->matmul, DTP_MATMUL_UNTIMED);
    if (status == DTP_OK)
        status = dtp_attention_create(&cuda->attention, faults);
    if (status != DTP_OK) {
        destroy(&cuda->device);
        return status;
    }
    name_libraries(cuda, options);
    *out = &cuda->device;
    return DTP_OK;
}
