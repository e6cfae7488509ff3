#include "device/cudnn_graph.h"

#include <string.h>

#define MOST_OPERATIONS 32
#define MOST_CONFIGURATIONS 16
#define MOST_DESCRIPTORS (DTP_GRAPH_TENSORS + 2 * MOST_OPERATIONS + MOST_CONFIGURATIONS + 4)

/* A build in progress: every descriptor made, so that one loop frees them, and the first failure. */
struct build {
    cudnnStatus_t status;
    const char *doing;
    uint32_t count;
    cudnnBackendDescriptor_t made[MOST_DESCRIPTORS];
    cudnnBackendDescriptor_t tensors[DTP_GRAPH_TENSORS];
    cudnnBackendDescriptor_t operations[MOST_OPERATIONS];
};

static void check(struct build *build, cudnnStatus_t status, const char *doing)
{
    if (build->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        build->status = status;
        build->doing = doing;
    }
}

static cudnnBackendDescriptor_t make(struct build *build, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (build->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (build->count == MOST_DESCRIPTORS) {
        check(build, CUDNN_STATUS_NOT_SUPPORTED, "the graph is larger than this program's tables");
        return NULL;
    }
    check(build, cudnnBackendCreateDescriptor(type, &made), "create a descriptor");
    if (made)
        build->made[build->count++] = made;
    return made;
}

static void set(struct build *build, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (build->status == CUDNN_STATUS_SUCCESS)
        check(build, cudnnBackendSetAttribute(descriptor, name, type, count, values), "set an attribute");
}

static void set_descriptor(struct build *build, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value)
{
    set(build, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(struct build *build, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (build->status == CUDNN_STATUS_SUCCESS)
        check(build, cudnnBackendFinalize(descriptor), what);
}

static void free_descriptors(struct build *build)
{
    while (build->count)
        cudnnBackendDestroyDescriptor(build->made[--build->count]);
}

/* cuDNN's own explanation of what failed last on this thread, without its line ends. */
static void last_words(char *out, size_t bytes)
{
    out[0] = '\0';
    cudnnGetLastErrorString(out, bytes);
    for (char *at = out; *at; at++)
        if (*at == '\n' || *at == '\r')
            *at = ' ';
}

static enum dtp_status refuse(const struct build *build, const char *words, struct dtp_faults *faults)
{
    char said[256];
    last_words(said, sizeof said);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "cuDNN %zu, %s: %s: %s (%s)", cudnnGetVersion(), words,
                     build->doing, cudnnGetErrorString(build->status), said[0] ? said : "no further words");
}

enum dtp_status dtp_cudnn_open(struct dtp_cudnn *out, struct dtp_faults *faults)
{
    struct build build = {.status = CUDNN_STATUS_SUCCESS};
    *out = (struct dtp_cudnn){0};
    cudnnStatus_t status = cudnnCreate(&out->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        out->handle = NULL;
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "cuDNN %zu does not start: %s", cudnnGetVersion(),
                         cudnnGetErrorString(status));
    }
    out->properties = make(&build, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(&build, out->properties, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &out->handle);
    finish(&build, out->properties, "describe the device");
    if (build.status == CUDNN_STATUS_SUCCESS)
        return DTP_OK;
    enum dtp_status refused = refuse(&build, "opening it", faults);
    dtp_cudnn_close(out);
    return refused;
}

void dtp_cudnn_close(struct dtp_cudnn *cudnn)
{
    if (cudnn->properties)
        cudnnBackendDestroyDescriptor(cudnn->properties);
    if (cudnn->handle)
        cudnnDestroy(cudnn->handle);
    *cudnn = (struct dtp_cudnn){0};
}

static void make_tensor(struct build *build, const struct dtp_graph_tensor *tensors, int index)
{
    if (index == DTP_GRAPH_NONE || build->tensors[index])
        return;
    const struct dtp_graph_tensor *tensor = &tensors[index];
    int64_t id = index, alignment = 16;
    bool is_virtual = tensor->storage == DTP_GRAPH_VIRTUAL, by_value = tensor->storage == DTP_GRAPH_VALUE;
    cudnnBackendDescriptor_t made = make(build, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(build, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(build, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor->type);
    set(build, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor->dimensions);
    set(build, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor->strides);
    set(build, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(build, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(build, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(build, made, "describe a tensor");
    build->tensors[index] = made;
}

static cudnnBackendDescriptor_t make_matmul(struct build *build, const struct dtp_graph_operation *from)
{
    cudnnBackendDescriptor_t matmul = make(build, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(build, matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &from->compute);
    finish(build, matmul, "describe a matmul");
    cudnnBackendDescriptor_t made = make(build, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, build->tensors[from->x]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, build->tensors[from->b]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, build->tensors[from->y]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
    return made;
}

static cudnnBackendDescriptor_t make_pointwise(struct build *build, const struct dtp_graph_operation *from)
{
    cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)from->mode;
    int64_t axis = from->axis;
    cudnnBackendDescriptor_t pointwise = make(build, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(build, pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(build, pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &from->compute);
    if (from->axis)
        set(build, pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(build, pointwise, "describe a pointwise operation");
    cudnnBackendDescriptor_t made = make(build, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, build->tensors[from->x]);
    if (from->b != DTP_GRAPH_NONE)
        set_descriptor(build, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, build->tensors[from->b]);
    if (from->t != DTP_GRAPH_NONE)
        set_descriptor(build, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, build->tensors[from->t]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, build->tensors[from->y]);
    return made;
}

static cudnnBackendDescriptor_t make_reduction(struct build *build, const struct dtp_graph_operation *from)
{
    cudnnReduceTensorOp_t mode = (cudnnReduceTensorOp_t)from->mode;
    cudnnBackendDescriptor_t reduction = make(build, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(build, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(build, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &from->compute);
    finish(build, reduction, "describe a reduction");
    cudnnBackendDescriptor_t made = make(build, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, build->tensors[from->x]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, build->tensors[from->y]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    return made;
}

static cudnnBackendDescriptor_t make_reshape(struct build *build, const struct dtp_graph_operation *from)
{
    cudnnBackendDescriptor_t made = make(build, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, build->tensors[from->x]);
    set_descriptor(build, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, build->tensors[from->y]);
    return made;
}

static void make_operation(struct build *build, const struct dtp_graph_tensor *tensors,
                           const struct dtp_graph_operation *from, uint32_t index)
{
    static cudnnBackendDescriptor_t (*const makers[])(struct build *, const struct dtp_graph_operation *) = {
        [DTP_GRAPH_MATMUL] = make_matmul,
        [DTP_GRAPH_POINTWISE] = make_pointwise,
        [DTP_GRAPH_REDUCTION] = make_reduction,
        [DTP_GRAPH_RESHAPE] = make_reshape,
    };
    make_tensor(build, tensors, from->x);
    make_tensor(build, tensors, from->b);
    make_tensor(build, tensors, from->t);
    make_tensor(build, tensors, from->y);
    build->operations[index] = makers[from->kind](build, from);
    finish(build, build->operations[index], "describe an operation");
}

/* Engine configurations in the order heuristics prefer them; returns how many. */
static uint32_t ask_heuristics(struct build *build, const struct dtp_cudnn *cudnn, cudnnBackendDescriptor_t graph,
                               cudnnBackendDescriptor_t *configurations)
{
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnnBackendDescriptor_t heuristics = make(build, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(build, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(build, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    set_descriptor(build, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, cudnn->properties);
    finish(build, heuristics, "ask heuristics for engines");
    for (uint32_t i = 0; i < MOST_CONFIGURATIONS; i++)
        configurations[i] = make(build, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (build->status == CUDNN_STATUS_SUCCESS)
        check(build,
              cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       MOST_CONFIGURATIONS, &count, configurations),
              "read the engines");
    if (build->status == CUDNN_STATUS_SUCCESS && count == 0)
        check(build, CUDNN_STATUS_NOT_SUPPORTED, "no engine takes the graph");
    if (build->status != CUDNN_STATUS_SUCCESS)
        return 0;
    return count < MOST_CONFIGURATIONS ? (uint32_t)count : MOST_CONFIGURATIONS;
}

static int64_t engine_number(struct build *build, cudnnBackendDescriptor_t configuration)
{
    int64_t number = -1, count = 0;
    cudnnBackendDescriptor_t engine = make(build, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (engine && cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                           &count, &engine) == CUDNN_STATUS_SUCCESS)
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &number);
    return number;
}

static cudnnStatus_t make_plan(const struct dtp_cudnn *cudnn, cudnnBackendDescriptor_t configuration,
                               struct dtp_cudnn_plan *out)
{
    struct build build = {.status = CUDNN_STATUS_SUCCESS};
    int64_t bytes = 0, count = 0;
    cudnnBackendDescriptor_t plan = make(&build, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_descriptor(&build, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, cudnn->properties);
    set_descriptor(&build, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    finish(&build, plan, "make the plan");
    if (build.status == CUDNN_STATUS_SUCCESS)
        check(&build,
              cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                       &bytes),
              "read the workspace's size");
    if (build.status != CUDNN_STATUS_SUCCESS) {
        free_descriptors(&build);
        return build.status;
    }
    out->plan = plan;
    out->workspace_bytes = (uint64_t)bytes;
    return CUDNN_STATUS_SUCCESS;
}

static void choose_plan(struct build *build, const struct dtp_cudnn *cudnn, cudnnBackendDescriptor_t graph,
                        struct dtp_cudnn_plan *out)
{
    cudnnBackendDescriptor_t configurations[MOST_CONFIGURATIONS];
    uint32_t count = ask_heuristics(build, cudnn, graph, configurations);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (uint32_t i = 0; i < count; i++) {
        status = make_plan(cudnn, configurations[i], out);
        if (status == CUDNN_STATUS_SUCCESS) {
            out->engine = engine_number(build, configurations[i]);
            return;
        }
    }
    check(build, status, "make a plan of any engine");
}

enum dtp_status dtp_cudnn_plan_build(const struct dtp_cudnn *cudnn, const struct dtp_graph_tensor *tensors,
                                     uint32_t tensor_count, const struct dtp_graph_operation *operations,
                                     uint32_t operation_count, const char *words, struct dtp_cudnn_plan *out,
                                     struct dtp_faults *faults)
{
    struct build build = {.status = CUDNN_STATUS_SUCCESS};
    *out = (struct dtp_cudnn_plan){0};
    if (tensor_count > DTP_GRAPH_TENSORS || operation_count > MOST_OPERATIONS)
        check(&build, CUDNN_STATUS_NOT_SUPPORTED, "the graph is larger than this program's tables");
    for (uint32_t i = 0; i < operation_count && build.status == CUDNN_STATUS_SUCCESS; i++)
        make_operation(&build, tensors, &operations[i], i);
    cudnnBackendDescriptor_t graph = make(&build, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(&build, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operation_count, build.operations);
    if (cudnn->handle)
        set(&build, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn->handle);
    finish(&build, graph, "describe the graph");
    choose_plan(&build, cudnn, graph, out);
    for (uint32_t i = 0; i < tensor_count && build.status == CUDNN_STATUS_SUCCESS; i++)
        if (build.tensors[i] && tensors[i].storage != DTP_GRAPH_VIRTUAL)
            out->tensors[out->tensor_count++] = i;
    enum dtp_status status = build.status == CUDNN_STATUS_SUCCESS ? DTP_OK : refuse(&build, words, faults);
    free_descriptors(&build);
    return status;
}

void dtp_cudnn_plan_free(struct dtp_cudnn_plan *plan)
{
    if (plan->plan)
        cudnnBackendDestroyDescriptor(plan->plan);
    *plan = (struct dtp_cudnn_plan){0};
}

cudnnStatus_t dtp_cudnn_plan_execute(const struct dtp_cudnn *cudnn, const struct dtp_cudnn_plan *plan,
                                     void *const *pointers, void *workspace, void *stream)
{
    struct build build = {.status = CUDNN_STATUS_SUCCESS};
    cudnnBackendDescriptor_t pack = make(&build, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&build, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, plan->tensor_count, plan->tensors);
    set(&build, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, plan->tensor_count, pointers);
    set(&build, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finish(&build, pack, "name the pointers");
    if (build.status == CUDNN_STATUS_SUCCESS)
        check(&build, cudnnSetStream(cudnn->handle, stream), "set the stream");
    if (build.status == CUDNN_STATUS_SUCCESS)
        check(&build, cudnnBackendExecute(cudnn->handle, plan->plan, pack), "execute");
    free_descriptors(&build);
    return build.status;
}
