/* How NCCL launches a collective. It says so nowhere but in its debug log; but what it issues to a stream that is being
 * captured becomes nodes of a graph, which can be read. */
#include "ranks/communicator.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls of the driver, for CUDA's runtime knows only kernels that it launched itself, and not the nodes by which copy
 * engines wait for each other (batches of memory operations). */
typedef CUresult node_type(CUgraphNode node, CUgraphNodeType *out);
typedef CUresult node_parameters(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out);
typedef CUresult function_name(const char **name, CUfunction function);
typedef CUresult kernel_name(const char **name, CUkernel kernel);

static void *driver_entry(const char *name)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &entry, 12030, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : NULL;
}

static bool read_kernel(cudaGraphNode_t node, struct dtp_collective_launch *out)
{
    node_parameters *parameters = (node_parameters *)driver_entry("cuGraphKernelNodeGetParams");
    function_name *name_of_function = (function_name *)driver_entry("cuFuncGetName");
    kernel_name *name_of_kernel = (kernel_name *)driver_entry("cuKernelGetName");
    CUDA_KERNEL_NODE_PARAMS found = {0};
    const char *name = NULL;
    out->failed = "cuGraphKernelNodeGetParams";
    if (!parameters || !name_of_function || !name_of_kernel || parameters((CUgraphNode)node, &found) != CUDA_SUCCESS)
        return false;
    CUresult code = found.func ? name_of_function(&name, found.func) : name_of_kernel(&name, found.kern);
    snprintf(out->kernel, sizeof out->kernel, "%s", code == CUDA_SUCCESS && name ? name : "a kernel without a name");
    out->ctas = found.gridDimX * found.gridDimY * found.gridDimZ;
    return true;
}

static bool read_node(cudaGraphNode_t node, node_type *type_of, struct dtp_collective_launch *out)
{
    CUgraphNodeType type;
    out->failed = "cuGraphNodeGetType";
    if (!type_of || type_of((CUgraphNode)node, &type) != CUDA_SUCCESS)
        return false;
    out->copies += type == CU_GRAPH_NODE_TYPE_MEMCPY;
    out->kernels += type == CU_GRAPH_NODE_TYPE_KERNEL;
    return type != CU_GRAPH_NODE_TYPE_KERNEL || read_kernel(node, out);
}

bool dtp_collective_launch_read(void *graph, struct dtp_collective_launch *out)
{
    size_t count = 0;
    *out = (struct dtp_collective_launch){.failed = "cudaGraphGetNodes"};
    if (cudaGraphGetNodes(graph, NULL, &count) != cudaSuccess || count == 0)
        return false;
    cudaGraphNode_t *nodes = calloc(count, sizeof *nodes);
    node_type *type_of = (node_type *)driver_entry("cuGraphNodeGetType");
    bool read = nodes && cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess;
    for (size_t i = 0; read && i < count; i++)
        read = read_node(nodes[i], type_of, out);
    free(nodes);
    return read;
}
