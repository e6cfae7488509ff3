/* Operation graphs of cuDNN's backend API, from tables.
 *
 * cuDNN computes attention for whoever describes it as a graph of elementary operations that one of its engines
 * recognises: matmuls, pointwise operations, reductions and reshapes between tensors, all but a few of which are
 * `virtual` and never exist in memory. A graph here is a table of such operations over a table of tensors, both in the
 * caller's numbering; building it asks cuDNN's heuristics for engines and takes the first whose plan it can make. Plans
 * are built before step 0 (tens to hundreds of milliseconds each) and executed many times.
 *
 * Nothing here knows what the graph computes. A plan can also be built without a GPU, for the device that a description
 * names (cuDNN 9.8 on): that is how tests ask whether an engine takes a graph. */
#ifndef DTP_CUDNN_GRAPH_H
#define DTP_CUDNN_GRAPH_H

#include "base/status.h"

#include <cudnn.h>
#include <stdint.h>

/* VALUE: a host scalar, read at execution. */
enum dtp_graph_storage { DTP_GRAPH_VIRTUAL, DTP_GRAPH_DEVICE, DTP_GRAPH_VALUE };

struct dtp_graph_tensor {
    enum dtp_graph_storage storage;
    cudnnDataType_t type;
    int64_t dimensions[4], strides[4]; /* in elements */
};

enum dtp_graph_kind { DTP_GRAPH_MATMUL, DTP_GRAPH_POINTWISE, DTP_GRAPH_REDUCTION, DTP_GRAPH_RESHAPE };

#define DTP_GRAPH_NONE 0 /* no tensor: index 0 of the tensor table is not used */
struct dtp_graph_operation {
    enum dtp_graph_kind kind;
    int mode;    /* cudnnPointwiseMode_t or cudnnReduceTensorOp_t */
    int x, b, t; /* inputs: indices of tensors; b of matmul and binary operations, t the selector */
    int y;       /* result */
    int axis;    /* of GEN_INDEX, else 0 */
    cudnnDataType_t compute;
};

/* What plans are built for: a GPU through its handle. */
struct dtp_cudnn {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
};

/* On the current CUDA device. DTP_ENVIRONMENT with cuDNN's words. Close frees what open made; safe on zeros. */
enum dtp_status dtp_cudnn_open(struct dtp_cudnn *out, struct dtp_faults *faults);
void dtp_cudnn_close(struct dtp_cudnn *cudnn);

#define DTP_GRAPH_TENSORS 64
struct dtp_cudnn_plan {
    cudnnBackendDescriptor_t plan;
    uint64_t workspace_bytes; /* that cuDNN asks for */
    int64_t engine;           /* cuDNN's number of it, for reports */
    int32_t tensor_count;     /* that need a pointer at execution, their unique ids: */
    int64_t tensors[DTP_GRAPH_TENSORS];
};

/* Only tensors that an operation names take part; their unique id is their index. DTP_ENVIRONMENT with cuDNN's words
 * where no engine takes the graph; `words` say what it was to compute. */
enum dtp_status dtp_cudnn_plan_build(const struct dtp_cudnn *cudnn, const struct dtp_graph_tensor *tensors,
                                     uint32_t tensor_count, const struct dtp_graph_operation *operations,
                                     uint32_t operation_count, const char *words, struct dtp_cudnn_plan *out,
                                     struct dtp_faults *faults);
void dtp_cudnn_plan_free(struct dtp_cudnn_plan *plan);

/* `pointers[i]` belongs to plan->tensors[i]; values may live on the caller's stack. Returns cuDNN's status. */
cudnnStatus_t dtp_cudnn_plan_execute(const struct dtp_cudnn *cudnn, const struct dtp_cudnn_plan *plan,
                                     void *const *pointers, void *workspace, void *stream);

#endif
